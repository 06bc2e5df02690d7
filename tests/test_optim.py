"""AdamW as configured: the schedule counts optimiser steps, norms and biases do not decay."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from cpgd_jax import models, optim
from cpgd_jax.errors import UserError

CONFIG = dataclasses.replace(tiny.config().optim, lr=0.1, lr_end_frac=0.1)


def test_cosine_from_lr_to_its_end():
    lr = optim.schedule(CONFIG, 100)
    for step in (0, 1, 25, 50, 99, 100):
        expected = 0.01 + 0.09 * (1 + math.cos(math.pi * step / 100)) / 2
        assert float(lr(step)) == pytest.approx(expected, rel=1e-5)
    assert float(lr(1000)) == pytest.approx(0.01)


def test_warm_up():
    lr = optim.schedule(dataclasses.replace(CONFIG, warmup_steps=4), 20)
    assert [float(lr(i)) for i in range(5)] == pytest.approx([0, 0.025, 0.05, 0.075, 0.1])
    assert float(lr(20)) == pytest.approx(0.01)
    with pytest.raises(UserError, match="warmup_steps 20 is not below the run's 20"):
        optim.schedule(dataclasses.replace(CONFIG, warmup_steps=20), 20)


def updates(config, grads, params, total_steps=10, steps=1):
    optimizer = optim.make_optimizer(config, total_steps)
    state = optimizer.init(params)
    for _ in range(steps):
        update, state = optimizer.update(grads, state, params)
        params = jax.tree.map(jnp.add, params, update)
    return params


def test_one_step_by_hand():
    """Adam's first step is the sign of the gradient; the decay is lr * weight_decay * w."""
    params = {"w": jnp.array([[2.0, -1.0]]), "final_norm": jnp.array([2.0])}
    grads = {"w": jnp.array([[0.3, -0.2]]), "final_norm": jnp.array([0.1])}
    config = dataclasses.replace(CONFIG, weight_decay=0.5)
    new = updates(config, grads, params)
    np.testing.assert_allclose(new["w"], [[2 - 0.1 - 0.1, -1 + 0.1 + 0.05]], rtol=1e-4)
    np.testing.assert_allclose(new["final_norm"], [2 - 0.1], rtol=1e-4)


def test_a_large_gradient_is_clipped_by_its_global_norm():
    """Clipping rescales all leaves alike; seen through Adam's eps, made large here."""
    params = {"a": jnp.zeros((1, 1)), "b": jnp.zeros((1, 1))}
    grads = {"a": jnp.full((1, 1), 30.0), "b": jnp.full((1, 1), 40.0)}
    config = dataclasses.replace(CONFIG, eps=1e6, weight_decay=0.0)
    new = updates(config, grads, params)
    for name, clipped in (("a", 0.6), ("b", 0.8)):
        np.testing.assert_allclose(new[name], -0.1 * clipped / (clipped + 1e6), rtol=1e-4)


def test_the_schedule_counts_optimiser_steps():
    params, grads = {"w": jnp.zeros((1, 1))}, {"w": jnp.ones((1, 1))}
    config = dataclasses.replace(CONFIG, weight_decay=0.0, eps=1e-12, grad_clip=10.0)
    walked = [float(updates(config, grads, params, steps=n)["w"][0, 0]) for n in range(4)]
    lr = optim.schedule(config, 10)
    np.testing.assert_allclose(-np.diff(walked), [float(lr(i)) for i in range(3)], rtol=1e-4)


def test_matrices_decay_and_scales_and_biases_do_not():
    sizes = models.ModelConfig(8, 1, 8, 8, 2, 1, 4, tie_embeddings=False)
    params = nnx.split(nnx.eval_shape(lambda: models.Qwen2(sizes, nnx.Rngs(0))))[1]
    flat = {
        jax.tree_util.keystr(path, simple=True, separator="."): decays
        for path, decays in jax.tree.leaves_with_path(optim.decays(params))
    }
    kept = {name for name, decays in flat.items() if not decays}
    assert {name for name in flat if "norm" in name or "bias" in name} == kept
    assert len(kept) == 6 and len(flat) == 15
