"""Numbers of the study: final accuracy, collapse, intervals over seeds, the paper's phenomena."""

from collections.abc import Sequence

import numpy as np
from scipy import stats

from cpgd_jax.stability.plan import Batch, Scale

TAIL = 0.1  # share of a trial's rollouts that its final values are means of
COLLAPSE = 0.5
COLLAPSE_MEANS = (
    "A trial has collapsed if the mean accuracy of its last tenth is below half of the highest mean"
    " of any stretch of that length."
)
INTERVALS_MEAN = (
    "Intervals are 95% over seeds: Student's t for means, Wilson's for shares of seeds."
)
VERDICTS_MEAN = (
    "Reproduced: it holds at the common rate. Partly: only at other rates. Not: at none. Collapses:"
    " at least half of the seeds. Stays stable: no seed collapses. Loses length: under 80% of the"
    " first rollout's, while at least 80% of the responses keep the form. About 1%: 0.3 to 3%."
)
# What Figure 1 of arXiv 2505.12504 shows
COLLAPSES = ("rloo", "reinforce_pp", "grpo_no_clip", "grpo")
STABLE = ("grpo_dual_clip", "grpo_drift", "pg", "cpg", "pgd", "cpgd")
SHORTENS = ("pg", "pgd")
CLIPPED = ("grpo", "cpg", "cpgd")
COMPONENTS = ("pg", "pgd", "cpg")  # CPGD without clip and drift, without clip, without drift


def tail(curve) -> np.ndarray:
    """Mean of the last tenth along the last axis; NaN counts as 0."""
    curve = np.nan_to_num(np.asarray(curve, float))
    return curve[..., -window(curve.shape[-1]) :].mean(axis=-1)


def window(length: int) -> int:
    return max(1, round(TAIL * length))


def collapsed(accuracy) -> np.ndarray:
    """bool [...]: see COLLAPSE_MEANS; accuracy [..., rollouts]."""
    accuracy = np.nan_to_num(np.asarray(accuracy, float))
    width = window(accuracy.shape[-1])
    stretches = np.lib.stride_tricks.sliding_window_view(accuracy, width, axis=-1).mean(axis=-1)
    return tail(accuracy) < COLLAPSE * stretches.max(axis=-1)


def interval(values) -> tuple[float, float]:
    """95% interval of the mean over seeds, by Student's t; that of one value is the value."""
    values = np.asarray(values, float)
    if len(values) < 2:
        return float(values[0]), float(values[0])
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def share_interval(yes) -> tuple[float, float]:
    """95% interval of a share, by Wilson: of seeds that are True."""
    found = stats.binomtest(int(np.sum(yes)), len(yes)).proportion_ci(method="wilson")
    return float(found.low), float(found.high)


def cell(curves: dict, rate: int) -> dict:
    """Numbers of a batch's trials at the rate of that index; `_of`: a value for each seed."""
    accuracy, length = np.array(curves["accuracy"][rate], float), np.array(curves["length"][rate])
    final, lost = tail(accuracy), collapsed(accuracy)
    clipped = np.nan_to_num(np.array(curves["clipped"][rate], float)).mean(axis=1)
    return {
        "accuracy": float(final.mean()),
        "interval": interval(final),
        "accuracy_of": _rounded(final),
        "collapsed": float(lost.mean()),
        "collapsed_interval": share_interval(lost),
        "format": float(tail(curves["format"][rate]).mean()),
        "length_first": float(length[:, 0].mean()),
        "length": float(tail(length).mean()),
        "length_kept_of": _rounded(tail(length) / length[:, 0]),
        "clipped": float(clipped.mean()),
        "clipped_of": _rounded(clipped),
        "ratio_max": _largest(curves["ratio_max"][rate]),
        "grad_norm_max": _largest(curves["grad_norm_max"][rate]),
    }


def rows(found: Sequence[tuple[Batch, dict]], scale: Scale) -> list[dict]:
    """A row a batch: every rate's cell, the best rate (by accuracy) and the common rate."""
    made = []
    for batch, curves in found:
        cells = [cell(curves, index) for index in range(len(batch.rates))]
        best = int(np.argmax([c["accuracy"] for c in cells]))
        common_rate = scale.common_rate(batch.task)
        made.append(
            {
                "part": batch.part,
                "task": batch.task,
                "label": batch.label,
                "rates": list(batch.rates),
                "cells": cells,
                "best_rate": batch.rates[best],
                "best": cells[best],
                "common_rate": common_rate,
                "common": cells[batch.rates.index(common_rate)]
                if common_rate in batch.rates
                else None,
            }
        )
    return made


def of_part(made: Sequence[dict], task: str, part: str) -> list[dict]:
    """Rows of a part; before the ablations those that leave out a component of CPGD."""
    rows = [row for row in made if row["task"] == task and row["part"] == part]
    if part == "ablation" and rows:
        without = (r for r in made if (r["task"], r["part"]) == (task, "main"))
        rows = [_at_common(r) for r in without if r["label"] in COMPONENTS and r["common"]] + rows
    return rows


def _at_common(row: dict) -> dict:
    """A row of several rates as if only the common one had been run."""
    rate = row["rates"][row["cells"].index(row["common"])]
    return row | {"rates": [rate], "cells": [row["common"]], "best": row["common"]}


def against(made: Sequence[dict], task: str, name: str = "cpgd") -> list[dict]:
    """Accuracy of `name` minus each other row's, seed by seed: at own best and common rates.

    A seed's trials begin from one policy and see the same problems, so differences are paired.
    """
    main = {row["label"]: row for row in made if row["part"] == "main" and row["task"] == task}
    ours = main.pop(name, None)
    return [
        {"label": label} | {at: _difference(ours[at], row[at]) for at in ("best", "common")}
        for label, row in main.items()
        if ours
    ]


def _difference(ours: dict | None, theirs: dict | None) -> dict | None:
    if not (ours and theirs):
        return None
    of = np.subtract(ours["accuracy_of"], theirs["accuracy_of"])
    return {
        "difference": float(of.mean()),
        "interval": interval(of),
        "collapsed": (ours["collapsed"], theirs["collapsed"]),
    }


def phenomena(made: Sequence[dict], task: str) -> list[dict]:
    """Figure 1's claims, each held against every rate of the main comparison on a task."""
    main = {row["label"]: row for row in made if row["part"] == "main" and row["task"] == task}
    claims = [(name, "collapses", _collapses) for name in COLLAPSES]
    claims += [(name, "stays stable", _stable) for name in STABLE]
    claims += [(name, "loses response length", _shortens) for name in SHORTENS]
    claims += [(name, "clips about 1% of tokens", _clips) for name in CLIPPED]
    return [
        {"label": name, "claim": claim} | _held(main[name], test)
        for name, claim, test in claims
        if name in main
    ]


def _held(row: dict, test) -> dict:
    tried = [test(c) for c in row["cells"]]  # (holds, value, interval)
    at = [rate for rate, (yes, *_) in zip(row["rates"], tried, strict=True) if yes]
    verdict = "reproduced" if row["common_rate"] in at else "partly" if at else "not"
    return {
        "verdict": verdict,
        "rates": row["rates"],
        "values": [value for _, value, _ in tried],
        "intervals": [bounds for *_, bounds in tried],
        "at": at,
    }


def _collapses(cell):
    return cell["collapsed"] >= 0.5, cell["collapsed"], cell["collapsed_interval"]


def _stable(cell):
    return cell["collapsed"] == 0, cell["collapsed"], cell["collapsed_interval"]


def _shortens(cell):
    kept = float(np.mean(cell["length_kept_of"]))
    return kept < 0.8 and cell["format"] >= 0.8, kept, interval(cell["length_kept_of"])


def _clips(cell):
    return 0.003 <= cell["clipped"] <= 0.03, cell["clipped"], interval(cell["clipped_of"])


def _rounded(values) -> list[float]:
    return [round(float(x), 5) for x in values]


def _largest(values) -> float | None:
    values = np.array(values, float)
    return float(np.nanmax(values)) if np.isfinite(values).any() else None
