"""Scored rows -> a benchmark's numbers: the score, its interval, breakdowns, counts of faults."""

from collections import Counter
from collections.abc import Sequence

from cpgd_jax.benchmarks import samples
from cpgd_jax.benchmarks.records import Benchmark, Item
from cpgd_jax.benchmarks.scoring import EMPTY


def summarise(benchmark: Benchmark, items: Sequence[Item], rows: Sequence[dict]) -> dict:
    """Scores in percent. `score` is the mean over items of the share of right responses."""
    by_item: dict[str, list[dict]] = {}
    for row in rows:
        by_item.setdefault(row["id"], []).append(row)
    groups = [by_item[item.id] for item in items]
    means = [sum(row["correct"] for row in group) / len(group) for group in groups]
    low, high = samples.interval(means)
    return {
        "score": _percent(means),
        "n": len(items),
        "interval": [100 * low, 100 * high],
        "rule": benchmark.rule_name,
        **_several(groups),
        "breakdown": _breakdown(items, means),
        **({"more": _more(benchmark, items, groups)} if benchmark.more else {}),
        "responses": _counts(rows),
    }


def _percent(values: Sequence[float]) -> float:
    return 100 * sum(values) / len(values)


def _several(groups) -> dict:
    """pass@k and maj@k where every item has several responses, the same number."""
    counts = {len(group) for group in groups}
    n = min(counts)
    if n == 1 or len(counts) > 1:
        return {"samples": n} if len(counts) == 1 else {"samples": sorted(counts)}
    right = [sum(row["correct"] for row in group) for group in groups]
    votes = [
        samples.majority([row["extracted"] for row in g], [row["correct"] for row in g])
        for g in groups
    ]
    passes = {f"pass@{k}": _percent([samples.pass_at(n, c, k) for c in right])
              for k in samples.ks(n)}  # fmt: skip
    return {"samples": n, **passes, f"maj@{n}": _percent(votes)}


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
    n = min(map(len, groups))
    each = [
        benchmark.more([(i, g[s]["correct"]) for i, g in zip(items, groups, strict=True)])
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
