"""Responses -> rows {id, sample, response, extracted, correct, reason}, apart from sampling."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cpgd_jax import jsonl
from cpgd_jax.benchmarks.judge import Judge
from cpgd_jax.benchmarks.records import Benchmark, Item, Verdict
from cpgd_jax.data import rows as rows_lib
from cpgd_jax.errors import UserError
from cpgd_jax.rewards import Verifier

EMPTY, NO_RESPONSE = "empty response", "no response"


def score(
    benchmark: Benchmark,
    items: Sequence[Item],
    responses: Mapping[str, Sequence[dict]],
    judge: Judge | None = None,
    workers: int = 2,
    timeout_s: float = 5.0,
) -> Iterator[dict]:
    """One row a response, in the items' order; `responses`: {item id: rows with `response`}.

    An item without one gets a row with `error` NO_RESPONSE. `judge` decides where the official
    rule asks a model. Nothing raises: a rule that fails is a wrong answer with its reason.
    """
    pairs = [(item, row) for item in items for row in responses.get(item.id) or [_none(item)]]
    with (
        Verifier(workers, timeout_s, benchmark.functions, source="functions") as verifier,
        ThreadPoolExecutor(workers) as threads,
    ):
        yield from threads.map(lambda pair: _row(benchmark, *pair, verifier, judge), pairs)


def _none(item: Item) -> dict:
    return {"id": item.id, "sample": 0, "response": "", "error": NO_RESPONSE}


def _row(benchmark: Benchmark, item: Item, row: dict, verifier, judge) -> dict:
    verdict, by_judge = _verdict(benchmark, item, row, verifier, judge)
    return {
        **row,
        "gold": item.gold,
        "extracted": verdict.extracted,
        "correct": verdict.correct,
        "reason": verdict.reason,
        **({"by_judge": by_judge} if judge and benchmark.judged else {}),
    }


def _verdict(benchmark, item, row, verifier, judge) -> tuple[Verdict, bool]:
    if not row["response"].strip():
        return Verdict(False, "", row.get("error") or EMPTY), False
    if judge and benchmark.judged and (verdict := judge.verdict(item, row["response"])):
        return verdict, True
    try:
        return benchmark.rule(item, row["response"], verifier), False
    except Exception as error:  # untrusted text must never stop an evaluation
        return Verdict(False, "", f"the rule failed: {type(error).__name__} {error}"[:200]), False


def read_responses(path: str | Path, name: str, items: Iterable[Item]):
    """({item id: rows}, report) of a file of rows {id, response}, with an optional `sample` and, in
    a file for several benchmarks, `benchmark`. UserError: no such file, or no row that can be used.

    Rows of other benchmarks are passed over; broken rows, unknown ids, and a sample that was there
    before are left out and counted. Items are also found by a whole-number id.
    """
    known = {item.id for item in items}
    found: dict[str, dict] = {}
    faults: list[str] = []
    for _, line in rows_lib.lines(str(path), "--responses"):
        row = jsonl.decode(line)
        if row is None or "id" not in row or not is_row({"sample": 0, **row, "id": ""}):
            faults.append("broken row")
            continue
        if row.get("benchmark", name) != name:
            continue
        identity = str(row["id"])
        if identity not in known:
            faults.append("unknown id")
            continue
        samples = found.setdefault(identity, {})
        sample = row.get("sample", len(samples))
        if sample in samples:
            faults.append("duplicated sample")
            continue
        samples[sample] = {"id": identity, "sample": sample, "response": row["response"]}
        samples[sample] |= {"truncated": True} if row.get("truncated") is True else {}
    if not found:
        seen = ", ".join(f"{faults.count(kind)} {kind}" for kind in dict.fromkeys(faults))
        raise UserError(
            f"--responses={path} answers no item of {name} ({seen or 'no row is its'}): give rows"
            ' {"id", "response"} with the ids of the benchmark\'s file'
        )
    kept = {identity: list(samples.values()) for identity, samples in found.items()}
    return kept, {kind: faults.count(kind) for kind in dict.fromkeys(faults)}


def by_item(path: str | Path) -> dict[str, list[dict]]:
    """The rows of a file that sampling wrote: {item id: its rows in the order of samples}."""
    found: dict[str, list[dict]] = {}
    for row in filter(is_row, jsonl.read_lines(path)):
        found.setdefault(row["id"], []).append(row)
    return {key: sorted(rows, key=lambda row: row["sample"]) for key, rows in found.items()}


def is_row(row: dict) -> bool:
    """Whether it is a response to a sample of an item."""
    kinds = (("id", str), ("sample", int), ("response", str))
    return all(isinstance(row.get(name), kind) for name, kind in kinds)


def write(path: Path, rows: Iterable[dict]) -> list[dict]:
    """Writes the rows; the file appears when all are in it."""
    temporary = path.with_name(path.name + ".tmp")
    done = []
    try:
        with open(temporary, "wb") as file:
            for row in rows:
                file.write(jsonl.encode(row))
                done.append(row)
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror}") from error
    return done
