"""We-Math testmini (arXiv 2407.01284): 525 problems of 2 or 3 steps, asked step by step and whole.

The four outcomes of a problem: complete mastery CM (all right), insufficient generalisation IG
(steps right, whole wrong), insufficient knowledge IK (a step and the whole wrong), rote
memorisation RM (whole right, a step wrong; loose: every step wrong, else it counts as CM).

The score in tables is the plain accuracy over the questions: the scores that the CPGD paper prints
for known models lie far above their published four-way scores. Those are given beside it.
"""

import re
from collections import Counter

from cpgd_jax.benchmarks import rules
from cpgd_jax.benchmarks.records import Benchmark, Item, Verdict, shown
from cpgd_jax.rewards import answers

_OPTION = re.compile(r";\s*(?=[A-H]\.)")


def item(row: dict) -> Item:
    options = "\n".join(part.strip() for part in _OPTION.split(row["option"]))
    steps = row["key"][0]
    return Item(
        f"{row['ID']}/{row['key']}",
        f"{row['question']}\n{options}\nAnswer with the letter of the right option.",
        row["answer"],
        shown(row.get("image_path") or row["image"]),
        {"question": f"{steps}-step problem" if row["key"].endswith("multi") else "one step"},
        {"group": row["ID"], "steps": int(steps), "whole": row["key"].endswith("multi")},
    )


def rule(item: Item, response: str, verifier) -> Verdict:
    """The letter in a box or in tags, else the official one: the first after the last "Answer"."""
    if answers.extract(response) or "Answer" not in response:
        return rules.verified(item, response, verifier)
    said = re.sub(r"[<>:.]", "", answers.until_stop(response).rsplit("Answer", 1)[1]).strip()
    letter = said[:1] if said[:1] in set("ABCDEFGH") else ""
    same = letter == item.gold
    return Verdict(same, letter, "same choice" if same else "another choice")


def outcomes(pairs) -> tuple[Counter, int]:
    """How many whole groups have each outcome, {"IG", "IK", "CM strict", "CM loose", "RM strict",
    "RM loose"}, and how many whole groups there are. pairs: (item, correct)."""
    groups: dict[str, dict] = {}
    for item, correct in pairs:
        group = groups.setdefault(item.row["group"], {"steps": [], "of": item.row["steps"]})
        if item.row["whole"]:
            group["whole"] = correct
        else:
            group["steps"].append(correct)
    kept = [g for g in groups.values() if "whole" in g and len(g["steps"]) == g["of"]]
    return Counter(name for g in kept for name in _outcome(g["steps"], g["whole"])), len(kept)


def _outcome(steps: list[bool], whole: bool) -> tuple[str, ...]:
    if not whole:
        return ("IG",) if all(steps) else ("IK",)
    strict = "CM strict" if all(steps) else "RM strict"
    return strict, "CM loose" if any(steps) else "RM loose"


def four_way(pairs) -> dict:
    """The four outcomes as shares of the groups, RM also as a share of RM + CM, and the scores,
    strict and loose, in percent: (groups - IG / 2 - RM - IK) / groups."""
    counts, total = outcomes(pairs)
    if not total:
        return {}
    result: dict = {"groups": total}
    for name in ("IK", "IG", "CM strict", "CM loose", "RM strict", "RM loose"):
        result[name] = 100 * counts[name] / total
    for kind in ("strict", "loose"):
        mastered, rote = counts[f"CM {kind}"], counts[f"RM {kind}"]
        result[f"RM rate {kind}"] = 100 * rote / (mastered + rote) if mastered + rote else 0.0
        left = total - 0.5 * counts["IG"] - rote - counts["IK"]
        result[f"score {kind}"] = 100 * left / total
    return result


BENCHMARK = Benchmark(
    title="We-Math testmini",
    files=("testmini.json", "*.parquet", "*.jsonl"),
    count=1740,
    fields=(
        "ID,split,knowledge concept,question,option,answer,image_path,image,key,question number,"
        "knowledge concept description"
    ),
    item=item,
    rule=rule,
    rule_name="variant: the letter in the box, else the official rule (after the last 'Answer');"
    " accuracy over questions, the official four-way scores beside it",
    more=four_way,
)
