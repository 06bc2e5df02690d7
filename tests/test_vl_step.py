"""A train step on packed rows with images against repeated plain rows: the value, each gradient."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import plain
import pytest
import tiny
import vl
from batches import train_batch
from flax import nnx
from test_packed_step import ROW, assert_equal

from cpgd_jax import models, optim, run, sharding, train, vision
from cpgd_jax.losses.policy import policy_loss
from cpgd_jax.models import seeing
from cpgd_jax.ops import masked
from cpgd_jax.rollout import scoring
from cpgd_jax.train_step import init_state
from cpgd_jax.types import Sight

CONFIG = dataclasses.replace(vl.CONFIG, init_std=0.15)
GRIDS = [[vl.WIDE], [], [vl.SMALL, vl.TALL], [vl.SMALL]]
LENGTHS = [[3, 8], [2, 5], [7, 1], [0, 0]]
PARAMS = {
    "frozen": lambda params: optim.freeze(params, ("visual.*",)),
    "trained": lambda params: params,
}


def prompts_and_batch(model, keep_patches):
    """(seen of each group, batch)."""
    made = [vl.prompt(grids, seed) for seed, grids in enumerate(GRIDS)]
    rows, images = zip(*made, strict=True)
    seen = seeing.look(*nnx.split(model), rows, images, keep_patches=keep_patches)
    token_QS, mask_QS = vl.padded(rows, "left")
    batch = train_batch([len(ids) for ids in rows], LENGTHS, vocab_size=vl.IMAGE)
    at = batch.group_B
    return seen, batch.replace(prompt_BS=token_QS[at], prompt_mask_BS=mask_QS[at])


@pytest.fixture(scope="module")
def model():
    return models.make(CONFIG, nnx.Rngs(0))


def sight_of(model, seen, batch) -> Sight:
    """Each row's own, its images seen by the model as it is."""
    S, B, T = batch.prompt_BS.shape[1], *batch.mask_BT.shape
    feature_BUD, position_BU3 = [], np.zeros((B, S + T, 3), np.int32)
    for b, q in enumerate(batch.group_B):
        (column,) = np.nonzero(batch.prompt_mask_BS[b])
        place_S3 = np.arange(len(column))[:, None] if seen[q] is None else seen[q].position_S3
        position_BU3[b, column] = place_S3
        position_BU3[b, S:] = place_S3[-1] + 1 + np.arange(T)[:, None]
        feature_UD = jnp.zeros((S + T, CONFIG.hidden_size))
        if seen[q] is not None:
            patches = jax.tree.map(lambda x: jnp.asarray(x)[None], seen[q].patches)
            feature_UD = feature_UD.at[column[seen[q].at_F]].set(model.see(patches)[0])
        feature_BUD.append(feature_UD)
    return Sight(jnp.asarray(position_BU3), jnp.stack(feature_BUD))


@pytest.fixture(scope="module")
def repeated(model):
    """(loss, gradients) of every row by itself, padded, its images seen anew."""
    seen, batch = prompts_and_batch(model, True)
    graphdef, params = nnx.split(model)
    rows = (batch.prompt_BS, batch.prompt_mask_BS, batch.response_BT, batch.mask_BT)

    def loss(params):
        model = nnx.merge(graphdef, params)
        sight, hidden = sight_of(model, seen, batch), model.hidden
        model.hidden = lambda token, mask: hidden(token, mask, sight)
        logp_BT, entropy_BT = plain.response_logprobs(model, *rows)
        arrays = {k: getattr(batch, k) for k in ("old_logp_BT", "mask_BT", "group_B")}
        arrays |= dict(logp_BT=logp_BT, entropy_BT=entropy_BT, advantage_B=batch.advantage_BT)
        return policy_loss(ROW, **arrays)[0], logp_BT

    (value, logp_BT), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert all(np.abs(g).max() > 1e-7 for g in jax.tree.leaves(grads))
    return value, grads, np.asarray(logp_BT)


def fake_run(model, kind, mesh=None, microbatch_size=4, row_len=0):
    mesh, optimizer = mesh or sharding.make_mesh(devices=jax.devices()[:1]), optax.sgd(1.0)
    graphdef, params = nnx.split(model)
    state = init_state(PARAMS[kind](jax.tree.map(jnp.copy, params)), optimizer)
    state = jax.device_put(state, sharding.param_shardings(mesh, state))
    size = dict(train__microbatch_size=microbatch_size, train__minibatch_size=8)
    given = types.SimpleNamespace(config=tiny.config(**size), graphdef=graphdef, mesh=mesh)
    given.optimizer, given.shardings = optimizer, jax.tree.map(lambda x: x.sharding, state)
    given.row_len, given.pack = row_len, lambda *args: run.Run.pack(given, *args)
    return given, state


def packed_step(model, kind, **kwargs):
    """(loss, gradients); the gradient of what is frozen is 0."""
    seen, batch = prompts_and_batch(model, kind == "trained")
    given, state = fake_run(model, kind, **kwargs)
    before = jax.device_get(state.params)
    state, metrics = train.make_step(given, ROW)(state, given.pack(batch, seen))
    grads = jax.tree.map(lambda x, y: x - y, before, jax.device_get(state.params))
    metrics = masked.to_host(metrics)
    return sum(v for k, v in metrics.items() if k.startswith("loss/")), grads


@pytest.mark.parametrize("kind", PARAMS)
@pytest.mark.parametrize("cut", [(8, 0), (2, 64)], ids=str)
def test_packed_equals_repeated(model, repeated, kind, cut):
    value, grads = packed_step(model, kind, microbatch_size=cut[0], row_len=cut[1])
    expected = repeated[1]
    if kind == "frozen":
        assert not any(np.abs(g).max() for g in jax.tree.leaves(grads["visual"]))
        grads, expected = (
            nnx.State({k: v for k, v in g.items() if k != "visual"}) for g in (grads, expected)
        )
    assert_equal((value, grads), (repeated[0], expected))


@pytest.mark.parametrize("kind", PARAMS)
def test_devices_change_nothing(model, repeated, kind):
    mesh = sharding.make_mesh(2, 2, 1)
    value, grads = packed_step(model, kind, microbatch_size=8, mesh=mesh)
    assert_equal((value, grads["blocks"]), (repeated[0], repeated[1]["blocks"]))


@pytest.mark.parametrize("keep_patches", [False, True])
def test_scores(model, repeated, keep_patches):
    seen, batch = prompts_and_batch(model, keep_patches)
    rows = (batch.prompt_BS, batch.prompt_mask_BS, batch.response_BT, batch.mask_BT)
    found, _ = scoring.score_rollout(
        *nnx.split(model),
        *rows,
        temperature=1.0,
        microbatch_size=4,
        group_B=batch.group_B,
        seen=seen,
    )
    np.testing.assert_allclose(found, repeated[2], rtol=0, atol=1e-5)


def test_other_images_compile_nothing_new(model):
    given, state = fake_run(model, "trained")
    step, rng = train.make_step(given, ROW), np.random.default_rng(0)
    seen, batch = prompts_and_batch(model, True)
    state, _ = step(state, given.pack(batch, seen))
    order = rng.permutation(len(GRIDS))  # other groups, of the same sizes in all
    renamed = batch.replace(group_B=np.argsort(order)[batch.group_B].astype(np.int32))
    with tiny.compilations() as compiled:
        step(state, given.pack(renamed, tuple(seen[q] for q in order)))
    assert not compiled


def test_windows_of_many_prompts_in_a_row():
    """Rows are filled up to a power of two windows; each token finds its unit."""
    parts = [vision.windows(vl.image(g), vl.SIZES) for g in (vl.WIDE, vl.SMALL)]
    joined = vision.join(parts)
    assert len(joined.frame_N) == 3 + 1 and joined.frame_N.tolist() == [0, 0, 0, 1]
    assert joined.unit_F[-4:].tolist() == [48, 49, 50, 51]
