"""Scored rows -> a benchmark's numbers: the score, its interval, breakdowns, counts of faults."""

from collections import Counter
from collections.abc import Sequence

from cpgd_jax.benchmarks import samples
from cpgd_jax.benchmarks.records import Benchmark, Item
from cpgd_jax.benchmarks.scoring import EMPTY, NO_RESPONSE


def summarise(benchmark: Benchmark, items: Sequence[Item], rows: Sequence[dict]) -> dict:
    """Scores in percent. `score` is the mean over items of the share of right responses."""
    by_item: dict[str, list[dict]] = {}
    for row in rows:
        by_item.setdefault(row["id"], []).append(row)
    groups = [by_item[item.id] for item in items]
    means = [sum(row["correct"] for row in group) / len(group) for group in groups]
    return {
        "score": _percent(means),
        "n": len(items),
        "interval": _interval(means),
        "rule": benchmark.rule_name,
        **_several(groups, means),
        "breakdown": _breakdown(items, means),
        **({"more": _more(benchmark, items, groups)} if benchmark.more else {}),
        "responses": _counts(rows),
    }


def _percent(values: Sequence[float]) -> float:
    return 100 * sum(values) / len(values)


def _interval(values: Sequence[float]) -> list[float]:
    return [100 * end for end in samples.interval(values)]


def _several(groups, means) -> dict:
    """Where every item that was answered has n > 1 responses, the same number: pass@k, maj@n and
    mean@n, each with its interval in `intervals`. An item without a response fails at every k."""
    counts = {len(group) for group in groups if group[0].get("error") != NO_RESPONSE} or {1}
    n = min(counts)
    if n == 1 or len(counts) > 1:
        return {"samples": n if len(counts) == 1 else sorted(counts)}
    right = [sum(row["correct"] for row in group) for group in groups]
    values = {f"pass@{k}": [samples.pass_at(n, c, k) for c in right] for k in samples.ks(n)}
    values[f"maj@{n}"] = [
        float(samples.majority([row["extracted"] for row in g], [row["correct"] for row in g]))
        for g in groups
    ]
    values[f"mean@{n}"] = means
    return {
        "samples": n,
        **{name: _percent(each) for name, each in values.items()},
        "intervals": {name: _interval(each) for name, each in values.items()},
    }


def _breakdown(items, means) -> dict:
    found: dict[str, dict[str, list[float]]] = {}
    for item, mean in zip(items, means, strict=True):
        for name, value in item.groups.items():
            found.setdefault(name, {}).setdefault(value, []).append(mean)
    return {
        name: {value: {"score": _percent(v), "n": len(v)} for value, v in sorted(values.items())}
        for name, values in found.items()
    }


def _more(benchmark, items, groups) -> dict:
    """The benchmark's own scores, their mean over the samples."""
    n = min(len(g) for g in groups if len(g) > 1) if any(len(g) > 1 for g in groups) else 1
    each = [
        benchmark.more([(i, g[s % len(g)]["correct"]) for i, g in zip(items, groups, strict=True)])
        for s in range(n)
    ]
    return {name: sum(one[name] for one in each) / n for name in each[0]}


def _counts(rows) -> dict:
    """Responses, and how many of them are faulty in which way."""
    errors = Counter(row["error"] for row in rows if row.get("error"))
    kinds = {
        "empty": sum(row["reason"] == EMPTY for row in rows),
        "without an answer": sum(not row["extracted"] for row in rows),
        "truncated": sum(bool(row.get("truncated")) for row in rows),
        "left to the rule by the judge": sum(row.get("by_judge") is False for row in rows),
        **errors,
    }
    answered = sum(not row.get("error") for row in rows)
    return {"count": answered, **{kind: n for kind, n in kinds.items() if n}}
