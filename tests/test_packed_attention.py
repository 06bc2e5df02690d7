"""Attention over packed rows: every implementation against one row, head and slot at a time."""

import functools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from cpgd_jax.errors import UserError
from cpgd_jax.models import attention, chunked_attention, splash
from cpgd_jax.types import Spans

N, K, H = 4, 2, 8


def make_spans(rows, P, C) -> Spans:
    """rows: for each its groups (prompt slots, slots of each response); the rest is padding."""
    first, prompt_first, prompt_end = np.tile(np.arange(P + C, dtype=np.int32), (3, len(rows), 1))
    for w, groups in enumerate(rows):
        u, c = 0, P
        for prompt, responses in groups:
            segments = [slice(u, u + prompt)]
            for length in responses:
                segments.append(slice(c, c + length))
                c += length
            for here in segments:
                first[w, here], prompt_first[w, here] = here.start, u
                prompt_end[w, here] = u + prompt
            u += prompt
    return Spans(first, prompt_first, prompt_end)


ROWS = [[(20, [7, 9, 30]), (5, [1, 3]), (0, [8])], [(30, [40])]]
SPANS = make_spans(ROWS, P=32, C=70)


def inputs(spans, seed=0, heads=(N, K, K), width=H):
    rng = np.random.default_rng(seed)
    draw = lambda n: rng.normal(size=(*spans.first_WU.shape, n, width)).astype(np.float32)  # noqa: E731
    return [draw(n) for n in heads], draw(heads[0])


def twin(q_WUNH, k_WUKH, v_WUKH, spans):
    """float64, a query at a time."""
    out = np.zeros(q_WUNH.shape)
    q, k, v = (np.asarray(x, np.float64) for x in (q_WUNH, k_WUKH, v_WUKH))
    for w, u, n in np.ndindex(q.shape[:3]):
        first, prompt_first, prompt_end = (int(x[w, u]) for x in spans)
        keys = [s for s in range(u + 1) if s >= first or prompt_first <= s < prompt_end]
        head = n // (q.shape[2] // k.shape[2])
        score = k[w, keys, head] @ q[w, u, n] / np.sqrt(q.shape[3])
        weight = np.exp(score - score.max())
        out[w, u, n] = weight @ v[w, keys, head] / weight.sum()
    return out


def value_and_grads(attend, arrays, weight):
    def total(q, k, v):
        out = attend(q, k, v)
        return (out * weight).sum(), out

    (_, out), grads = jax.jit(jax.value_and_grad(total, (0, 1, 2), has_aux=True))(*arrays)
    return out, *grads


@pytest.fixture(scope="module")
def dense():
    arrays, weight = inputs(SPANS)
    return value_and_grads(attention.over(SPANS, "dense", "float32"), arrays, weight)


def assert_close(got, expected):
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=2e-6 * np.abs(y).max())


def test_dense_equals_the_twin(dense):
    np.testing.assert_allclose(dense[0], twin(*inputs(SPANS)[0], SPANS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block", [8, 32, 128])
def test_chunked_equals_dense_in_value_and_gradient(block, dense):
    arrays, weight = inputs(SPANS)
    attend = lambda q, k, v: chunked_attention.attend(q, k, v, SPANS, block)  # noqa: E731
    assert_close(value_and_grads(attend, arrays, weight), dense)


def test_the_gradient_of_chunked_matches_finite_differences():
    arrays, weight = inputs(SPANS)
    attend = lambda x: chunked_attention.attend(*x, SPANS, 32)  # noqa: E731
    total = jax.jit(jax.value_and_grad(lambda x: (attend(x) * weight).sum()))
    direction = inputs(SPANS, seed=1)[0]
    step = 1e-2
    ahead, behind = (
        [a + s * d for a, d in zip(arrays, direction, strict=True)] for s in (step, -step)
    )
    slope = sum(np.vdot(g, d) for g, d in zip(total(arrays)[1], direction, strict=True))
    numeric = (float(total(ahead)[0]) - float(total(behind)[0])) / 2 / step
    assert slope == pytest.approx(numeric, rel=2e-3)


def test_splash_equals_dense_in_value_and_gradient(dense):
    """The TPU's kernel, interpreted."""
    arrays, weight = inputs(SPANS)
    attend = functools.partial(splash.attend, spans=SPANS, interpret=True)
    assert_close(value_and_grads(attend, arrays, weight), dense)


@pytest.mark.parametrize("width", [64, 128])
def test_splash_is_accepted_by_the_tpu_compiler_s_front(width):
    spans = make_spans([[(100, [200, 300])]], P=128, C=512)
    arrays, _ = inputs(spans, heads=(4, 2, 2), width=width)
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
    grad = jax.grad(
        lambda q, k, v: splash.attend(q, k, v, spans).sum().astype(jnp.float32), (0, 1, 2)
    )
    module = jax.export.export(jax.jit(grad), platforms=["tpu"])(*arrays).mlir_module()
    assert module.count("tpu_custom_call") >= 3  # forward, dq, dkv


def test_chunked_visits_the_blocks_in_which_something_is_seen():
    spans = make_spans([[(33, [70, 5, 90]), (20, [16])], [(10, [3])]], P=64, C=192)
    block, U = 16, 256
    slot_U = np.arange(U)
    first, prompt_first, prompt_end = (x[..., None] for x in spans)
    sees = (slot_U >= first) | ((slot_U >= prompt_first) & (slot_U < prompt_end))
    sees &= slot_U <= slot_U[:, None]
    expected_ZX = sees.reshape(2, 16, block, 16, block).any(axis=(2, 4)).reshape(32, 16)
    blocks = Spans(*(jnp.asarray(x).reshape(-1, block) for x in spans))
    key_ZX, count_Z = chunked_attention.live(blocks, 2)
    assert 0.05 < expected_ZX.mean() < 0.3
    for z, (keys, count) in enumerate(zip(key_ZX, count_Z, strict=True)):
        assert (keys[:count] - z // 16 * 16).tolist() == np.flatnonzero(expected_ZX[z]).tolist()


def array_sizes(jaxpr):
    for equation in jaxpr.eqns:
        yield from (v.aval.size for v in equation.outvars)
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            yield from array_sizes(inner)


def test_chunked_holds_no_scores_of_a_whole_row():
    spans = make_spans([[(500, [1000, 500])]], P=512, C=1536)
    arrays, weight = inputs(spans, heads=(1, 1, 1))
    attend = attention.over(spans, "auto", "float32")
    grad = jax.grad(lambda *x: (attend(*x) * weight).sum(), (0, 1, 2))
    sizes = list(array_sizes(jax.make_jaxpr(grad)(*arrays).jaxpr))
    assert attention.BLOCK**2 in sizes  # the walk sees the inner programs
    assert max(sizes) < 2048**2 / 32


def test_bfloat16_is_close_to_float32(dense):
    arrays, weight = inputs(SPANS)
    rounded = [jnp.asarray(x, jnp.bfloat16) for x in arrays]
    attend = functools.partial(chunked_attention.attend, spans=SPANS, block=32)
    found = value_and_grads(lambda *x: attend(*x).astype(jnp.float32), rounded, weight)
    assert found[1].dtype == found[2].dtype == found[3].dtype == jnp.bfloat16
    for x, y in zip(found, dense, strict=True):
        assert 0 < np.abs(np.asarray(x, np.float32) - y).max() < 0.03 * np.abs(y).max()


@pytest.mark.parametrize(
    ("platform", "dtype", "slots", "name"),
    [
        ("cpu", "float32", 4096, "chunked"),
        ("cpu", "float32", 128, "dense"),
        ("tpu", "bfloat16", 4096, "splash"),
        ("gpu", "bfloat16", 4096, "cudnn"),
        ("gpu", "float32", 4096, "chunked"),
    ],
)
def test_the_device_chooses(platform, dtype, slots, name, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    dtype = jnp.dtype(dtype)
    assert attention.choose("auto", slots, dtype) == name
    assert attention.choose("dense", slots, dtype) == "dense"
    assert (
        attention.row_len("auto", dtype) == attention.ROW_LEN[attention.choose("auto", 512, dtype)]
    )


def test_cudnn_in_float32_is_one_line():
    arrays, _ = inputs(SPANS)
    with pytest.raises(UserError, match="'cudnn' and config.model.dtype 'float32'"):
        attention.over(SPANS, "cudnn", "float32")(*arrays)
