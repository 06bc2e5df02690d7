import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpgd_jax.ops import masked

X = np.array([[1.0, -2.0, np.nan], [4.0, np.inf, 1e9]], np.float32)
MASK = np.array([[True, True, False], [True, False, False]])


def test_mean_and_maximum_see_the_unmasked_only():
    host = masked.to_host({"mean": masked.mean(X, MASK), "max": masked.maximum(X, MASK)})
    assert host == {"mean": 1.0, "max": 4.0}
    nothing = np.zeros_like(MASK)
    host = masked.to_host({"mean": masked.mean(X, nothing), "max": masked.maximum(X, nothing)})
    assert host == {"mean": 0.0, "max": 0.0}


def test_gradient_is_exactly_zero_at_masked_slots():
    grad = jax.grad(lambda x: masked.mean(jnp.exp(masked.fill(x, MASK)), MASK).sum)(jnp.asarray(X))
    assert (np.asarray(grad)[~MASK] == 0).all() and (np.asarray(grad)[MASK] > 0).all()


def test_parts_merge_to_the_whole():
    def metrics(x, mask):
        return {
            "mean": masked.mean(x, mask),
            "max": masked.maximum(x, mask, empty=-np.inf),
            "sum": masked.Sum(masked.fill(jnp.asarray(x), mask).sum()),
        }

    parts = [metrics(X[i : i + 1], MASK[i : i + 1]) for i in range(2)]
    whole = masked.to_host(metrics(X, MASK))
    assert masked.to_host(functools.reduce(masked.merge, parts)) == whole
    assert whole == {"mean": 1.0, "max": 4.0, "sum": 3.0}
    with pytest.raises(ValueError, match="names differ"):
        masked.merge({"a": parts[0]["sum"]}, {"b": parts[0]["sum"]})


def test_shapes_must_agree():
    with pytest.raises(AssertionError):
        masked.fill(jnp.zeros((2, 3)), MASK[:, :1])


def test_totals_are_the_sums_and_the_maximum_of_the_unmasked():
    total, largest = masked.totals({"x": X, "n": MASK}, X - 5, MASK)
    assert (float(total["x"]), float(total["n"]), float(largest)) == (3.0, 3.0, -1.0)
    total, largest = masked.totals({"x": X}, X, np.zeros_like(MASK))
    assert (float(total["x"]), float(largest)) == (0.0, -np.inf)
