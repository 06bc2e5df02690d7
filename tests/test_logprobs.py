"""Token ln-probabilities in tiles equal the plain form, hold no [tokens, V] and split the head."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding

from cpgd_jax import sharding
from cpgd_jax.ops import logprobs

V = 151_936  # Qwen2's vocabulary


def plain(hidden, head_VD, token, temperature):
    logits = jnp.einsum("...d,vd->...v", hidden, head_VD, precision="highest") / temperature
    logp = jax.nn.log_softmax(logits, axis=-1)
    entropy = -(jnp.exp(logp) * logp).sum(-1)
    return jnp.take_along_axis(logp, token[..., None], axis=-1)[..., 0], entropy


def of_logits(logits_CV, token_C):
    """Through hidden states and a head whose product is exactly these logits."""
    hidden_CD = jnp.eye(len(logits_CV), dtype=logits_CV.dtype)
    return _of_head(hidden_CD, logits_CV.T, token_C)


_of_head = jax.jit(functools.partial(logprobs.token_logprobs, temperature=1.0))


@pytest.mark.parametrize("scale", [1.0, 8.0, 300.0])
def test_float32_over_bfloat16_logits_is_near_float64_and_never_positive(scale):
    logits_CV = (scale * jax.random.normal(jax.random.key(0), (4, V))).astype(jnp.bfloat16)
    token_C = jnp.argmax(logits_CV, -1).at[0].set(7)
    logp_C, entropy_C = of_logits(logits_CV, token_C)
    assert logp_C.dtype == entropy_C.dtype == jnp.float32
    exact_CV = np.asarray(logits_CV, np.float64)
    exact_CV -= exact_CV.max(-1, keepdims=True)
    exact_CV -= np.log(np.exp(exact_CV).sum(-1, keepdims=True))
    np.testing.assert_allclose(logp_C, exact_CV[np.arange(4), token_C], atol=1e-3)
    np.testing.assert_allclose(entropy_C, -(np.exp(exact_CV) * exact_CV).sum(-1), atol=1e-3)
    assert (logp_C <= 0).all() and (entropy_C >= 0).all()


def test_entropy_of_uniform_is_ln_v_and_of_one_hot_is_zero():
    peaked_V = jnp.full(V, -1e4).at[3].set(1e4)
    logp_C, entropy_C = of_logits(jnp.stack([jnp.zeros(V), peaked_V]), jnp.full(2, 3))
    np.testing.assert_allclose(entropy_C, [np.log(V), 0], rtol=1e-6)
    np.testing.assert_allclose(logp_C, [-np.log(V), 0], rtol=1e-6)
    grad = jax.grad(lambda x: sum(y.sum() for y in of_logits(x, jnp.full(2, 3))))
    assert jnp.isfinite(grad(jnp.stack([peaked_V, -peaked_V]))).all()


@pytest.fixture(scope="module")
def states():
    """Hidden states, head, tokens, and cotangents of the two outputs."""
    B, T, D, V = 3, 5, 8, 37
    keys = jax.random.split(jax.random.key(1), 4)
    hidden_BTD = jax.random.normal(keys[0], (B, T, D))
    head_VD = 0.3 * jax.random.normal(keys[1], (V, D))
    token_BT = jax.random.randint(keys[2], (B, T), 0, V)
    return hidden_BTD, head_VD, token_BT, jax.random.normal(keys[3], (2, B, T))


def value_and_gradients(fn, hidden, head_VD, token, weight):
    """((logp, entropy), gradients by hidden and head) of a weighted sum of both outputs."""

    def total(hidden, head_VD):
        out = fn(hidden, head_VD, token)
        return sum((w * x).sum() for w, x in zip(weight, out, strict=True)), out

    (_, out), grads = jax.jit(jax.value_and_grad(total, (0, 1), has_aux=True))(hidden, head_VD)
    return out, grads


@pytest.fixture(scope="module")
def expected(states):
    return value_and_gradients(lambda *args: plain(*args, 0.7), *states)


@pytest.mark.parametrize(
    ("token_chunk", "vocab_chunk"), [(1, 1), (15, 37), (7, 10), (1024, 1024), (5, 36)]
)
def test_equals_plain_in_value_and_gradients(states, expected, token_chunk, vocab_chunk):
    def ours(*args):
        return logprobs.token_logprobs(
            *args, temperature=0.7, token_chunk=token_chunk, vocab_chunk=vocab_chunk
        )

    assert_near(value_and_gradients(ours, *states), expected)


def test_packed_tokens_need_no_rows(states, expected):
    hidden, head, token, weight = states
    flat = hidden.reshape(15, -1), head, token.reshape(15), weight.reshape(2, 15)
    got = value_and_gradients(lambda *args: logprobs.token_logprobs(*args, temperature=0.7), *flat)
    assert_near(jax.tree.map(lambda a, b: a.reshape(b.shape), got, expected), expected)


def assert_near(got, expected):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)


def test_large_vocabulary_equals_plain():
    keys = jax.random.split(jax.random.key(2), 4)
    hidden_CD = jax.random.normal(keys[0], (8, 32))
    head_VD = 0.5 * jax.random.normal(keys[1], (V, 32))
    rows = hidden_CD, head_VD, jax.random.randint(keys[2], (8,), 0, V)
    weight = jax.random.normal(keys[3], (2, 8))
    got = value_and_gradients(
        lambda *args: logprobs.token_logprobs(*args, temperature=1.0), *rows, weight
    )
    assert_near(got, value_and_gradients(lambda *args: plain(*args, 1.0), *rows, weight))


def test_gradient_matches_finite_differences(states):
    hidden, head, token, weight_2BT = states

    def total(x):
        out = logprobs.token_logprobs(
            x, head, token, temperature=1.3, token_chunk=4, vocab_chunk=10
        )
        return (weight_2BT * jnp.stack(out)).sum()

    total = jax.jit(total)
    direction = jax.random.normal(jax.random.key(5), hidden.shape)
    slope = jnp.vdot(jax.grad(total)(hidden), direction)
    step = 1e-2
    numeric = (total(hidden + step * direction) - total(hidden - step * direction)) / 2 / step
    np.testing.assert_allclose(slope, numeric, rtol=2e-3)


def test_bfloat16_states_with_a_float32_head():
    """The head's gradient is summed in float32: thousands of small shares do not get lost."""
    C, D, size = 4096, 8, 16
    hidden_CD = jnp.ones((C, D), jnp.bfloat16)
    head_VD = jnp.zeros((size, D), jnp.float32)
    token_C = jnp.zeros(C, jnp.int32)

    def total(hidden, head):
        return logprobs.token_logprobs(hidden, head, token_C, temperature=1.0)[0].sum()

    dhidden_CD, dhead_VD = jax.grad(total, (0, 1))(hidden_CD, head_VD)
    assert dhidden_CD.dtype == jnp.bfloat16 and dhead_VD.dtype == jnp.float32
    np.testing.assert_array_equal(dhead_VD[:, 0], C * (np.eye(size)[0] - 1 / size))


def array_sizes(jaxpr):
    for eqn in jaxpr.eqns:
        yield from (v.aval.size for v in eqn.outvars)
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from array_sizes(inner)


def test_no_array_is_larger_than_a_tile_or_the_inputs():
    B, T, D, V = 4, 64, 8, 4096
    hidden, head = jnp.zeros((B, T, D)), jnp.zeros((V, D))

    def loss(h, w):
        out = logprobs.token_logprobs(
            h, w, jnp.zeros((B, T), jnp.int32), temperature=1.0, token_chunk=128, vocab_chunk=512
        )
        return sum(x.sum() for x in out)

    sizes = list(array_sizes(jax.make_jaxpr(jax.grad(loss, (0, 1)))(hidden, head).jaxpr))
    assert 128 * 512 in sizes  # the walk does see the inner programs
    assert max(sizes) <= max(128 * 512, V * D)


def test_memory_at_full_size_is_a_tenth_of_the_plain_form():
    """Qwen2.5-0.5B's head and 8192 tokens, by the compiler's own account; nothing is run."""
    C, D = 8192, 896
    shapes = ((C, D), jnp.float32), ((V, D), jnp.float32), ((C,), jnp.int32), ((2, C), jnp.float32)
    args = [jax.ShapeDtypeStruct(*shape) for shape in shapes]

    def extra_bytes(fn):
        program = jax.jit(lambda *args: value_and_gradients(fn, *args))
        return program.lower(*args).compile().memory_analysis().temp_size_in_bytes

    ours = extra_bytes(lambda *args: logprobs.token_logprobs(*args, temperature=1.0))
    assert ours <= extra_bytes(lambda *args: plain(*args, 1.0)) / 10


@pytest.mark.parametrize("sizes", [(1, 1, 4), (2, 1, 2), (1, 2, 2), (1, 4, 1)], ids=str)
def test_a_split_vocabulary_is_never_gathered(sizes):
    C, D, V, token_chunk = 24, 16, 400, 5
    mesh = sharding.make_mesh(*sizes)
    keys = jax.random.split(jax.random.key(3), 4)
    whole = (
        jax.random.normal(keys[0], (C, D)),
        jax.random.normal(keys[1], (V, D)) / 4,
        jax.random.randint(keys[2], (C,), 0, V),
        jax.random.normal(keys[3], (2, C)),
    )
    rows = sharding.batch_sharding(mesh)
    head = NamedSharding(mesh, sharding.partition_spec(("vocab", "embed")))
    args = jax.device_put(whole, (rows, head, rows, sharding.batch_sharding(mesh, axis=1)))

    def ours(*args):
        return logprobs.token_logprobs(
            *args, temperature=0.7, token_chunk=token_chunk, vocab_chunk=30
        )

    program = jax.jit(
        lambda *args: value_and_gradients(ours, *args), out_shardings=(None, (rows, head))
    )
    with jax.set_mesh(mesh):
        compiled = program.lower(*args).compile()
        got = jax.device_get(compiled(*args))
    expected = value_and_gradients(lambda *args: plain(*args, 0.7), *whole)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5), got, expected)
    gathers = [line for line in compiled.as_text().splitlines() if " all-gather(" in line]
    shares = {f"[{V},{D // n}]" for n in (1, 2, 4)} | {f"[{D // n},{V}]" for n in (1, 2, 4)}
    assert not [line for line in gathers if any(share in line for share in shares)]


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_temperature_must_be_positive(states, temperature):
    with pytest.raises(ValueError, match="not positive"):
        logprobs.token_logprobs(*states[:3], temperature=temperature)


def test_shapes_must_fit(states):
    hidden, head, token, _ = states
    for wrong in ((hidden[:, :4], head, token), (hidden[..., :4], head, token)):
        with pytest.raises(AssertionError):
            logprobs.token_logprobs(*wrong, temperature=1.0)
