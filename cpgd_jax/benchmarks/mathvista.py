"""MathVista testmini (arXiv 2310.02255): a choice's text, an integer, a float or a list."""

import re

from cpgd_jax.benchmarks import rules
from cpgd_jax.benchmarks.records import Benchmark, Item, Verdict, choice_lines, groups, shown

_META = ("source", "category", "task", "context", "grade", "language")
_PARENTHESISED = re.compile(r"\(([a-zA-Z])\)")
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_TEX = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}|\\[,!;() ]|[$*]")
MAX_COMPARED = 300  # characters of an answer whose distance to the choices is computed


def item(row: dict) -> Item:
    """`query`, the official prompt, where the row has it."""
    # The published decoded image has another name than the row's path in some copies of the data.
    picture = row.get("decoded_image") or row.get("local_image") or row["image"]
    return Item(
        str(row["pid"]),
        row.get("query") or _prompt(row),
        str(row["answer"]),
        shown(picture),
        groups(row, "question_type", "answer_type") | groups(row.get("metadata") or {}, *_META),
        {key: row[key] for key in ("choices", "question_type", "answer_type", "precision")},
    )


def _prompt(row: dict) -> str:
    unit = f" (Unit: {row['unit']})" if row.get("unit") else ""
    if row["question_type"] == "multi_choice":
        hint = "Answer with the letter of the right choice."
        return f"{row['question']}{unit}\nChoices:{choice_lines(row['choices'])}\n{hint}"
    places = int(row["precision"] or 0)
    kind = {
        "integer": "an integer, such as 3",
        "float": f"a number with {places} decimal place{'s' * (places != 1)}",
        "list": "a Python list, such as [1, 2, 3]",
    }.get(row["answer_type"], "a few words")
    return f"{row['question']}{unit}\nThe answer is {kind}."


def normalise(extracted: str, row) -> str | None:
    """The official normalisation of an extracted answer; None = it has none.

    A choice: the letter's text, else the choice that is nearest in edit distance.
    """
    if row["question_type"] == "multi_choice":
        return _choice(extracted.strip(), row["choices"])
    try:
        if row["answer_type"] == "integer":
            return str(int(float(extracted)))
        if row["answer_type"] == "float":
            return str(round(float(extracted), int(row["precision"])))
    except (ValueError, OverflowError):
        return None
    return extracted


def _choice(text: str, choices: list[str]) -> str:
    letters = [chr(ord("A") + n) for n in range(len(choices))]
    bracketed = _PARENTHESISED.search(text)
    text = bracketed.group(1).upper() if bracketed else text
    if text in letters:
        return choices[letters.index(text)]
    return min(choices, key=lambda choice: distance(text[:MAX_COMPARED], choice))


def distance(a: str, b: str) -> int:
    """Levenshtein's: the fewest insertions, deletions and replacements of a character."""
    previous = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        current = [i]
        for j, y in enumerate(b, 1):
            current.append(min(previous[j] + 1, current[-1] + 1, previous[j - 1] + (x != y)))
        previous = current
    return previous[-1]


def rule(item: Item, response: str, verifier) -> Verdict:
    """Extraction by rule, where the official one asks a language model, then `normalise`."""
    extracted = rules.found(response)
    if not extracted:
        return Verdict(False, "", "no answer found")
    prediction = normalise(_plain(extracted, item.row), item.row)
    correct = prediction is not None and prediction == item.gold
    return Verdict(correct, extracted, f"taken for {prediction!r:.60}")


def _plain(extracted: str, row) -> str:
    """What a reader would copy: no TeX round it, of a number with its unit the number."""
    text = _TEX.sub(lambda m: m.group(1) or "", extracted).strip().rstrip(".").strip()
    if row["question_type"] == "multi_choice":
        letter = re.match(r"([A-H])(?:[.:)]\s|[.:)]?$)", text)
        return letter.group(1) if letter else text
    if row["answer_type"] in ("integer", "float"):
        numbers = _NUMBER.findall(text)
        return numbers[0].replace(",", "") if len(numbers) == 1 else text
    return text


BENCHMARK = Benchmark(
    title="MathVista testmini",
    files=("testmini.json", "testmini*.parquet", "*.parquet", "*.jsonl"),
    count=1000,
    fields=(
        "pid,question,image,decoded_image,choices,unit,precision,answer,question_type,answer_type"
        ",metadata,query"
    ),
    item=item,
    rule=rule,
    rule_name="variant: answers extracted by rule (officially by a language model), then the"
    " official normalisation; no answer is wrong (officially the shortest choice)",
    judged=True,
)
