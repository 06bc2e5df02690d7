"""Numbers of several responses an item: pass@k, maj@k, mean@k with bootstrap intervals."""

from collections.abc import Sequence
from math import comb

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95


def pass_at(n: int, correct: int, k: int) -> float:
    """The chance that one of k responses, drawn from n without replacement, is right: unbiased for
    k new ones (arXiv 2107.03374, equation 1)."""
    if not 0 <= correct <= n or not 1 <= k <= n:
        raise ValueError(f"needs 0 <= correct <= n and 1 <= k <= n, got {correct}, {n}, {k}")
    return 1.0 - comb(n - correct, k) / comb(n, k)


def majority(answers: Sequence[str], correct: Sequence[bool]) -> bool:
    """Whether the commonest answer is right; of equally common ones the first to come. "" is none
    and has no vote; all right answers are one, however they are written."""
    keys = ["\0right" if right else answer for answer, right in zip(answers, correct, strict=True)]
    votes = [key for key in keys if key]
    return bool(votes) and max(dict.fromkeys(votes), key=votes.count) == "\0right"


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The bootstrap interval (percentiles, LEVEL) of the mean; items are drawn, not responses."""
    value_N = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(0, len(value_N), (RESAMPLES, len(value_N)))
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(value_N[draws].mean(axis=1), [tail, 100 - tail])
    return float(low), float(high)


def ks(n: int) -> list[int]:
    """1, 2, 4, ... and n."""
    return sorted({1 << power for power in range(n.bit_length()) if 1 << power <= n} | {n})
