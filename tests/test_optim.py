"""AdamW as configured: the schedule counts optimiser steps, norms and biases do not decay."""

import dataclasses
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny
from flax import nnx

from cpgd_jax import checkpoint, models, optim, supervised
from cpgd_jax.errors import UserError
from cpgd_jax.train_step import init_state

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


def model_params(**change):
    sizes = models.ModelConfig(8, 2, 8, 8, 2, 1, 4, tie_embeddings=False, **change)
    return nnx.split(models.Qwen2(sizes, nnx.Rngs(0)))[1]


def names(state):
    return {".".join(path) for path, _ in nnx.to_flat_state(state)}


def test_patterns_freeze_paths():
    params = model_params()
    frozen = {"embed", "blocks.attention_norm", "blocks.mlp_norm", "blocks.mlp.up"}
    marked = optim.freeze(params, ("embed", "blocks.*_norm", "blocks.mlp.u*"))
    trained, kept = optim.split(marked)
    assert names(kept) == frozen and names(trained) == names(params) - frozen
    assert jax.tree.structure(nnx.merge_state(trained, kept)) == jax.tree.structure(marked)
    assert names(optim.split(params)[1]) == set()
    for path, value in nnx.to_flat_state(marked):
        assert value.get_metadata()["logical_axes"], path


def test_patterns_that_match_nothing_or_everything():
    with pytest.raises(UserError) as error:
        optim.freeze(model_params(), ("embed", "visual.up"))
    assert "'visual.up' matches no parameter; nearest: blocks.mlp.up" in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="leaves no parameter to train"):
        optim.freeze(model_params(), ("*",))


def test_frozen_parameters_take_no_memory_of_the_optimiser():
    optimizer = optim.make_optimizer(CONFIG, 10)
    marked = optim.freeze(model_params(), ("blocks.*",))
    state = init_state(marked, optimizer)
    rest = {"embed", "unembed", "final_norm"}
    numbers = sum(x.size for path, x in nnx.to_flat_state(marked) if path[0] in rest)
    assert sum(x.size for x in jax.tree.leaves(state.opt_state) if x.ndim) == 2 * numbers


ROUNDED = (1.0013, -1.0013, 3e-5, -250.3, 1e30)


@pytest.mark.parametrize("value", ROUNDED)
def test_stochastic_rounding_is_unbiased(value):
    x = np.float32(value)
    got = optim.stochastic_round(jnp.full(100_000, x), jax.random.key(0))
    assert got.dtype == jnp.bfloat16
    got = np.asarray(got, np.float64)
    low, high = np.unique(got)
    below = (np.frombuffer(x.tobytes(), np.uint32) & 0xFFFF0000).view(np.float32)[0]
    assert below in (low, high) and low < x < high
    share = (x - low) / (high - low)
    deviation = np.sqrt(share * (1 - share) / len(got))
    assert (got == high).mean() == pytest.approx(share, abs=4 * deviation)


def test_stochastic_rounding_keeps_what_bfloat16_holds():
    x = jnp.array([0.0, -0.0, 1.5, -(2.0**-120), jnp.inf, -jnp.inf, jnp.nan, 3.3895314e38])
    for seed in range(20):
        got = optim.stochastic_round(x, jax.random.key(seed)).astype(jnp.float32)
        np.testing.assert_array_equal(got, x)


BFLOAT16 = dataclasses.replace(
    CONFIG, lr=1e-4, weight_decay=0.0, grad_clip=1e9, master_dtype="bfloat16"
)


def walk(seed, steps=50, size=4096, config=BFLOAT16):
    """Weights of 1 and gradients of 1: Adam lowers them by lr a step, a fortieth of a bfloat16's
    distance."""
    optimizer = optim.make_optimizer(config, 10_000, seed)
    params = {"w": jnp.ones((size, 1), config.master_dtype)}
    state = optimizer.init(params)

    @jax.jit
    def step(params, state):
        grads = jax.tree.map(lambda x: jnp.ones(x.shape, jnp.float32), params)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for _ in range(steps):
        params, state = step(params, state)
    return params["w"], state


def test_bfloat16_masters_move_by_small_updates_on_average():
    weights, state = walk(seed=0)
    exact, _ = walk(seed=0, size=1, config=dataclasses.replace(BFLOAT16, master_dtype="float32"))
    assert weights.dtype == jnp.bfloat16
    moved = 1 - np.asarray(weights, np.float64)
    assert moved.mean() == pytest.approx(1 - float(exact[0, 0]), rel=0.05)
    assert set(np.unique(moved)) <= set(np.arange(-1, 20) / 256)
    moments = [x for x in jax.tree.leaves(state) if x.ndim]
    assert {x.dtype for x in moments} == {jnp.dtype("float32")}


def test_bfloat16_masters_repeat_by_seed_and_step():
    first, again, other = (np.asarray(walk(seed, 5)[0], np.float32) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    rounded = np.asarray(walk(3, 1)[0], np.float32) != 1
    fell = first < 1
    assert (rounded != fell).any()  # another step rounds other weights


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_run_with_frozen_parameters_and_bfloat16_masters(tmp_path):
    changes = dict(stage="supervised", rollout__max_response_len=16, supervised__steps=4)
    changes |= dict(optim__freeze=["embed", "*_norm"], optim__master_dtype="bfloat16")
    config = tiny.config(**changes, optim__lr=1e-2, checkpoint__every=2)
    supervised.train(config, str(tmp_path / "run"))
    sizes = checkpoint.model_config(config.model)
    sizes = dataclasses.replace(sizes, vocab_size=checkpoint.sizes(tmp_path / "run").vocab_size)
    start = dict(nnx.to_flat_state(nnx.state(models.Qwen2(sizes, nnx.Rngs(config.seed)))))
    end = nnx.to_flat_state(nnx.state(checkpoint.load_model(tmp_path / "run")[0]))
    for path, value in end:
        stored = start[path][...].astype(jnp.bfloat16).astype(jnp.float32)
        frozen = path[-1] == "embed" or path[-1].endswith("_norm")
        assert value[...].dtype == jnp.float32
        assert (value[...] == stored).all() == frozen, path

    kept = tiny.params_of(tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    (tmp_path / "run" / "summary.json").unlink()
    supervised.train(config, str(tmp_path / "run"))
    tiny.assert_equal(tiny.params_of(tmp_path / "run"), kept)
