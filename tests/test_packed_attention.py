"""Attention over packed rows: every implementation against one row, head and slot at a time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
