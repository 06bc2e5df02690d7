"""The trainer's ln-probabilities: alignment, masking, microbatches, compilations, gradients."""

import jax
import numpy as np
import pytest
import tiny
from flax import nnx

from cpgd_jax import models
from cpgd_jax.models.qwen2 import ModelConfig
from cpgd_jax.rollout import scoring


@pytest.fixture(scope="module")
def model():
    return tiny.random_model(ModelConfig(61, 2, 16, 32, 4, 2, 4))


@pytest.fixture(scope="module")
def rows():
    """Five rows: prompts of 1..4 tokens in 4 columns, responses of 0..6 tokens in 6."""
    rng = np.random.default_rng(0)
    prompt_len, length = np.array([1, 4, 2, 3, 4]), np.array([6, 1, 3, 0, 5])
    return (
        rng.integers(0, 61, (5, 4)).astype(np.int32),
        np.arange(4) >= 4 - prompt_len[:, None],
        rng.integers(0, 61, (5, 6)).astype(np.int32),
        np.arange(6) < length[:, None],
    )


def test_logits_of_the_column_before_score_the_token(model, rows):
    logp, entropy = scoring.score_rollout(*nnx.split(model), *rows, temperature=0.8)
    prompt, prompt_mask, response, mask = rows
    rows_tokens = [np.r_[p[pm], r[m]] for p, pm, r, m in zip(*rows, strict=True)]
    packed = np.stack([np.pad(tokens, (0, 10 - len(tokens))) for tokens in rows_tokens])
    packed_mask = np.arange(10) < np.array([len(tokens) for tokens in rows_tokens])[:, None]
    logits_BTV = np.asarray(models.logits(model, packed, packed_mask), np.float64) / 0.8
    law_BTV = logits_BTV - np.log(np.exp(logits_BTV).sum(-1, keepdims=True))
    for b in range(len(prompt)):
        n, first = mask[b].sum(), prompt_mask[b].sum() - 1
        law = law_BTV[b, first : first + n]
        np.testing.assert_allclose(logp[b, :n], law[np.arange(n), response[b, :n]], atol=1e-5)
        np.testing.assert_allclose(entropy[b, :n], -(np.exp(law) * law).sum(-1), atol=1e-5)
    assert (np.asarray(logp)[~mask] == 0).all() and (np.asarray(entropy)[~mask] == 0).all()


def test_masked_tokens_change_nothing(model, rows):
    prompt, prompt_mask, response, mask = rows
    other = (np.where(prompt_mask, prompt, 7), prompt_mask, np.where(mask, response, 7), mask)
    parts = nnx.split(model)
    np.testing.assert_array_equal(
        scoring.score_rollout(*parts, *rows, temperature=1.0),
        scoring.score_rollout(*parts, *other, temperature=1.0),
    )


def test_any_number_of_rows_in_microbatches_shares_one_compilation(model, rows):
    parts = nnx.split(model)
    whole = scoring.score_rollout(*parts, *rows, temperature=1.0, microbatch_size=5)
    scoring.score_rollout(*parts, *(x[:2] for x in rows), temperature=1.0, microbatch_size=2)
    with tiny.compilations() as compiled:
        for count in (5, 4, 1):
            split = scoring.score_rollout(
                *parts, *(x[:count] for x in rows), temperature=1.0, microbatch_size=2
            )
            for x, y in zip(split, whole, strict=True):
                assert x.dtype == np.float32
                np.testing.assert_allclose(x, y[:count], atol=1e-5)
    assert not compiled


def test_new_weights_are_seen_without_compiling_again(model, rows):
    graphdef, params = nnx.split(model)
    before, _ = scoring.score_rollout(graphdef, params, *rows, temperature=1.0)
    moved = jax.tree.map(lambda x: x * 1.1, params)
    with tiny.compilations() as compiled:
        after, _ = scoring.score_rollout(graphdef, moved, *rows, temperature=1.0)
    assert not compiled
    assert abs(after - before).max() > 1e-3
