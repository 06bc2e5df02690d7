"""Token log-probabilities and entropies from hidden states, never logits of all tokens at once.

Logits exist as tiles [c, v] of a chunk of tokens and a chunk of the vocabulary. A tile leaves the
sums of a streaming log-sum-exp (arXiv 1805.02867) and is computed again in the backward pass:
four matrix products for the plain form's three, against its many passes over [tokens, V].

On the ambient mesh (`jax.set_mesh`) each device works on its own tokens and its own slice of the
vocabulary: sums a token travel, and of a slice's width a chunk at a time. The head is never whole.
"""

import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from cpgd_jax.sharding import RULES, platform, ways

VOCAB, WIDTH, ROWS = RULES["vocab"], RULES["embed"], RULES["batch"]  # mesh axes
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
    token_chunk, vocab_chunk: a tile has at most so many tokens and ids; None = what suits the
    backend.
    Raises ValueError for a temperature that is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature} is not positive: scoring has no greedy limit")
    chex.assert_equal_shape_prefix((hidden, token), token.ndim)
    chex.assert_equal_shape_suffix((hidden, head_VD), 1)
    tokens, ids = TILES.get(platform(), TILES["else"])
    tile = min(token_chunk or tokens, token.size), vocab_chunk or ids
    missing = -token.size % ways(RULES["batch"])
    hidden_CD = jnp.pad(hidden.reshape(token.size, -1), ((0, missing), (0, 0)))
    token_C = jnp.pad(token.reshape(-1), (0, missing))
    out = _logprobs(hidden_CD, head_VD, token_C, temperature, tile)
    return tuple(x_C[: token.size].reshape(token.shape) for x_C in out)


class _Law(NamedTuple):
    """What the forward pass finds of each token's softmax; the backward pass needs no more."""

    peak_C: Any  # the largest logit
    log_mass_C: Any  # ln of the sum of exp(logit - peak)
    entropy_C: Any


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _logprobs(hidden_CD, head_VD, token_C, temperature, tile):
    """(logp_C, entropy_C)"""
    return _forward(hidden_CD, head_VD, token_C, temperature, tile)[0]


def _forward(hidden_CD, head_VD, token_C, temperature, tile):
    sums = functools.partial(_sums, temperature=temperature, tile=tile)
    peak, mass, moment, target = _on_devices(sums, P(VOCAB, ROWS), head_VD, hidden_CD, token_C)
    peak_C = peak.max(axis=0)
    shift = peak - peak_C[None]
    weight = jnp.exp(shift)
    mass_C = (weight * mass).sum(axis=0)  # at least 1: no log-probability comes out above 0
    moment_C = (weight * (moment + mass * shift)).sum(axis=0)
    law = _Law(peak_C, jnp.log(mass_C), jnp.log(mass_C) - moment_C / mass_C)
    logp_C = (target.sum(axis=0) - peak_C) - law.log_mass_C
    return (logp_C, law.entropy_C), (hidden_CD, head_VD, token_C, law)


def _backward(temperature, tile, residuals, cotangents):
    hidden_CD, head_VD, token_C, law = residuals
    grads = functools.partial(_grads, temperature=temperature, tile=tile)
    places = (P(ROWS), P(VOCAB, WIDTH))
    others = (hidden_CD, token_C, law, *cotangents)
    dhidden_CD, dhead_VD = _on_devices(grads, places, head_VD, *others)
    return dhidden_CD.astype(hidden_CD.dtype), dhead_VD, None


_logprobs.defvjp(_forward, _backward)


def _on_devices(fn, out_specs, head_VD, *args):
    """fn(split, id of the first row, rows, *args) on each device of the ambient mesh, for its rows
    of the head and its tokens of the others; split: there are several devices."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size <= 1:
        return fn(False, 0, head_VD, *args)

    def on_device(head_VD, *args):
        first_id = jax.lax.axis_index(VOCAB) * len(head_VD)
        return fn(True, first_id, head_VD, *args)

    in_specs = (P(VOCAB, WIDTH), *(P(ROWS) for _ in args))
    return jax.shard_map(on_device, in_specs=in_specs, out_specs=out_specs, check_vma=False)(
        head_VD, *args
    )


def _fold(x_C, most: int):
    """[C, ...] -> [M, c, ...] of c <= most, filled up with zeros."""
    count = -(-len(x_C) // most)
    size = -(-len(x_C) // count)
    x_C = jnp.pad(x_C, [(0, count * size - len(x_C))] + [(0, 0)] * (x_C.ndim - 1))
    return x_C.reshape(count, size, *x_C.shape[1:])


def _sums(split, first_id, head_VD, hidden_CD, token_C, *, temperature, tile):
    """(peak, mass, moment, target), each [vocabulary chunks, C]: with z a chunk's logits,
    max z, sum exp(z - peak), sum exp(z - peak) (z - peak), and z of the token or 0."""
    C, (tokens, ids) = len(token_C), tile
    hidden_McD, token_Mc = _fold(hidden_CD, tokens), _fold(token_C, tokens)

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
        chunk = _chunk(head_VD, i, first_id, ids, hidden_McD.dtype, split)
        sums = jax.lax.map(lambda xs: of_tile(chunk, *xs), (hidden_McD, token_Mc))
        return tuple(x_Mc.reshape(-1)[:C] for x_Mc in sums)

    return jax.lax.map(of_chunk, jnp.arange(_chunks(head_VD, ids)))


def _grads(
    split, first_id, head_VD, hidden_CD, token_C, law, dlogp_C, dentropy_C, *, temperature, tile
):
    """(dhidden_CD float32, dhead_VD). The vocabulary is the outer loop, so that a row of the head's
    gradient is summed, in float32, before it is written; hidden's is carried along."""
    C, (tokens, ids) = len(token_C), tile
    given = (hidden_CD, token_C, law, dlogp_C, dentropy_C)
    given = jax.tree.map(lambda x_C: _fold(x_C, tokens), given)
    hidden_McD = given[0]

    def of_tile(chunk, dhead_Dv, xs):
        hidden_cD, token_c, law, dlogp_c, dentropy_c, dhidden_cD = xs
        logits_cv = _logits(hidden_cD, chunk, temperature)
        logp_cv = (logits_cv - law.peak_C[:, None]) - law.log_mass_C[:, None]
        surprise_cv = logp_cv + law.entropy_C[:, None]
        dlogits_cv = jnp.where(chunk.id_v[None] == token_c[:, None], dlogp_c[:, None], 0.0)
        dlogits_cv -= jnp.exp(logp_cv) * (dlogp_c[:, None] + dentropy_c[:, None] * surprise_cv)
        dlogits_cv = jnp.where(chunk.new_v[None], dlogits_cv / temperature, 0.0)
        dlogits_cv = dlogits_cv.astype(hidden_cD.dtype)
        dhidden_cD += _einsum("cv,vd->cd", dlogits_cv, chunk.head_vD)
        # this way about, since XLA's CPU backend would transpose the tile, as dear as a product
        return dhead_Dv + _einsum("cd,cv->dv", hidden_cD, dlogits_cv), dhidden_cD

    def of_chunk(grads, i):
        dhidden_McD, dhead_VD = grads
        chunk = _chunk(head_VD, i, first_id, ids, hidden_McD.dtype, split)
        xs = (*given, dhidden_McD)
        zeros_Dv = jnp.zeros(chunk.head_vD.shape[::-1], jnp.float32)
        dhead_Dv, dhidden_McD = jax.lax.scan(functools.partial(of_tile, chunk), zeros_Dv, xs)
        dhead_Dv = _summed(dhead_Dv, split)
        dhead_vD, start = dhead_Dv.T.astype(dhead_VD.dtype), chunk.id_v[0] - first_id
        dhead_VD = jax.lax.dynamic_update_slice_in_dim(dhead_VD, dhead_vD, start, 0)
        return (dhidden_McD, dhead_VD), None

    zeros = (jnp.zeros(hidden_McD.shape, jnp.float32), jnp.zeros_like(head_VD))
    # The last chunk first: it writes zeros where it reaches back, which the chunk before mends.
    chunks = jnp.arange(_chunks(head_VD, ids))
    (dhidden_McD, dhead_VD), _ = jax.lax.scan(of_chunk, zeros, chunks, reverse=True)
    dhidden_CD = dhidden_McD.reshape(-1, dhidden_McD.shape[-1])[:C]
    return jax.lax.psum(dhidden_CD, VOCAB) if split else dhidden_CD, dhead_VD


class _Chunk(NamedTuple):
    head_vD: Any
    id_v: Any  # of each row in the whole vocabulary
    new_v: Any  # False = the chunk before has had it: the last chunk reaches back to be whole


def _chunks(head_VD, vocab_chunk: int) -> int:
    return -(-len(head_VD) // vocab_chunk)


def _chunk(head_VD, i, first_id, vocab_chunk: int, dtype, split) -> _Chunk:
    """Chunk i of a slice of the head whose first row is id `first_id`, in its whole width."""
    width = -(-len(head_VD) // _chunks(head_VD, vocab_chunk))
    start = jnp.minimum(i * width, len(head_VD) - width)
    row_v = start + jnp.arange(width)
    head_vD = jax.lax.dynamic_slice_in_dim(head_VD, start, width).astype(dtype)
    if split:
        head_vD = jax.lax.all_gather(head_vD, WIDTH, axis=1, tiled=True)
    return _Chunk(head_vD, first_id + row_v, row_v >= i * width)


def _logits(hidden_cD, chunk: _Chunk, temperature: float):
    return _einsum("cd,vd->cv", hidden_cD, chunk.head_vD) / temperature


_einsum = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _summed(dhead_Dv, split):
    """Over the tokens of all devices; each keeps its part of the width."""
    if not split:
        return dhead_Dv
    dhead_Dv = jax.lax.psum_scatter(dhead_Dv, WIDTH, scatter_dimension=0, tiled=True)
    others = tuple(axis for axis in ROWS if axis != WIDTH)
    return jax.lax.psum(dhead_Dv, others)
