"""Masked reductions: a masked slot may hold NaN, inf or 1e9 and changes neither value nor gradient.

Metrics travel as `Mean(sum, count)` or `Max(value)` and are divided on the host only, so adding up
microbatches, devices or hosts gives what one batch would have given.
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


def fill(x, mask, value=0.0):
    """`x` where `mask`, else `value`: use before any arithmetic, so that the gradient is exactly 0 there."""
    chex.assert_equal_shape((x, mask))
    return jnp.where(mask, x, jnp.asarray(value, x.dtype))


def mean(x, mask) -> Mean:
    """Mean of `x` over True slots, as (sum, count)."""
    return Mean(fill(x, mask).sum(dtype=jnp.float32), mask.sum(dtype=jnp.float32))


def maximum(x, mask, empty=0.0) -> Max:
    """Maximum of `x` over True slots; `empty` when there is none."""
    value = jnp.max(fill(x, mask, -jnp.inf), initial=-jnp.inf)
    return Max(jnp.where(mask.any(), value, empty).astype(jnp.float32))


def merge(a: dict, b: dict) -> dict:
    """Metrics of two disjoint parts of one batch -> metrics of the batch."""
    if a.keys() != b.keys():
        raise ValueError(f"metric names differ: {sorted(a.keys() ^ b.keys())}")
    return {k: _merge_one(a[k], b[k]) for k in a}


def _merge_one(a, b):
    if isinstance(a, Mean):
        return Mean(a.sum + b.sum, a.count + b.count)
    return Max(jnp.maximum(a.value, b.value))


def to_host(metrics: dict) -> dict[str, float]:
    """Divides: name -> float. A mean over nothing is 0."""
    metrics = jax.device_get(metrics)
    return {
        k: float(m.value) if isinstance(m, Max) else float(m.sum / m.count) if m.count else 0.0
        for k, m in metrics.items()
    }
