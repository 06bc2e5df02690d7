"""Token ln-probabilities: float32 over a large vocabulary, chunked, entropies, gradients."""

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from cpgd_jax.ops import logprobs


def float64_logp(logits, token):
    logits = np.asarray(logits.astype(jnp.float32), np.float64)
    peak = logits.max(-1, keepdims=True)
    lse = np.log(np.exp(logits - peak).sum(-1)) + peak[..., 0]
    return np.take_along_axis(logits, np.asarray(token)[..., None], -1)[..., 0] - lse


@pytest.mark.parametrize("scale", [1.0, 8.0, 300.0])
def test_float32_over_bfloat16_logits_is_near_float64_and_never_positive(scale):
    V = 151_936
    logits = (scale * jax.random.normal(jax.random.key(0), (4, V))).astype(jnp.bfloat16)
    token = jnp.argmax(logits, -1).at[0].set(7)
    logp, entropy = logprobs.from_logits(logits, token)
    assert logp.dtype == entropy.dtype == jnp.float32
    np.testing.assert_allclose(logp, float64_logp(logits, token), atol=1e-3)
    assert (logp <= 0).all() and (entropy >= 0).all()


def test_entropy_of_uniform_is_ln_v_and_of_one_hot_is_zero():
    V = 1000
    one_hot = jnp.full((V,), -jnp.inf).at[3].set(5.0)
    peaked = jnp.full((V,), -1e4).at[3].set(1e4)
    logp, entropy = logprobs.from_logits(jnp.stack([jnp.zeros(V), one_hot, peaked]), jnp.full(3, 3))
    np.testing.assert_allclose(entropy, [np.log(V), 0, 0], rtol=1e-6)
    np.testing.assert_allclose(logp, [-np.log(V), 0, 0], rtol=1e-6)


def test_forbidden_logits_leave_gradients_finite():
    logits = jnp.asarray([1.0, -jnp.inf, 2.0])
    grad = jax.grad(lambda x: sum(logprobs.from_logits(x, jnp.int32(0))))(logits)
    free = jax.grad(lambda x: sum(logprobs.from_logits(x, jnp.int32(0))))(logits[jnp.array([0, 2])])
    np.testing.assert_allclose(grad, [free[0], 0, free[1]], atol=1e-7)


@pytest.fixture(scope="module")
def states():
    B, T, D, V = 3, 5, 8, 37
    keys = jax.random.split(jax.random.key(1), 4)
    hidden_BTD = jax.random.normal(keys[0], (B, T, D))
    head_VD = jax.random.normal(keys[1], (V, D))
    token_BT = jax.random.randint(keys[2], (B, T), 0, V)
    return hidden_BTD, head_VD, token_BT, jax.random.normal(keys[3], (2, B, T))


def plain(hidden_BTD, head_VD, token_BT, temperature):
    return logprobs.from_logits(hidden_BTD @ head_VD.T / temperature, token_BT)


@pytest.mark.parametrize("chunk", [1, 4, 5, 15, 1024])
def test_chunked_equals_plain_in_value_and_gradient(states, chunk):
    hidden, head, token, weight_2BT = states

    def total(fn):
        return lambda h, w: sum((weight_2BT * jnp.stack(fn(h, w))).sum((1, 2)))

    chunked = total(lambda h, w: logprobs.token_logprobs(h, w, token, temperature=0.7, chunk=chunk))
    expected = total(lambda h, w: plain(h, w, token, 0.7))
    values = [jax.value_and_grad(fn, (0, 1))(hidden, head) for fn in (chunked, expected)]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *values)


def test_gradient_matches_finite_differences(states):
    hidden, head, token, _ = states

    def logp_sum(h):
        return logprobs.token_logprobs(h, head, token, temperature=1.3, chunk=4)[0].sum()

    direction = jax.random.normal(jax.random.key(5), hidden.shape)
    slope = jnp.vdot(jax.grad(logp_sum)(hidden), direction)
    step = 1e-2
    numeric = (logp_sum(hidden + step * direction) - logp_sum(hidden - step * direction)) / 2 / step
    np.testing.assert_allclose(slope, numeric, rtol=2e-3)


def array_sizes(jaxpr):
    for eqn in jaxpr.eqns:
        yield from (v.aval.size for v in eqn.outvars)
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from array_sizes(inner)


def test_never_holds_logits_of_all_tokens():
    B, T, D, V, chunk = 4, 64, 8, 4096, 16
    hidden, head = jnp.zeros((B, T, D)), jnp.zeros((V, D))

    def loss(h, w):
        logp, entropy = logprobs.token_logprobs(
            h, w, jnp.zeros((B, T), jnp.int32), temperature=1.0, chunk=chunk
        )
        return logp.sum() + entropy.sum()

    sizes = list(array_sizes(jax.make_jaxpr(jax.grad(loss, (0, 1)))(hidden, head).jaxpr))
    assert chunk * V in sizes  # the walk does see the inner programs
    assert max(sizes) <= chunk * V


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_temperature_must_be_positive(states, temperature):
    with pytest.raises(ValueError, match="not positive"):
        logprobs.token_logprobs(*states[:3], temperature=temperature)
