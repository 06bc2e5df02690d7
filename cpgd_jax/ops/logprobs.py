"""Token log-probabilities and entropies from hidden states, never logits of all tokens at once.

Logits exist as tiles [c, v] of a chunk of tokens and a chunk of the vocabulary. A tile leaves the
sums of a streaming log-sum-exp (arXiv 1805.02867) and is computed again in the backward pass:
four matrix products for the plain form's three, against its many passes over [tokens, V].

Where the ambient mesh (`jax.set_mesh`) splits the vocabulary, each device works on its own slice of
the head and only sums a token travel: the head is never gathered.
"""

import functools
import math
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from cpgd_jax.sharding import RULES, platform

LOWEST = -1e30  # logit of an id counted before; finite, so that 0 * (LOWEST - peak) is 0, not NaN


TILES = {"cpu": (1024, 2048), "else": (8192, 4096)}  # tokens, ids; a processor's must fit its cache


def token_logprobs(
    hidden,
    head_VD,
    token,
    *,
    temperature: float,
    token_chunk: int | None = None,
    vocab_chunk: int | None = None,
):
    """ln softmax(hidden @ head.T / temperature)[token] and the entropy: float32, shaped as `token`.

    hidden [..., D] is the state that predicts token [...] (int): rows [B, T] or packed tokens [C].
    head_VD is cast to hidden's dtype a chunk at a time; its gradient is summed in float32.
    token_chunk, vocab_chunk: a tile has at most so many tokens a data-parallel device, and ids;
    None = what suits the backend.
    Raises ValueError for a temperature that is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature} is not positive: scoring has no greedy limit")
    chex.assert_equal_shape_prefix((hidden, token), token.ndim)
    chex.assert_equal_shape_suffix((hidden, head_VD), 1)
    tokens, ids = TILES.get(platform(), TILES["else"])
    chunks = -(-token.size // ((token_chunk or tokens) * math.prod(map(_ways, RULES["batch"]))))

    def fold(x):
        """[C, ...] -> [M, c, ...], strided, so that tokens spread over devices stay spread."""
        x = jnp.pad(x, [(0, -len(x) % chunks)] + [(0, 0)] * (x.ndim - 1))
        return jnp.swapaxes(x.reshape(-1, chunks, *x.shape[1:]), 0, 1)

    hidden_McD, token_Mc = fold(hidden.reshape(token.size, -1)), fold(token.reshape(-1))
    out = _logprobs(hidden_McD, head_VD, token_Mc, temperature, vocab_chunk or ids)
    return tuple(x_Mc.T.reshape(-1)[: token.size].reshape(token.shape) for x_Mc in out)


class _Law(NamedTuple):
    """What the forward pass finds of each token's softmax; the backward pass needs no more."""

    peak_Mc: Any  # the largest logit
    log_mass_Mc: Any  # ln of the sum of exp(logit - peak)
    entropy_Mc: Any


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _logprobs(hidden_McD, head_VD, token_Mc, temperature, vocab_chunk):
    """(logp_Mc, entropy_Mc) of M chunks of c tokens."""
    return _forward(hidden_McD, head_VD, token_Mc, temperature, vocab_chunk)[0]


def _forward(hidden_McD, head_VD, token_Mc, temperature, vocab_chunk):
    sums = functools.partial(_sums, temperature=temperature, vocab_chunk=vocab_chunk)
    peak, mass, moment, target = _over_vocabulary(sums, head_VD, hidden_McD, token_Mc)
    peak_Mc = peak.max(axis=0)
    shift = peak - peak_Mc[None]
    weight = jnp.exp(shift)
    mass_Mc = (weight * mass).sum(axis=0)  # at least 1: no log-probability comes out above 0
    moment_Mc = (weight * (moment + mass * shift)).sum(axis=0)
    law = _Law(peak_Mc, jnp.log(mass_Mc), jnp.log(mass_Mc) - moment_Mc / mass_Mc)
    logp_Mc = (target.sum(axis=0) - peak_Mc) - law.log_mass_Mc
    return (logp_Mc, law.entropy_Mc), (hidden_McD, head_VD, token_Mc, law)


def _backward(temperature, vocab_chunk, residuals, cotangents):
    hidden_McD, head_VD, *_ = residuals
    grads = functools.partial(_grads, temperature=temperature, vocab_chunk=vocab_chunk)
    others = (hidden_McD, *residuals[2:], *cotangents)
    dhidden_1McD, dhead_VD = _over_vocabulary(grads, head_VD, *others)
    dhidden_McD = dhidden_1McD.sum(axis=0)  # over the slices of the vocabulary
    return dhidden_McD.astype(hidden_McD.dtype), dhead_VD, None


_logprobs.defvjp(_forward, _backward)


def _sums(first_id, head_VD, hidden_McD, token_Mc, *, temperature, vocab_chunk):
    """(peak, mass, moment, target), each [vocabulary chunks, M, c]: with z a chunk's logits,
    max z, sum exp(z - peak), sum exp(z - peak) (z - peak), and z of the token or 0."""

    def of_tile(chunk, hidden_cD, token_c):
        logits_cv = _logits(hidden_cD, chunk, temperature)
        logits_cv = jnp.where(chunk.new_v[None], logits_cv, LOWEST)
        peak_c = logits_cv.max(axis=1)
        shifted_cv = logits_cv - peak_c[:, None]
        weight_cv = jnp.exp(shifted_cv)
        at_c = token_c - chunk.id_v[0]
        inside_c = (at_c >= 0) & (at_c < len(chunk.id_v)) & chunk.new_v[at_c]
        logit_c = jnp.take_along_axis(logits_cv, at_c[:, None], axis=1, mode="clip")[:, 0]
        moment_c = (weight_cv * shifted_cv).sum(axis=1)
        return peak_c, weight_cv.sum(axis=1), moment_c, jnp.where(inside_c, logit_c, 0.0)

    def of_chunk(i):
        chunk = _chunk(head_VD, i, first_id, vocab_chunk, hidden_McD.dtype)
        return jax.lax.map(lambda xs: of_tile(chunk, *xs), (hidden_McD, token_Mc))

    return jax.lax.map(of_chunk, jnp.arange(_chunks(head_VD, vocab_chunk)))


def _grads(
    first_id, head_VD, hidden_McD, token_Mc, law, dlogp_Mc, dentropy_Mc, *, temperature, vocab_chunk
):
    """(dhidden [1, M, c, D] float32, dhead_VD). The vocabulary is the outer loop, so that a row of
    the head's gradient is summed, in float32, before it is written; hidden's is carried along."""

    def of_tile(chunk, dhead_Dv, xs):
        hidden_cD, token_c, law, dlogp_c, dentropy_c, dhidden_cD = xs
        logits_cv = _logits(hidden_cD, chunk, temperature)
        logp_cv = (logits_cv - law.peak_Mc[:, None]) - law.log_mass_Mc[:, None]
        surprise_cv = logp_cv + law.entropy_Mc[:, None]
        dlogits_cv = jnp.where(chunk.id_v[None] == token_c[:, None], dlogp_c[:, None], 0.0)
        dlogits_cv -= jnp.exp(logp_cv) * (dlogp_c[:, None] + dentropy_c[:, None] * surprise_cv)
        dlogits_cv = jnp.where(chunk.new_v[None], dlogits_cv / temperature, 0.0)
        dlogits_cv = dlogits_cv.astype(hidden_cD.dtype)
        dhidden_cD += _einsum("cv,vd->cd", dlogits_cv, chunk.head_vD)
        # this way about, since XLA's CPU backend would transpose the tile, as dear as a product
        return dhead_Dv + _einsum("cd,cv->dv", hidden_cD, dlogits_cv), dhidden_cD

    def of_chunk(grads, i):
        dhidden_McD, dhead_VD = grads
        chunk = _chunk(head_VD, i, first_id, vocab_chunk, hidden_McD.dtype)
        xs = (hidden_McD, token_Mc, law, dlogp_Mc, dentropy_Mc, dhidden_McD)
        zeros_Dv = jnp.zeros(chunk.head_vD.shape[::-1], jnp.float32)
        dhead_Dv, dhidden_McD = jax.lax.scan(functools.partial(of_tile, chunk), zeros_Dv, xs)
        dhead_vD, start = dhead_Dv.T.astype(dhead_VD.dtype), chunk.id_v[0] - first_id
        dhead_VD = jax.lax.dynamic_update_slice_in_dim(dhead_VD, dhead_vD, start, 0)
        return (dhidden_McD, dhead_VD), None

    zeros = (jnp.zeros(hidden_McD.shape, jnp.float32), jnp.zeros_like(head_VD))
    # The last chunk first: it writes zeros where it reaches back, which the chunk before mends.
    chunks = jnp.arange(_chunks(head_VD, vocab_chunk))
    grads, _ = jax.lax.scan(of_chunk, zeros, chunks, reverse=True)
    return grads[0][None], grads[1]


class _Chunk(NamedTuple):
    head_vD: Any
    id_v: Any  # of each row in the whole vocabulary
    new_v: Any  # False = the chunk before has had it: the last chunk reaches back to be whole


def _chunks(head_VD, vocab_chunk: int) -> int:
    return -(-len(head_VD) // vocab_chunk)


def _chunk(head_VD, i, first_id, vocab_chunk: int, dtype) -> _Chunk:
    """Chunk i of a slice of the head whose first row is id `first_id`."""
    width = -(-len(head_VD) // _chunks(head_VD, vocab_chunk))
    start = jnp.minimum(i * width, len(head_VD) - width)
    row_v = start + jnp.arange(width)
    head_vD = jax.lax.dynamic_slice_in_dim(head_VD, start, width).astype(dtype)
    return _Chunk(head_vD, first_id + row_v, row_v >= i * width)


def _logits(hidden_cD, chunk: _Chunk, temperature: float):
    return _einsum("cd,vd->cv", hidden_cD, chunk.head_vD) / temperature


_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _over_vocabulary(fn, head_VD, *args):
    """fn(id of the first row, rows, *args), on each device for its own rows of the head where the
    ambient mesh splits the vocabulary; outputs are joined on their first axis."""
    axis = RULES["vocab"]
    if _ways(axis) == 1:
        return fn(0, head_VD, *args)

    def on_device(head_VD, *args):
        return fn(jax.lax.axis_index(axis) * len(head_VD), head_VD, *args)

    in_specs = (P(axis), *(P() for _ in args))
    return jax.shard_map(
        on_device, in_specs=in_specs, out_specs=P(axis), axis_names={axis}, check_vma=False
    )(head_VD, *args)


def _ways(mesh_axis: str) -> int:
    """Into how many parts the ambient mesh splits what lies on this axis."""
    return jax.sharding.get_abstract_mesh().shape.get(mesh_axis, 1)
