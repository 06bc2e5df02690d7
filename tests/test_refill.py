"""Slots that refill, pages, narrowing, shards: the same texts, and no waiting for the longest."""

import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
import tiny
from flax import nnx

from cpgd_jax import sharding, types
from cpgd_jax.models.qwen2 import ModelConfig
from cpgd_jax.rollout import engine, generate, pad_prompts, programs, prompt_ids, scoring

V, T, G = 84, 90, 3
STOPS = (1, 30)  # a token ends a response with probability near 1/40
LENGTHS = (1, 5, 40, 2, 16, 17, 3, 9, 30, 4, 1, 12)
CONFIG = ModelConfig(V, 2, 16, 32, 4, 2, 4)


def prompts(lengths=LENGTHS):
    rng = np.random.default_rng(0)
    return [rng.integers(2, V, n).tolist() for n in lengths]


def make_model():
    model = tiny.random_model(CONFIG)
    model.embed[...] = model.embed[...] * 0.3  # a flat law: lengths spread
    return model


@pytest.fixture(scope="module")
def model():
    return make_model()


def over(mesh, model, **settings):
    """A rollout with the parameters split over a mesh."""
    params = nnx.split(model)[1]
    params = jax.device_put(params, sharding.param_shardings(mesh, params))
    return sample(model, params=params, **settings)


def sample(model, given=None, params=None, **settings):
    graphdef, own = nnx.split(model)
    given = given or prompts()
    settings = dict(group=G, max_new_tokens=T, key=(0, 0), stop_ids=STOPS) | settings
    return engine.sample(
        graphdef,
        own if params is None else params,
        *pad_prompts(given),
        prompt_id_Q=prompt_ids(given),
        **settings,
    )


def assert_same(a, b):
    np.testing.assert_array_equal(a.response_BT, b.response_BT)
    np.testing.assert_array_equal(a.mask_BT, b.mask_BT)
    np.testing.assert_array_equal(a.truncated_B, b.truncated_B)
    np.testing.assert_allclose(a.sampler_logp_BT, b.sampler_logp_BT, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def together(model):
    """All responses at once: nothing is refilled."""
    return sample(model, slots=len(LENGTHS) * G)


@pytest.fixture
def runs(monkeypatch):
    """(slots, pages, columns decoded) of each run of the decode loop."""
    seen, decode = [], programs.decode

    def spy(*args):
        *out, column = decode(*args)
        slots, pages, start = len(args[8].slots.start_B), len(args[8].pages.slot_U), args[-2]
        seen.append((slots, pages, int(column) - int(start)))
        return *out, column

    monkeypatch.setattr(programs, "decode", spy)
    return seen


# ---- the same texts


@pytest.mark.parametrize("slots", [1, 3, 8, 64])
def test_refill_changes_no_text(model, together, slots):
    assert_same(sample(model, slots=slots), together)


SLOW = [pytest.param(sizes, marks=pytest.mark.slow) for sizes in [(2, 1, 1), (1, 4, 1), (2, 1, 2)]]


@pytest.mark.parametrize("sizes", [(1, 2, 2), *SLOW], ids=str)
def test_a_mesh_changes_no_text(model, together, sizes):
    mesh = sharding.make_mesh(*sizes, devices=jax.devices()[: np.prod(sizes)])
    assert_same(over(mesh, model, slots=8), together)


@pytest.mark.slow
def test_eight_devices_change_no_text(together, repo, tmp_path):
    code = """
        import sys, numpy as np, test_refill as t
        rollout = t.over(t.sharding.make_mesh(4, 2, 1), t.make_model(), slots=16)
        np.savez(sys.argv[1], *rollout)
    """
    env = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    env["PYTHONPATH"] = os.pathsep.join([str(repo), str(repo / "tests")])
    file = tmp_path / "rollout.npz"
    command = [sys.executable, "-c", textwrap.dedent(code), str(file)]
    subprocess.run(command, env=env, check=True)
    assert_same(types.Rollout(*np.load(file).values()), together)


@pytest.mark.slow
def test_fewer_prompts_than_shards(model):
    mesh, given = sharding.make_mesh(4, 1, 1), prompts([7])
    whole = sample(model, given, group=6)
    assert_same(over(mesh, model, given=given, group=6), whole)
    assert_same(over(mesh, model, given=given, group=6, slots=1), whole)


def test_reported_logp_is_the_uncached_model_s(model):
    rollout = sample(model, slots=5)
    prompt_BS, mask_BS = (np.repeat(x, G, axis=0) for x in pad_prompts(prompts()))
    expected, _ = scoring.score_rollout(
        *nnx.split(model),
        *(prompt_BS, mask_BS, rollout.response_BT, rollout.mask_BT),
        temperature=1.0,
    )
    np.testing.assert_allclose(rollout.sampler_logp_BT, expected, rtol=0, atol=1e-4)
    assert rollout.truncated_B.any() and not rollout.truncated_B.all()


def test_a_cap_for_each_response(model, together):
    limit_QG = np.random.default_rng(1).integers(1, T + 1, (len(LENGTHS), G))
    limit_QG[:3] = 1, 2, T
    rollout = sample(model, slots=4, max_new_tokens=limit_QG)
    expected_B = np.minimum(together.mask_BT.sum(axis=1), limit_QG.reshape(-1))
    np.testing.assert_array_equal(rollout.mask_BT.sum(axis=1), expected_B)
    for b, length in enumerate(expected_B):
        np.testing.assert_array_equal(
            rollout.response_BT[b, :length], together.response_BT[b, :length]
        )
    texts = generate(model, prompts(), samples_per_prompt=1, max_new_tokens=[3] * 11 + [1])
    assert max(len(t.tokens) for (t,) in texts) == 3 and len(texts[-1][0].tokens) == 1


# ---- what it costs


def test_slots_are_not_idle_and_the_batch_narrows(model, runs):
    lengths = [4] * 64
    rollout = sample(model, prompts(lengths), slots=32)
    tokens = int(rollout.mask_BT.sum())
    assert sum(slots * columns for slots, _, columns in runs) < 1.35 * tokens
    widths = [slots for slots, *_ in runs]
    assert widths == sorted(widths, reverse=True) and set(widths) == {32, 16, 8}


def test_pages_are_those_of_live_responses(model, runs):
    """A response that is the only long one costs its own pages."""
    limit_QG = np.full((16, 2), 4)
    limit_QG[5, 1] = T
    sample(model, prompts([3] * 16), group=2, slots=4, max_new_tokens=limit_QG, stop_ids=())
    assert max(pages for _, pages, _ in runs) == 8


def test_programs_do_not_grow_with_rollouts(model):
    """Of two kinds of rollouts in turn: once each power of two was met, nothing is compiled."""

    def both(step):
        sample(model, prompts(LENGTHS[::-1]), slots=8, key=(1, step))
        shorter = prompts([n % 40 + 1 for n in LENGTHS])
        sample(model, shorter, slots=8, max_new_tokens=T - 7, key=(2, step))

    for step in range(4):
        both(step)
    with tiny.compilations() as compiled:
        for step in range(4, 7):
            both(step)
    assert not compiled
