"""One optimiser step: how it is cut up, padded or spread over devices changes nothing."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import plain
import pytest
import tiny
from flax import nnx

from cpgd_jax import models, run, sharding, train
from cpgd_jax.algorithms import ALGORITHMS
from cpgd_jax.losses.policy import policy_loss
from cpgd_jax.ops import masked
from cpgd_jax.train_step import init_state, make_train_step
from cpgd_jax.types import Microbatches, Packed, TrainBatch

SIZES = models.ModelConfig(
    vocab_size=32, num_layers=1, hidden_size=16, mlp_size=32, num_heads=2, num_kv_heads=2,
    head_dim=8, rope_theta=1e4, init_std=0.3,
)  # fmt: skip
LENGTHS = [1, 9, 3, 9, 2, 7, 9, 1]  # two groups of four responses
S, T = 4, 9
AGGREGATIONS = [
    "prompt_token_mean",
    "token_mean",
    "seq_mean_token_mean",
    "seq_mean_token_sum",
    "constant_length",
]


def make_batch(S=S, T=T, seed=0) -> TrainBatch:
    """Ragged responses; widths beyond the defaults are padding, filled with other tokens."""
    rng = np.random.default_rng(seed)
    prompt = np.repeat(rng.integers(0, 32, (2, 4)), 4, axis=0).astype(np.int32)
    response = rng.integers(0, 32, (8, 9)).astype(np.int32)
    old = rng.normal(-3.4, 0.3, (8, 9)).astype(np.float32)
    advantage = np.repeat(rng.normal(size=(8, 1)), 9, axis=1).astype(np.float32)
    left, right = ((0, 0), (S - 4, 0)), ((0, 0), (0, T - 9))
    return TrainBatch(
        prompt_BS=np.pad(prompt, left, constant_values=7),
        prompt_mask_BS=np.pad(np.ones((8, 4), bool), left),
        response_BT=np.pad(response, right, constant_values=5),
        mask_BT=np.arange(T) < np.array(LENGTHS)[:, None],
        old_logp_BT=np.pad(old, right),
        advantage_BT=np.pad(advantage, right),
        group_B=np.repeat(np.arange(2, dtype=np.int32), 4),
    )


def fake_run(microbatch_size=8, mesh=None, optimizer=None, row_len=0):
    """What `train.make_step` reads of a run, and the first state."""
    mesh = mesh or sharding.make_mesh(devices=jax.devices()[:1])
    optimizer = optimizer or optax.sgd(1.0)  # an update is then the gradient itself
    graphdef, params = nnx.split(models.Qwen2(SIZES, nnx.Rngs(0)))
    state = init_state(params, optimizer)
    state = jax.device_put(state, sharding.param_shardings(mesh, state))
    size = max(microbatch_size, 8)
    config = tiny.config(train__microbatch_size=microbatch_size, train__minibatch_size=size)
    shardings = jax.tree.map(lambda x: x.sharding, state)
    given = types.SimpleNamespace(
        config=config, graphdef=graphdef, optimizer=optimizer, shardings=shardings, mesh=mesh
    )
    given.row_len = row_len
    given.pack = lambda batch: run.Run.pack(given, batch)
    return given, state


def one_step(batch, row=ALGORITHMS["cpgd"], **kwargs):
    given, state = fake_run(**kwargs)
    state, metrics = train.make_step(given, row)(state, given.pack(batch))
    return jax.device_get(state), masked.to_host(metrics)


def assert_same(a, b, tolerance=1e-6):
    (state_a, metrics_a), (state_b, metrics_b) = a, b
    leaves = zip(jax.tree.leaves(state_a.params), jax.tree.leaves(state_b.params), strict=True)
    for x, y in leaves:
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance)
    assert metrics_a.keys() == metrics_b.keys()
    for name, value in metrics_a.items():
        assert metrics_b[name] == pytest.approx(value, rel=1e-4, abs=1e-6), name


@pytest.fixture(scope="module")
def compiled():
    """A run and its step, compiled once for several tests."""
    given, _ = fake_run(optimizer=optax.adamw(1e-2))
    return given, train.make_step(given, ALGORITHMS["cpgd"])


def row_of(aggregation):
    return train.algorithm_row(tiny.config(loss__aggregation=aggregation))[0]


def direct_loss(batch, row):
    """The loss of the whole batch, without the train step."""
    given, state = fake_run()
    arrays = {k: getattr(batch, k) for k in ("old_logp_BT", "mask_BT", "group_B")}
    logp_BT = logp_of_responses(given, state.params, batch)
    row = dataclasses.replace(row, drift_coef=0.0)
    return float(policy_loss(row, logp_BT=logp_BT, advantage_B=batch.advantage_BT, **arrays)[0])


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_microbatches_equal_the_whole(aggregation):
    row = row_of(aggregation)
    whole = one_step(make_batch(), row, microbatch_size=8)
    assert whole[1]["grad_norm"] > 1e-3
    assert whole[1]["loss/policy"] == pytest.approx(direct_loss(make_batch(), row), rel=1e-4)
    assert_same(whole, one_step(make_batch(), row, microbatch_size=1))


def test_padding_changes_nothing():
    assert_same(one_step(make_batch()), one_step(make_batch(S=7, T=14)))


def test_masked_rows_change_nothing_bit_for_bit():
    """A response that is masked out may hold anything; the group's others are as without it."""
    batch = make_batch()
    mask_BT = batch.mask_BT.copy()
    mask_BT[[1, 6]] = False
    clean = one_step(batch.replace(mask_BT=mask_BT))
    old, advantage, response = (
        np.array(x) for x in (batch.old_logp_BT, batch.advantage_BT, batch.response_BT)
    )
    old[[1, 6]], advantage[[1, 6]], response[[1, 6]] = np.nan, np.inf, 3
    dirty = batch.replace(
        mask_BT=mask_BT, old_logp_BT=old, advantage_BT=advantage, response_BT=response
    )
    dirty = one_step(dirty)
    jax.tree.map(np.testing.assert_array_equal, clean[0], dirty[0])
    assert clean[1] == dirty[1]


def test_a_step_without_any_token_changes_nothing():
    batch = make_batch()
    given, state = fake_run()
    before = jax.device_get(state.params)
    batch = batch.replace(mask_BT=np.zeros_like(batch.mask_BT))
    after, metrics = train.make_step(given, ALGORITHMS["cpgd"])(state, given.pack(batch))
    jax.tree.map(np.testing.assert_array_equal, before, jax.device_get(after.params))
    metrics = masked.to_host(metrics)
    assert metrics["loss/policy"] == metrics["grad_norm"] == metrics["entropy"] == 0.0


def test_a_nan_reaches_the_metrics(compiled):
    given, step = compiled
    batch = make_batch()
    advantage = np.array(batch.advantage_BT)
    advantage[1, 0] = np.nan
    state = fake_run(optimizer=given.optimizer)[1]
    _, metrics = step(state, given.pack(batch.replace(advantage_BT=advantage)))
    assert np.isnan(masked.to_host(metrics)["loss/policy"])
    state = fake_run(optimizer=given.optimizer)[1]
    state = state.replace(params=jax.tree.map(lambda x: x * np.nan, state.params))
    metrics = masked.to_host(step(state, given.pack(batch))[1])
    assert np.isnan(metrics["loss/policy"]) and np.isnan(metrics["grad_norm"])


def test_the_state_is_donated_and_counts_its_steps(compiled):
    given, step = compiled
    state = fake_run(optimizer=given.optimizer)[1]
    first = state
    for _ in range(3):
        state, _ = step(state, given.pack(make_batch()))
    assert int(state.step) == 3
    assert all(x.is_deleted() for x in jax.tree.leaves(first))
    counts = [x for x in jax.tree.leaves(state.opt_state) if x.dtype == jnp.int32]
    assert counts and all(int(x) == 3 for x in counts)


def test_a_step_is_compiled_once_and_repeats_bit_for_bit(compiled):
    given, step = compiled

    def walk():
        state = fake_run(optimizer=given.optimizer)[1]
        batches = [given.pack(make_batch(seed=seed)) for seed in range(3)]
        with tiny.compilations() as programs:
            for batch in batches:
                state, _ = step(state, batch)
        return jax.device_get(state), programs

    (first, _), (again, programs) = walk(), walk()
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not programs


@pytest.mark.parametrize("sizes", [(4, 1, 1), (1, 4, 1), (2, 1, 2)], ids=str)
def test_meshes_equal_one_device(sizes):
    mesh = sharding.make_mesh(*sizes)
    given, state = fake_run(mesh=mesh)
    placed = jax.tree.map(lambda x: x.sharding, state)
    step = train.make_step(given, ALGORITHMS["cpgd"])
    batch = given.pack(make_batch())
    state, metrics = step(state, batch)
    one = one_step(make_batch())
    assert_same(one, (jax.device_get(state), masked.to_host(metrics)), 1e-5)
    jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim) or 1 / 0, state, placed)
    with tiny.compilations() as programs:
        step(state, batch)
    assert not programs


def logp_of_responses(given, params, batch):
    model = nnx.merge(given.graphdef, params)
    rows = (batch.prompt_BS, batch.prompt_mask_BS, batch.response_BT, batch.mask_BT)
    return np.array(plain.response_logprobs(model, *rows)[0])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_step_raises_what_was_good_and_lowers_what_was_bad(name):
    """On-policy, one response each of two prompts: A > 0 for one, A < 0 for the other."""
    given, state = fake_run(microbatch_size=2, optimizer=optax.sgd(1e-2))
    batch = jax.tree.map(lambda x: np.array(x[[3, 6]]), make_batch())
    before = logp_of_responses(given, state.params, batch)
    A = np.array([[1.0], [-1.0]], np.float32)
    batch = batch.replace(old_logp_BT=before, advantage_BT=np.broadcast_to(A, (2, T)).copy())
    state, _ = train.make_step(given, ALGORITHMS[name])(state, given.pack(batch))
    good, bad = (logp_of_responses(given, state.params, batch) - before).sum(axis=1)
    assert good > 1e-4 and bad < -1e-4


def test_gradients_are_added_up_in_float32():
    """bfloat16 parameters: 1 and then 256 gradients of 2^-9, each lost if added to a bfloat16 1."""
    share_M11 = np.full((257, 1, 1), 2.0**-9, np.float32)
    share_M11[0] = 1.0
    rows = TrainBatch(*[None] * 3, share_M11 > 0, 0 * share_M11, share_M11, None)
    packed = Packed(None, None, None, None, np.zeros((257, 1, 1), np.int32))
    params = nnx.State({"w": nnx.Param(jnp.zeros(1, jnp.bfloat16), logical_axes=("norm",))})
    state = init_state(params, optax.sgd(1.0))
    step = make_train_step(
        lambda params, packed: (params["w"][...].astype(jnp.float32)[None], jnp.zeros((1, 1))),
        lambda rows: rows.advantage_BT,
        lambda rows, logp_BT, entropy_BT, weight_BT: ((weight_BT * logp_BT).sum(), {}),
        optax.sgd(1.0),
        jax.tree.map(lambda x: x.sharding, state),
        sharding.make_mesh(devices=jax.devices()[:1]),
    )
    state, metrics = step(state, Microbatches(rows, packed))
    assert float(metrics["grad_norm"].value) == 1.5
    assert float(state.params["w"][...][0]) == -1.5
