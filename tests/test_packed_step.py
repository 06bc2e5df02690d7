"""A step on packed rows against plain rows: the value and every gradient, however it is cut."""

import dataclasses

import jax
import numpy as np
import plain
import pytest
import tiny
from batches import train_batch
from flax import nnx
from test_train_step import fake_run

from cpgd_jax import packing, sharding, train
from cpgd_jax.algorithms import ALGORITHMS
from cpgd_jax.losses.policy import policy_loss
from cpgd_jax.ops import masked

ROW = dataclasses.replace(ALGORITHMS["cpgd"], entropy_coef=0.01)
RAGGED = dict(prompts=[5, 1, 30, 9], lengths=[[3, 40, 1, 8], [2, 2, 2, 2], [50, 0, 7, 33], [0] * 4])
BATCHES = {
    "ragged": RAGGED,
    "one_group": dict(prompts=[7], lengths=[[4, 90, 1, 20]]),
    "one_response_each": dict(prompts=[7, 2, 20, 4], lengths=[[5], [30], [2], [9]]),
    "longer_than_the_others_together": dict(prompts=[3, 3], lengths=[[200, 4], [5, 6]]),
}


def make_batch(name):
    batch = train_batch(**BATCHES[name], vocab_size=32)
    if name == "ragged":  # a response that was filtered
        batch.mask_BT[4] = False
    return batch


@pytest.fixture(scope="module", params=BATCHES)
def batch(request):
    return make_batch(request.param)


@pytest.fixture(scope="module")
def repeated(batch):
    return plain_step(batch)


def plain_step(batch):
    """(loss, gradients) of every row by itself, padded."""
    given, state = fake_run()

    def loss(params):
        rows = (batch.prompt_BS, batch.prompt_mask_BS, batch.response_BT, batch.mask_BT)
        logp_BT, entropy_BT = plain.response_logprobs(nnx.merge(given.graphdef, params), *rows)
        arrays = {k: getattr(batch, k) for k in ("old_logp_BT", "mask_BT", "group_B")}
        arrays |= dict(logp_BT=logp_BT, entropy_BT=entropy_BT, advantage_B=batch.advantage_BT)
        return policy_loss(ROW, **arrays)[0]

    value, grads = jax.jit(jax.value_and_grad(loss))(state.params)
    assert all(np.abs(g).max() > 1e-4 for g in jax.tree.leaves(grads))
    return value, grads


def packed_step(batch, attention="auto", **kwargs):
    """(loss, gradients) of the train step: an update of plain descent is the gradient."""
    given, state = fake_run(**kwargs)
    model = nnx.merge(given.graphdef, state.params)
    model.config = dataclasses.replace(model.config, attention=attention)
    given.graphdef, before = nnx.graphdef(model), jax.device_get(state.params)
    state, metrics = train.make_step(given, ROW)(state, given.pack(batch))
    grads = jax.tree.map(lambda x, y: x - y, before, jax.device_get(state.params))
    metrics = masked.to_host(metrics)
    return sum(v for k, v in metrics.items() if k.startswith("loss/")), grads


def assert_equal(found, expected):
    """To 1e-5 of each array's largest gradient, beyond what an update of the parameter rounds."""
    assert float(found[0]) == pytest.approx(float(expected[0]), rel=1e-5)
    for x, y in zip(*map(jax.tree.leaves, (found[1], expected[1])), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max() + 2e-7)


@pytest.mark.parametrize("attention", ["dense", "chunked"])
def test_packed_equals_repeated(attention, batch, repeated):
    assert_equal(packed_step(batch, attention, microbatch_size=len(batch.mask_BT)), repeated)


@pytest.mark.parametrize(("microbatch_size", "row_len"), [(8, 0), (2, 0), (1, 0), (16, 64)])
def test_microbatches_and_rows_change_nothing(microbatch_size, row_len):
    batch = make_batch("ragged")
    found = packed_step(batch, microbatch_size=microbatch_size, row_len=row_len)
    assert_equal(found, plain_step(batch))


@pytest.mark.parametrize("sizes", [(4, 1, 1), (1, 2, 2)], ids=str)
@pytest.mark.parametrize("attention", ["dense", "chunked"])
def test_devices_change_nothing(sizes, attention):
    batch, mesh = make_batch("ragged"), sharding.make_mesh(*sizes)
    assert_equal(packed_step(batch, attention, microbatch_size=8, mesh=mesh), plain_step(batch))


def test_the_order_of_the_responses_changes_nothing():
    batch = make_batch("ragged")
    order = np.random.default_rng(0).permutation(len(batch.mask_BT))
    shuffled = jax.tree.map(lambda x: x[order], batch)
    assert_equal(packed_step(shuffled, microbatch_size=4), packed_step(batch, microbatch_size=4))


def test_a_run_of_many_lengths_compiles_few_programs():
    given, state = fake_run(microbatch_size=4)
    step, rng, shapes = train.make_step(given, ROW), np.random.default_rng(0), set()
    batches = [
        train_batch([5, 9], rng.integers(0, 1 + 10 * i, (2, 4)).tolist(), T=128, vocab_size=32)
        for i in range(1, 12)
    ]
    micros = [given.pack(batch) for batch in batches]
    shapes = {micro.packed.token_WU.shape for micro in micros}
    assert len(shapes) <= len({packing.bucket(n) for n in range(4 * 110)}) == 7
    with tiny.compilations() as programs:
        for micro in micros:
            state, _ = step(state, micro)
    assert len(programs) <= len(shapes)
    with tiny.compilations() as programs:
        for micro in reversed(micros):
            state, _ = step(state, micro)
    assert not programs
