"""Masked reductions: a masked slot may hold NaN, inf or 1e9 and changes neither value nor gradient.

Metrics travel as `Mean(sum, count)`, `Max(value)` or `Sum(value)` and are divided on the host only,
so adding up microbatches, devices or hosts gives what one batch would have given.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp


class Mean(NamedTuple):
    sum: jax.Array
    count: jax.Array


class Max(NamedTuple):
    value: jax.Array


class Sum(NamedTuple):
    """A share of a total: parts of one optimiser step add up, as weighted losses and counts do."""

    value: jax.Array


class Rows(NamedTuple):
    """A number of each response: which of them a metric is about. Kept apart, never reduced."""

    value: jax.Array  # [B]


def fill(x, mask, value=0.0):
    """`x` where `mask`, else `value`: before any arithmetic, so that the gradient is exactly 0."""
    chex.assert_equal_shape((x, mask))
    return jnp.where(mask, x, jnp.asarray(value, x.dtype))


def mean(x, mask) -> Mean:
    """Mean of `x` over True slots, as (sum, count)."""
    return Mean(fill(x, mask).sum(dtype=jnp.float32), mask.sum(dtype=jnp.float32))


def maximum(x, mask, empty=0.0) -> Max:
    """Maximum of `x` over True slots; `empty` when there is none."""
    value = jnp.max(fill(x, mask, -jnp.inf), initial=-jnp.inf)
    return Max(jnp.where(mask.any(), value, empty).astype(jnp.float32))


def totals(sums: dict, largest_BT, mask_BT):
    """Sum of each [B, T] array and the maximum of one more, over True slots, in a single pass.

    One reduction of many operands: separate reductions would each go through the batch again.
    For metrics: not differentiable. The maximum over nothing is -inf.
    """
    arrays = [fill(jnp.asarray(x, jnp.float32), mask_BT) for x in sums.values()]
    arrays.append(fill(largest_BT, mask_BT, -jnp.inf))
    starts = [jnp.float32(0.0)] * len(sums) + [jnp.float32(-jnp.inf)]
    # Over T first, so that rows are reduced where the mesh has put them.
    *rows, largest_B = jax.lax.reduce(arrays, starts, _add_and_maximum, (1,))
    totals = {k: row_B.sum() for k, row_B in zip(sums, rows, strict=True)}
    return totals, largest_B.max(initial=-jnp.inf)


def _add_and_maximum(a, b):
    added = [x + y for x, y in zip(a[:-1], b[:-1], strict=True)]
    return [*added, jnp.maximum(a[-1], b[-1])]


def merge(a: dict, b: dict) -> dict:
    """Metrics of two disjoint parts of one batch -> metrics of the batch."""
    if a.keys() != b.keys():
        raise ValueError(f"metric names differ: {sorted(a.keys() ^ b.keys())}")
    return {k: _merge_one(a[k], b[k]) for k in a}


def _merge_one(a, b):
    if isinstance(a, Mean):
        return Mean(a.sum + b.sum, a.count + b.count)
    if isinstance(a, Sum):
        return Sum(a.value + b.value)
    if isinstance(a, Rows):
        return Rows(jnp.concatenate([a.value, b.value]))
    return Max(jnp.maximum(a.value, b.value))


def total(stacked: dict) -> dict:
    """Metrics stacked on a leading axis of parts (a scan's output) -> metrics of the whole."""

    def one(m):
        if isinstance(m, Max):
            return Max(m.value.max(axis=0))
        if isinstance(m, Rows):
            return Rows(m.value.reshape(-1))
        return type(m)(*(x.sum(axis=0) for x in m))

    return {k: one(m) for k, m in stacked.items()}


def to_host(metrics: dict) -> dict[str, float]:
    """Divides: name -> float. A mean over nothing is 0. What belongs to single rows is left out."""
    metrics = jax.device_get(metrics)
    return {k: _number(m) for k, m in metrics.items() if not isinstance(m, Rows)}


def rows(metrics: dict) -> dict:
    """What belongs to single rows: name -> array [B] on the host."""
    found = {k: m.value for k, m in metrics.items() if isinstance(m, Rows)}
    return jax.device_get(found)


def _number(m) -> float:
    if isinstance(m, Mean):
        return float(m.sum / m.count) if m.count else 0.0
    return float(m.value)
