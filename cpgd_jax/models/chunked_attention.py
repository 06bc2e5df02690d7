"""Attention over packed rows in blocks (arXiv 2205.14135); the gradient computes scores again.

Scores exist for one pair of blocks at a time. A pair in which no slot sees another is skipped, so
the work follows what is visible, not the square of the row. Axes: Z blocks of all rows, Y slots of
a block, X blocks of a row; a block sees keys of its own row.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from cpgd_jax.types import Spans

_FLOAT32 = {"preferred_element_type": jnp.float32}
MASKED = -1e30  # finite: a slot that sees nothing in a block gives a number, not NaN


class Blocks(NamedTuple):
    """Rows cut into blocks."""

    q_ZKRYH: jax.Array
    k_ZKYH: jax.Array
    v_ZKYH: jax.Array
    spans_ZY: Spans
    key_ZX: jax.Array  # the key blocks that a query block sees are the first `count_Z` of these
    count_Z: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(4,))
def attend(q_WUNH, k_WUKH, v_WUKH, spans: Spans, block: int):
    """[W, U, N, H]: softmax attention in float32 over the slots that `spans` lets each slot see."""
    return _forward(q_WUNH, k_WUKH, v_WUKH, spans, block)[0]


def visible(spans: Spans, slot, key_slot):
    """True where the query at `slot` [..., Y, 1] sees the key at `key_slot` [..., 1, Y]."""
    first, prompt_first, prompt_end = (x[..., None] for x in spans)
    own = key_slot >= first
    prompt = (key_slot >= prompt_first) & (key_slot < prompt_end)
    return (own | prompt) & (key_slot <= slot)


def _forward(q_WUNH, k_WUKH, v_WUKH, spans, block):
    b = _cut(q_WUNH, k_WUKH, v_WUKH, spans, block)

    def query_block(z):
        def add_keys(i, carry):
            out, peak, total = carry
            y = b.key_ZX[z, i]
            score = jnp.einsum("krqh,ksh->krqs", b.q_ZKRYH[z], b.k_ZKYH[y], **_FLOAT32)
            score = jnp.where(_mask(b, z, y), score, MASKED)
            higher = jnp.maximum(peak, score.max(axis=-1))
            weight, shrink = jnp.exp(score - higher[..., None]), jnp.exp(peak - higher)
            new = jnp.einsum("krqs,ksh->krqh", weight.astype(v_WUKH.dtype), b.v_ZKYH[y], **_FLOAT32)
            return out * shrink[..., None] + new, higher, total * shrink + weight.sum(axis=-1)

        out = jnp.zeros(b.q_ZKRYH.shape[1:], jnp.float32)
        peak = jnp.full(out.shape[:-1], MASKED, jnp.float32)
        carry = (out, peak, jnp.zeros_like(peak))
        out, peak, total = jax.lax.fori_loop(0, b.count_Z[z], add_keys, carry)
        return (out / total[..., None]).astype(q_WUNH.dtype), peak + jnp.log(total)

    out_ZKRYH, lse_ZKRY = jax.lax.map(query_block, jnp.arange(len(b.count_Z)))
    out_WUNH = _to_rows(out_ZKRYH, q_WUNH.shape)
    return out_WUNH, (q_WUNH, k_WUKH, v_WUKH, spans, out_WUNH, lse_ZKRY)


def _backward(block, residuals, grad_WUNH):
    q_WUNH, k_WUKH, v_WUKH, spans, out_WUNH, lse_ZKRY = residuals
    b = _cut(q_WUNH, k_WUKH, v_WUKH, spans, block)
    grad_ZKRYH = _to_blocks(grad_WUNH, k_WUKH.shape[2], block)
    shift_WUN1 = jnp.einsum("wunh,wunh->wun", grad_WUNH, out_WUNH, **_FLOAT32)[..., None]
    shift_ZKRY = _to_blocks(shift_WUN1, k_WUKH.shape[2], block)[..., 0]
    key_ZKHY = b.k_ZKYH.swapaxes(2, 3)

    def query_block(carry, z):
        q, grad = b.q_ZKRYH[z], grad_ZKRYH[z]

        def add_keys(i, carry):
            dq, dk_ZKYH, dv_ZKYH = carry  # dq [K, H, R, Y]
            y = b.key_ZX[z, i]
            # keys first: then no product needs scores transposed
            score = jnp.einsum("ksh,krqh->ksrq", b.k_ZKYH[y], q, **_FLOAT32)
            mask = _mask(b, z, y).T[:, None, :]
            weight = jnp.where(mask, jnp.exp(score - lse_ZKRY[z][:, None]), 0.0)
            slope = jnp.einsum("ksh,krqh->ksrq", b.v_ZKYH[y], grad, **_FLOAT32)
            slope = (weight * (slope - shift_ZKRY[z][:, None])).astype(q.dtype)
            dv = jnp.einsum("ksrq,krqh->ksh", weight.astype(grad.dtype), grad, **_FLOAT32)
            dk = jnp.einsum("ksrq,krqh->ksh", slope, q, **_FLOAT32)
            dq += jnp.einsum("khs,ksrq->khrq", key_ZKHY[y], slope, **_FLOAT32)
            return dq, dk_ZKYH.at[y].add(dk), dv_ZKYH.at[y].add(dv)

        dq = jnp.zeros((q.shape[0], q.shape[3], *q.shape[1:3]), jnp.float32)
        dq, *carry = jax.lax.fori_loop(0, b.count_Z[z], add_keys, (dq, *carry))
        return tuple(carry), dq.transpose(0, 2, 3, 1)

    zeros = (jnp.zeros(b.k_ZKYH.shape, jnp.float32), jnp.zeros(b.v_ZKYH.shape, jnp.float32))
    (dk, dv), dq = jax.lax.scan(query_block, zeros, jnp.arange(len(b.count_Z)))
    scale = q_WUNH.shape[-1] ** -0.5  # of the scores; dk has it from q
    dq_WUNH = (_to_rows(dq, q_WUNH.shape) * scale).astype(q_WUNH.dtype)
    dk_WUKH = _to_rows(dk[:, :, None], k_WUKH.shape).astype(k_WUKH.dtype)
    return dq_WUNH, dk_WUKH, _to_rows(dv[:, :, None], v_WUKH.shape).astype(v_WUKH.dtype), None


attend.defvjp(_forward, _backward)


def _cut(q_WUNH, k_WUKH, v_WUKH, spans, block) -> Blocks:
    W, U, K, H = k_WUKH.shape
    added_U = jnp.arange(U, U + -U % block, dtype=jnp.int32)
    own_WU = jnp.broadcast_to(added_U, (W, len(added_U)))  # padding sees itself
    spans = Spans(*(jnp.concatenate([x, own_WU], axis=1).reshape(-1, block) for x in spans))
    q_ZKRYH = _to_blocks(q_WUNH * H**-0.5, K, block)
    k_ZKYH, v_ZKYH = (_to_blocks(x, K, block)[:, :, 0] for x in (k_WUKH, v_WUKH))
    return Blocks(q_ZKRYH, k_ZKYH, v_ZKYH, spans, *live(spans, W))


def live(spans_ZY, W):
    """(key_ZX, count_Z): key blocks that some slot of a query block sees, in order, come first."""
    Z, Y = spans_ZY.first_WU.shape
    X = Z // W
    slot_ZY1 = (jnp.arange(X * Y).reshape(X, Y)[jnp.arange(Z) % X])[..., None]
    start_X = jnp.arange(X)[None, None] * Y
    first, prompt_first, prompt_end = (x[..., None] for x in spans_ZY)
    sees_ZYX = (first < start_X + Y) | ((prompt_first < start_X + Y) & (prompt_end > start_X))
    live_ZX = (sees_ZYX & (start_X <= slot_ZY1)).any(axis=1)
    key_ZX = jnp.argsort(~live_ZX, axis=1, stable=True) + (jnp.arange(Z) // X * X)[:, None]
    return key_ZX, live_ZX.sum(axis=1)


def _mask(blocks: Blocks, z, y):
    """[Y, Y] bool: which keys of block y the queries of block z see."""
    Z, Y = blocks.spans_ZY.first_WU.shape
    X = blocks.key_ZX.shape[1]
    slot, key_slot = (n % X * Y + jnp.arange(Y) for n in (z, y))
    return visible(Spans(*(x[z] for x in blocks.spans_ZY)), slot[:, None], key_slot[None])


def _to_blocks(x_WUNH, K: int, block: int):
    """[W, U, K * R, H] -> [Z, K, R, Y, H], zeros after the last slot."""
    W, U, N, H = x_WUNH.shape
    x = jnp.pad(x_WUNH, ((0, 0), (0, -U % block), (0, 0), (0, 0)))
    return x.reshape(-1, block, K, N // K, H).transpose(0, 2, 3, 1, 4)


def _to_rows(x_ZKRYH, shape):
    """`_to_blocks` undone."""
    W, U, N, H = shape
    return x_ZKRYH.transpose(0, 3, 1, 2, 4).reshape(W, -1, N, H)[:, :U]
