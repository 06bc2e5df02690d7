"""Numbers of the study: final accuracy, collapse, intervals over seeds, the paper's phenomena."""

from collections.abc import Sequence

import numpy as np

from cpgd_jax.stability.plan import Batch, Scale

TAIL = 0.1  # share of a trial's rollouts that its final values are means of
COLLAPSE = 0.5
COLLAPSE_MEANS = (
    "A trial has collapsed if the mean accuracy of its last tenth is below half of the highest mean"
    " of any stretch of that length."
)
RESAMPLES = 2000
# What Figure 1 of arXiv 2505.12504 shows
COLLAPSES = ("rloo", "reinforce_pp", "grpo_no_clip", "grpo")
STABLE = ("grpo_dual_clip", "grpo_drift", "pg", "cpg", "pgd", "cpgd")
SHORTENS = ("pg", "pgd")
CLIPPED = ("grpo", "cpg", "cpgd")


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


def interval(values, seed: int = 0) -> tuple[float, float]:
    """95% bootstrap interval of the mean over seeds (percentiles)."""
    values = np.asarray(values, float)
    picks = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def cell(curves: dict, rate: int) -> dict:
    """Numbers of a batch's trials at the rate of that index."""
    accuracy, length = np.array(curves["accuracy"][rate], float), np.array(curves["length"][rate])
    final = tail(accuracy)
    return {
        "accuracy": float(final.mean()),
        "interval": interval(final),
        "of_seeds": [round(float(x), 4) for x in final],
        "collapsed": float(collapsed(accuracy).mean()),
        "format": float(tail(curves["format"][rate]).mean()),
        "length_first": float(length[:, : window(length.shape[1])].mean()),
        "length": float(tail(length).mean()),
        "clipped": float(np.nan_to_num(np.array(curves["clipped"][rate], float)).mean()),
        "ratio_max": _largest(curves["ratio_max"][rate]),
        "grad_norm_max": _largest(curves["grad_norm_max"][rate]),
    }


def rows(found: Sequence[tuple[Batch, dict]], scale: Scale) -> list[dict]:
    """A row a batch: every rate's cell, the best rate (by accuracy) and the common rate."""
    made = []
    for batch, curves in found:
        cells = [cell(curves, index) for index in range(len(batch.rates))]
        best = int(np.argmax([c["accuracy"] for c in cells]))
        common = scale.common_rate in batch.rates
        made.append(
            {
                "part": batch.part,
                "task": batch.task,
                "label": batch.label,
                "rates": list(batch.rates),
                "cells": cells,
                "best_rate": batch.rates[best],
                "best": cells[best],
                "common": cells[batch.rates.index(scale.common_rate)] if common else None,
            }
        )
    return made


def phenomena(made: Sequence[dict], task: str) -> list[dict]:
    """Figure 1's claims, each held against every rate of the main comparison on a task."""
    main = {row["label"]: row for row in made if row["part"] == "main" and row["task"] == task}
    claims = [(f"{name} collapses", name, "collapsed", _at_least_half) for name in COLLAPSES]
    claims += [(f"{name} stays stable", name, "collapsed", _never) for name in STABLE]
    claims += [(f"{name} loses response length", name, "kept", _shorter) for name in SHORTENS]
    claims += [(f"{name} clips about 1% of tokens", name, "clipped", _near) for name in CLIPPED]
    return [
        _held(claim, main[name], number, test)
        for claim, name, number, test in claims
        if name in main
    ]


def _held(claim: str, row: dict, number: str, test) -> dict:
    values = [_number(c, number) for c in row["cells"]]
    held = [test(value) for value in values]
    verdict = "reproduced" if all(held) else "partly" if any(held) else "not"
    at = [rate for rate, yes in zip(row["rates"], held, strict=True) if yes]
    return {"claim": claim, "verdict": verdict, "measure": number, "values": values, "at": at}


def _number(cell: dict, name: str) -> float:
    """`kept`: length at the end as a share of that at the start."""
    return round(cell["length"] / cell["length_first"] if name == "kept" else cell[name], 4)


def _at_least_half(share):
    return share >= 0.5


def _never(share):
    return share == 0


def _shorter(share):
    return share < 0.8


def _near(share):
    return 0.003 <= share <= 0.03


def _largest(values) -> float | None:
    values = np.array(values, float)
    return float(np.nanmax(values)) if np.isfinite(values).any() else None
