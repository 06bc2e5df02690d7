"""The rollout against the uncached model, over batches, paddings, slots, devices; stops; errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from cpgd_jax import models
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig
from cpgd_jax.rollout import engine, generate, pad_prompts, prompt_ids, scoring

V, G, T = 83, 4, 10
PROMPTS = [[3, 4, 5], [7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17], [20]]
STOPS = (1, 30, 31, 32, 33, 34, 35, 36, 37)


@pytest.fixture(scope="module")
def model():
    return tiny.random_model(ModelConfig(V, 2, 16, 32, 4, 2, 4))


def sample(model, prompts=PROMPTS, pads=0, params=None, **overrides):
    """`engine.sample` of prompts padded to 16 + pads columns."""
    graphdef, own_params = nnx.split(model)
    token_QS, mask_QS = (np.pad(x, ((0, 0), (pads, 0))) for x in pad_prompts(prompts))
    settings = dict(prompt_id_Q=prompt_ids(prompts), group=G, max_new_tokens=T, key=(0, 0))
    settings |= dict(stop_ids=STOPS) | overrides
    return engine.sample(
        graphdef, own_params if params is None else params, token_QS, mask_QS, **settings
    )


def texts(model, prompts=PROMPTS, **settings):
    settings = dict(samples_per_prompt=G, max_new_tokens=T, stop_ids=STOPS) | settings
    return [[c.tokens for c in group] for group in generate(model, prompts, **settings)]


def rescored(model, rollout, temperature):
    prompt_BS, mask_BS = (np.repeat(x, G, axis=0) for x in pad_prompts(PROMPTS))
    return scoring.score_rollout(
        *nnx.split(model),
        *(prompt_BS, mask_BS, rollout.response_BT, rollout.mask_BT),
        temperature=temperature,
    )[0]


# ---- exactness


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_reported_logp_is_the_uncached_model_s(model, temperature):
    rollout = sample(model, temperature=temperature)
    expected = rescored(model, rollout, temperature)
    np.testing.assert_allclose(rollout.sampler_logp_BT, expected, atol=1e-4)


def test_greedy_is_the_argmax_of_the_uncached_model(model):
    groups = texts(model, temperature=0, stop_ids=())
    rows = [prompt + group[0] for prompt, group in zip(PROMPTS, groups, strict=True)]
    token_BT = np.stack([np.pad(row, (0, 32 - len(row))) for row in rows])
    mask_BT = np.arange(32) < np.array([len(row) for row in rows])[:, None]
    best_BT = np.argmax(models.logits(model, token_BT, mask_BT), axis=-1)
    for q, (prompt, group) in enumerate(zip(PROMPTS, groups, strict=True)):
        assert group[0] == best_BT[q, len(prompt) - 1 : len(prompt) - 1 + T].tolist()
        assert all(text == group[0] for text in group)


def test_greedy_reports_the_law_at_temperature_one(model):
    rollout = sample(model, temperature=0)
    np.testing.assert_allclose(rollout.sampler_logp_BT, rescored(model, rollout, 1.0), atol=1e-4)


@pytest.mark.parametrize("pads", [1, 3, 8])
def test_padding_changes_nothing(model, pads):
    plain, padded = sample(model), sample(model, pads=pads)
    np.testing.assert_array_equal(plain.response_BT, padded.response_BT)
    np.testing.assert_array_equal(plain.mask_BT, padded.mask_BT)
    token_BT = np.asarray([PROMPTS[0]])
    left = (np.pad(token_BT, ((0, 0), (pads, 0))), np.arange(3 + pads)[None] >= pads)
    np.testing.assert_allclose(
        models.logits(model, *left)[:, pads:], models.logits(model, token_BT), atol=1e-5
    )


@pytest.mark.parametrize("temperature", [0, 1.0])
def test_other_prompts_and_their_order_change_nothing(model, temperature):
    together = texts(model, temperature=temperature)
    alone = [texts(model, [p], temperature=temperature)[0] for p in PROMPTS]
    assert together == alone
    assert texts(model, PROMPTS[::-1], temperature=temperature)[::-1] == together


def test_slots_change_nothing(model):
    everything = texts(model)
    for slots in (1, 3, 8, 64):
        assert texts(model, slots=slots) == everything, slots


def test_several_devices_change_nothing(model):
    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    params = jax.device_put(nnx.split(model)[1], everywhere)
    rollout = sample(model, params=params)
    np.testing.assert_array_equal(rollout.response_BT, sample(model).response_BT)


# ---- randomness


def test_samples_steps_seeds_and_repeated_prompts_differ_and_a_rerun_repeats(model):
    first = sample(model, stop_ids=())
    rows = {tuple(row) for row in first.response_BT}
    assert len(rows) == len(first.response_BT)
    for key in ((0, 1), (1, 0)):
        other = sample(model, stop_ids=(), key=key)
        assert (other.response_BT != first.response_BT).any(axis=1).all()
    same_key = jax.random.fold_in(jax.random.key(0), 0)
    for again in (sample(model, stop_ids=()), sample(model, stop_ids=(), key=same_key)):
        np.testing.assert_array_equal(again.response_BT, first.response_BT)
        np.testing.assert_array_equal(again.sampler_logp_BT, first.sampler_logp_BT)
    twice = texts(model, [PROMPTS[0], PROMPTS[0]])
    assert twice[0] != twice[1] and twice[0] == texts(model)[0]


# ---- stopping


def test_a_response_ends_with_its_first_stop_token_or_at_the_cap(model):
    rollout = sample(model, group=40)
    ended_by = set()
    for b, length in enumerate(rollout.mask_BT.sum(axis=1)):
        tokens = rollout.response_BT[b, :length].tolist()
        assert rollout.mask_BT[b, :length].all()
        assert not set(tokens[:-1]) & set(STOPS)
        assert rollout.truncated_B[b] == (tokens[-1] not in STOPS)
        assert length == T or not rollout.truncated_B[b]
        ended_by |= {tokens[-1]} - ({tokens[-1]} if rollout.truncated_B[b] else set())
    assert ended_by == set(STOPS)
    assert (rollout.sampler_logp_BT[~rollout.mask_BT] == 0).all()
    assert (rollout.response_BT[~rollout.mask_BT] == 0).all()


def test_stopping_at_the_first_token_never_and_a_cap_of_one(model):
    at_once = sample(model, stop_ids=tuple(range(V)))
    assert (at_once.mask_BT.sum(axis=1) == 1).all() and not at_once.truncated_B.any()
    never = sample(model, stop_ids=())
    assert never.mask_BT.all() and never.truncated_B.all()
    np.testing.assert_array_equal(at_once.response_BT[:, 0], never.response_BT[:, 0])
    one = sample(model, stop_ids=(), max_new_tokens=1)
    np.testing.assert_array_equal(one.response_BT, never.response_BT[:, :1])
    assert one.truncated_B.all()


# ---- the law


def test_truncated_sampling_reports_the_law_that_was_sampled(model):
    rollout = sample(model, top_k=3, top_p=0.9)
    gap = rollout.sampler_logp_BT - rescored(model, rollout, 1.0)
    assert (gap[rollout.mask_BT] > 0).mean() > 0.9
    assert (rollout.sampler_logp_BT <= 0).all()
    first = models.logits(model, np.asarray([PROMPTS[0]]))[0, -1]
    assert set(rollout.response_BT[:G, 0].tolist()) <= set(np.argsort(first)[-3:].tolist())


def test_forbidden_ids_are_never_sampled(model):
    forbidden = tuple(range(0, V, 2))
    rollout = sample(model, forbidden_ids=forbidden, stop_ids=())
    assert not np.isin(rollout.response_BT, forbidden).any()
    logits_V = np.asarray(models.logits(model, np.asarray([PROMPTS[0]]))[0, -1])[1::2]
    law = np.exp(logits_V) / np.exp(logits_V).sum()
    first = rollout.response_BT[:G, 0] // 2
    np.testing.assert_allclose(rollout.sampler_logp_BT[:G, 0], np.log(law[first]), atol=1e-4)


# ---- programs


def test_weights_law_and_keys_are_arguments_of_one_program(model):
    first = sample(model, top_k=3, top_p=0.9)
    moved = jax.tree.map(lambda x: x * 1.2, nnx.split(model)[1])
    with tiny.compilations() as compiled:
        second = sample(model, params=moved, top_k=3, top_p=0.9)
        third = sample(model, temperature=0.7, top_k=3, top_p=0.8, key=(3, 5), stop_ids=(2,))
    assert not compiled
    for other in (second, third):
        assert (other.response_BT != first.response_BT).any()


def test_prompt_lengths_share_programs(model):
    texts(model, [[5] * 3])
    with tiny.compilations() as compiled:
        for length in (1, 2, 15, 16):
            texts(model, [[5] * length])
    assert not compiled
    assert pad_prompts([[1] * 17])[0].shape == (1, 32)


def test_bfloat16_model_is_sampled_in_float32():
    low = tiny.random_model(ModelConfig(V, 1, 16, 32, 4, 2, 4, dtype="bfloat16"))
    rollout = sample(low)
    assert rollout.sampler_logp_BT.dtype == np.float32
    np.testing.assert_allclose(rollout.sampler_logp_BT, rescored(low, rollout, 1.0), atol=0.05)


# ---- wrong input


@pytest.mark.parametrize(
    ("prompts", "settings", "message"),
    [
        ([[1], []], {}, "prompt 1 is empty"),
        ([[1, V]], {}, f"prompt 0: token id {V} is outside"),
        ([[-1]], {}, "token id -1"),
        (["text"], {}, "give token ids"),
        ([[1]], {"top_p": 0.0}, "top_p is 0.0"),
        ([[1]], {"top_p": 1.5}, "top_p is 1.5"),
        ([[1]], {"top_k": -1}, "top_k is -1"),
        ([[1]], {"temperature": -0.5}, "temperature is -0.5"),
        ([[1]], {"temperature": float("nan")}, "temperature is nan"),
        ([[1]], {"samples_per_prompt": 0}, "samples_per_prompt is 0"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens is 0"),
        ([[1]], {"slots": 0}, "slots is 0"),
        ([[1]], {"stop_ids": (V,)}, f"stop id {V} is outside"),
        ([[1]], {"forbidden_ids": (-1,)}, "forbidden id -1"),
        ([[1]], {"forbidden_ids": range(V)}, "forbidden_ids holds every id"),
    ],
)
def test_wrong_input_is_one_clear_line(model, prompts, settings, message):
    with pytest.raises(UserError, match=message) as caught:
        generate(model, prompts, **settings)
    assert "\n" not in str(caught.value)


def test_no_prompts_give_no_groups(model):
    assert generate(model, []) == []


def test_completion_fields(model):
    group = generate(model, [PROMPTS[0]], samples_per_prompt=G, max_new_tokens=T)[0]
    assert all(len(c.tokens) == len(c.logp) for c in group)
    assert isinstance(group[0].tokens[0], int) and isinstance(group[0].logp[0], float)
    assert isinstance(group[0].truncated, bool)
    assert jnp.asarray(group[0].logp).max() <= 0


@pytest.mark.slow
def test_prompts_of_1_to_1000_tokens_in_one_call(model):
    lengths = (1, 1000, 17, 2, 300)
    prompts = [np.random.default_rng(n).integers(2, V, n).tolist() for n in lengths]
    together = generate(model, prompts, 2, 4, stop_ids=STOPS)
    for prompt, group in zip(prompts, together, strict=True):
        (alone,) = generate(model, [prompt], 2, 4, stop_ids=STOPS)
        assert [c.tokens for c in alone] == [c.tokens for c in group]
