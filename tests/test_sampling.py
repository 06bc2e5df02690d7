"""The law of a sampled token, its ln-probability, and the random numbers behind it."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpgd_jax.rollout import sampling

DRAW = jax.jit(sampling.sample_token, static_argnames=("top_k", "greedy"))


@functools.partial(jax.jit, static_argnames="top_k")
def draw_many(logits_V, uniform_N2, **law):
    def one(uniform_2):
        return sampling.sample_token(logits_V[None], uniform_2[None], **law)

    return jax.vmap(one)(uniform_N2)


def draws(logits_V, count, **law):
    """`count` independent tokens of one law; the vocabulary is summed once."""
    uniform_N2 = jax.random.uniform(jax.random.key(3), (count, 2))
    return [np.asarray(x)[:, 0] for x in draw_many(logits_V, uniform_N2, **law)]


def chi_square_z(count_K, probability_K):
    """Chi-square as a normal deviate (Wilson-Hilferty): |z| stays below 4 for the right law."""
    expected_K = probability_K * count_K.sum()
    assert expected_K.min() >= 5
    chi2, df = ((count_K - expected_K) ** 2 / expected_K).sum(), len(count_K) - 1
    return ((chi2 / df) ** (1 / 3) - (1 - 2 / (9 * df))) / np.sqrt(2 / (9 * df))


def softmax64(logits):
    weight = np.exp(np.asarray(logits, np.float64) - np.max(logits))
    return weight / weight.sum()


def law64(logits, temperature=1.0, top_k=0, top_p=None):
    """The law of `sample_token` in float64, by sorting: [V] probabilities."""
    logits = np.asarray(logits, np.float64) / temperature
    order = np.argsort(-logits, kind="stable")
    order = order[: top_k or None]
    weight = softmax64(logits[order])
    if top_p is not None:
        reached = np.cumsum(weight) >= top_p - sampling.TOP_P_SLACK
        order = order[: np.argmax(reached) + 1] if reached.any() else order
    law = np.zeros(len(logits))
    law[order] = softmax64(logits[order])
    return law


def test_law_over_several_blocks_and_a_partial_one():
    V = 2 * sampling.BLOCK + 44
    logits_V = jax.random.normal(jax.random.key(0), (V,))
    token, logp = draws(logits_V, 60_000, temperature=1.3)
    law = softmax64(np.asarray(logits_V) / 1.3)
    assert abs(chi_square_z(np.bincount(token, minlength=V), law)) < 4
    np.testing.assert_allclose(logp, np.log(law[token]), atol=1e-5)


@pytest.mark.parametrize(
    "setting", [{}, {"top_p": 0.9}, {"top_p": 0.9, "temperature": 0.7}, {"top_k": 300}]
)
def test_law_over_a_large_vocabulary(setting):
    V, N = 151_936, 100_000
    logits_V = 3 * jax.random.normal(jax.random.key(1), (V,))
    token, logp = draws(logits_V, N, **setting)
    law = law64(logits_V, **setting)
    assert (law[token] > 0).all()
    np.testing.assert_allclose(logp, np.log(law[token]), atol=1e-4)
    cell_V = np.where(law > 1e-3, np.arange(V), V + np.arange(V) // 512)  # frequent ids alone
    _, cell_V = np.unique(cell_V[law > 0], return_inverse=True)
    law_K, count_K = (
        np.bincount(cell_V, law[law > 0]),
        np.bincount(cell_V, np.bincount(token, minlength=V)[law > 0]),
    )
    assert len(law_K) > 250
    assert abs(chi_square_z(count_K, law_K)) < 4


@pytest.mark.parametrize("V", [3, 700])
@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.5, 0.9, 0.999, 1.0])
def test_the_set_of_top_p_is_that_of_a_sort(V, top_p):
    rows = 40
    logits_BV = np.array(
        jax.random.normal(jax.random.key(V), (rows, V)) * np.arange(1, rows + 1)[:, None]
    )
    logits_BV[::2] = np.round(logits_BV[::2])  # many equal ones
    logits_BV[::3, V // 2 :] = -np.inf
    uniform_B2 = jax.random.uniform(jax.random.key(7), (rows, 2))
    token_B, logp_B = map(np.asarray, DRAW(logits_BV, uniform_B2, top_p=top_p))
    for logits_V, token, logp in zip(logits_BV, token_B, logp_B, strict=True):
        law = law64(logits_V, top_p=top_p)
        assert law[token] > 0
        np.testing.assert_allclose(logp, np.log(law[token]), atol=2e-6)


@pytest.mark.parametrize(
    ("equal", "top_p", "kept"),
    [(300, 0.5, 150), (300, 0.5 + 1e-4, 151), (300, 1e-6, 1), (300, 1.0, 300), (128, 0.75, 96)],
)
def test_of_equals_top_p_keeps_the_lowest_ids(equal, top_p, kept):
    logits_V = jnp.where(jnp.arange(700) % 2 == 1, -50.0, 2.0).at[2 * equal :].set(-jnp.inf)
    token, logp = draws(logits_V, 5000, top_p=top_p)
    assert set(token.tolist()) == set(range(0, 2 * kept, 2))
    np.testing.assert_allclose(logp, -np.log(kept), atol=1e-5)


@pytest.mark.parametrize(
    ("scale", "law"), [(1e-30, {}), (1e4, {}), (1e30, {}), (1e4, {"top_p": 0.9})]
)
def test_extreme_logits(scale, law):
    logits_BV = scale * jax.random.normal(jax.random.key(1), (8, 300))
    for uniform in (0.0, 0.4, 1 - 2**-24):
        token_B, logp_B = DRAW(logits_BV, jnp.full((8, 2), uniform), **law)
        for logits_V, token, logp in zip(logits_BV, token_B, logp_B, strict=True):
            np.testing.assert_allclose(logp, np.log(law64(logits_V, **law)[token]), atol=1e-5)


def test_rejects_a_wrong_law():
    logits_V = jax.random.normal(jax.random.key(0), (64,))
    token, _ = draws(logits_V, 60_000, temperature=1.05)
    assert chi_square_z(np.bincount(token, minlength=64), softmax64(logits_V)) > 6


@pytest.mark.parametrize("law", [{}, {"top_p": 0.9}, {"top_k": 7}, {"greedy": True}])
def test_a_forbidden_id_is_never_drawn(law):
    V, rows = 5 * sampling.BLOCK, 200
    keys = jax.random.split(jax.random.key(2), 3)
    logits_BV = 10 * jax.random.normal(keys[0], (rows, V))
    share_B1 = jax.random.uniform(keys[1], (rows, 1))
    allowed_BV = jax.random.uniform(keys[2], (rows, V)) > share_B1
    allowed_BV = allowed_BV.at[0].set(jnp.arange(V) == V - 1).at[1].set(jnp.arange(V) == 0)
    allowed_BV = allowed_BV.at[2].set(jnp.arange(V) == 200).at[3:, 300].set(True)
    logits_BV, allowed_BV = jnp.where(allowed_BV, logits_BV, -jnp.inf), np.asarray(allowed_BV)
    for uniform in (0.0, 0.5, 1 - 2**-24):
        token_B, logp_B = map(np.asarray, DRAW(logits_BV, jnp.full((rows, 2), uniform), **law))
        assert allowed_BV[np.arange(rows), token_B].all()
        assert np.isfinite(logp_B).all() and (logp_B <= 0).all()


@pytest.mark.parametrize(
    ("law", "kept"),
    [
        ({"top_k": 2}, [1, 4]),
        ({"top_k": 3}, [0, 1, 4]),  # 0 and 3 are equal: the lower id stays
        ({"top_k": 100}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.4}, [1]),  # a set that reaches top_p exactly is enough
        ({"top_p": 0.7}, [0, 1, 4]),
        ({"top_p": 0.99}, [0, 1, 2, 3, 4]),
        ({"top_k": 3, "top_p": 0.8}, [1, 4]),  # of the renormalised 4/8, 2.5/8, 1.5/8
    ],
)
def test_truncated_laws(law, kept):
    probability_V = np.array([0.15, 0.40, 0.05, 0.15, 0.25])
    token, logp = draws(jnp.log(probability_V), 20_000, **law)
    expected = probability_V[kept] / probability_V[kept].sum()
    assert sorted(set(token.tolist())) == kept
    if len(kept) > 1:
        assert abs(chi_square_z(np.bincount(token, minlength=5)[kept], expected)) < 4
    np.testing.assert_allclose(logp, np.log(expected[np.searchsorted(kept, token)]), atol=1e-5)


def test_temperature_comes_before_top_p():
    probability_V = np.array([0.5, 0.3, 0.2])
    token, _ = draws(jnp.log(probability_V), 2000, temperature=0.25, top_p=0.8)
    assert set(token.tolist()) == {0}  # 0.5**4 of 0.5**4 + 0.3**4 + 0.2**4 is 0.87


def test_greedy_takes_the_lowest_of_equals_and_reports_temperature_one():
    logits_BV = jnp.log(jnp.asarray([[0.2, 0.4, 0.4], [0.6, 0.2, 0.2]]))
    token_B, logp_B = sampling.sample_token(
        logits_BV, jnp.zeros((2, 2)), greedy=True, temperature=9.0
    )
    assert token_B.tolist() == [1, 0]
    np.testing.assert_allclose(logp_B, np.log([0.4, 0.6]), rtol=1e-6)


@pytest.mark.parametrize("law", [{}, {"top_p": 0.9}, {"top_k": 5}, {"top_k": 5, "top_p": 0.9}])
def test_the_vocabulary_is_not_sorted(law):
    arrays = jnp.zeros((2, 300)), jnp.zeros((2, 2))
    program = DRAW.trace(*arrays, **law)
    assert not re.search(r"\bsort\[", str(program.jaxpr))
    assert " sort(" not in program.lower().compile().as_text()


def test_a_row_is_drawn_alone_as_among_others():
    logits_BV = 3 * jax.random.normal(jax.random.key(0), (9, 700))
    uniform_B2 = jax.random.uniform(jax.random.key(1), (9, 2))
    together = DRAW(logits_BV, uniform_B2, top_p=0.8)
    alone = DRAW(logits_BV[4:5], uniform_B2[4:5], top_p=0.8)
    again = DRAW(logits_BV, uniform_B2, top_p=0.8)
    for a, b, c in zip(together, alone, again, strict=True):
        np.testing.assert_allclose(a[4:5], b, rtol=1e-6)
        np.testing.assert_array_equal(a, c)


@pytest.mark.parametrize("law", [{}, {"top_p": 0.7}, {"top_k": 9}])
def test_bfloat16_logits_are_scored_in_float32(law):
    logits_BV = jax.random.normal(jax.random.key(0), (2, 500)).astype(jnp.bfloat16)
    token_B, logp_B = DRAW(logits_BV, jnp.full((2, 2), 0.3), **law)
    expected = law64(logits_BV[0].astype(jnp.float32), **law)
    assert logp_B.dtype == jnp.float32 and token_B.dtype == jnp.int32
    np.testing.assert_allclose(logp_B[0], np.log(expected[token_B[0]]), atol=1e-5)


def test_random_numbers_belong_to_prompt_sample_and_token():
    key = jax.random.key(0)
    prompt_B, sample_B = jnp.asarray([5, 5, 9], jnp.uint32), jnp.asarray([0, 1, 0])
    u = sampling.uniforms(sampling.row_keys(key, prompt_B, sample_B), 4)
    alone = sampling.uniforms(sampling.row_keys(key, prompt_B[2:], sample_B[2:]), 4)
    later = sampling.uniforms(sampling.row_keys(key, prompt_B, sample_B), 5)
    np.testing.assert_array_equal(u[2:], alone)
    assert len({float(x) for x in jnp.concatenate([u, later]).ravel()}) == 12
    assert ((u >= 0) & (u < 1)).all()
