"""From responses to files: scored rows, summary.json, table.md, table.html."""

import json
from collections.abc import Mapping
from pathlib import Path

from cpgd_jax import jsonl
from cpgd_jax.benchmarks import pages, paper, reading, scoring, summary, table
from cpgd_jax.benchmarks.judge import Judge
from cpgd_jax.errors import UserError


def make_folder(path: str) -> Path:
    """UserError: it can't be made."""
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output={path} can't be made: {error.strerror}") from error
    return Path(path)


def baseline(name: str) -> dict[str, float]:
    """Scores by benchmark of a model of the paper or of a summary.json. UserError: neither."""
    if not name.endswith(".json"):
        return paper.row(name)
    try:
        found = jsonl.decode(Path(name).read_bytes()) or {}
    except OSError as error:
        raise UserError(f"--baseline={name} cannot be read: {error.strerror}") from error
    parts = {k: v.get("score") for k, v in found.items() if isinstance(v, dict)}
    scores = {k: score for k, score in parts.items() if isinstance(score, int | float)}
    if not scores:
        raise UserError(f"--baseline={name} has no scores: give the summary.json of an evaluation")
    return scores


def score(
    folder: Path,
    loaded: Mapping[str, reading.Loaded],
    responses: Mapping[str, tuple[dict, dict]],
    judge: Judge | None = None,
    workers: int = 2,
) -> dict[str, dict]:
    """The numbers of each benchmark; writes NAME.scored.jsonl. responses: rows and their report."""
    results = {}
    for name, (found, report) in responses.items():
        benchmark, items = table.named(name), loaded[name].items
        scored = scoring.score(benchmark, items, found, judge, workers)
        rows = scoring.write(folder / f"{name}.scored.jsonl", scored)
        results[name] = summary.summarise(benchmark, items, rows)
        results[name]["integrity"] = loaded[name].report | report
        if judge and benchmark.judged:
            results[name]["rule"] = judge.name
    return results


def overall(results: Mapping[str, dict], reference: Mapping[str, float], name: str) -> dict:
    """{overall, baseline, overall_of} over the benchmarks that the baseline has a score for."""
    scores = {k: v["score"] for k, v in results.items() if reference.get(k, 0) > 0}
    value = paper.overall(scores, reference) if scores else None
    return {"overall": value, "baseline": name, "overall_of": list(scores)}


def publish(folder: Path, name: str, summary: dict, with_paper: bool) -> list:
    """Writes summary.json, table.md and table.html; the tables."""
    tables = pages.sections(name, summary, with_paper)
    files = {
        "summary.json": json.dumps(jsonl.finite(summary), indent=1, ensure_ascii=False) + "\n",
        "table.md": pages.markdown(tables),
        "table.html": pages.page(tables),
    }
    try:
        for file, text in files.items():
            (folder / file).write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise UserError(f"cannot write to {str(folder)!r}: {error.strerror}") from error
    return tables
