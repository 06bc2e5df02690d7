"""Grouped-query attention (arXiv 2305.13245) of whole sequences.

Head n = k * R + r of N query heads reads key/value head k of K. Softmax in float32.
"""

import functools

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from cpgd_jax.errors import UserError
from cpgd_jax.models import chunked_attention, splash
from cpgd_jax.sharding import RULES, platform
from cpgd_jax.types import Spans

MASKED = chunked_attention.MASKED
SHORT = 256  # slots of a row up to which one matmul over all pairs is the fastest
BLOCK = 64


def attend(q_BTNH, k_BSKH, v_BSKH, mask_BTS):
    """Softmax attention; mask True = may attend. Returns [B, T, N, H]."""
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    q_BTKRH = q_BTNH.reshape(B, T, K, N // K, H)
    score = jnp.einsum("btkrh,bskh->bkrts", q_BTKRH, k_BSKH, preferred_element_type=jnp.float32)
    score = jnp.where(mask_BTS[:, None, None], score * H**-0.5, MASKED)
    weight = jax.nn.softmax(score, axis=-1).astype(v_BSKH.dtype)
    return jnp.einsum("bkrts,bskh->btkrh", weight, v_BSKH).reshape(B, T, N, H)


def over(spans: Spans, implementation: str, dtype):
    """attend(q [W, U, N, H], k, v [W, U, K, H]) -> [W, U, N, H] over the slots that `spans` shows.

    implementation: dense, chunked, splash (TPU), cudnn (GPU), or auto: dense for short rows, else
    splash on a TPU, cudnn on a GPU in bfloat16, chunked elsewhere. On a mesh (`jax.set_mesh`) each
    device attends for its own rows and heads.
    """
    name = choose(implementation, spans.first_WU.shape[1], jnp.dtype(dtype))
    if name == "dense":
        mask_WUU = _mask(spans)
        return lambda q, k, v: attend(q, k, v, mask_WUU)
    fn = IMPLEMENTATIONS[name]
    if jax.sharding.get_abstract_mesh().size > 1:
        rows, heads = P(RULES["batch"]), P(RULES["batch"], None, RULES["heads"])
        in_specs = (heads, heads, heads, rows)
        fn = jax.shard_map(fn, in_specs=in_specs, out_specs=heads, check_vma=False)
    return lambda q, k, v: fn(q, k, v, spans)


def row_len(implementation: str, dtype) -> int:
    """Slots of a packed row for which it works well; 0 = the more the better."""
    return ROW_LEN[choose(implementation, SHORT + 1, jnp.dtype(dtype))]


def padded(mask_BT) -> Spans:
    """Spans of one sequence a row, padding on either side; True = a token."""
    slot_BT = jnp.broadcast_to(jnp.arange(mask_BT.shape[1], dtype=jnp.int32), mask_BT.shape)
    first_B1 = jnp.argmax(mask_BT, axis=1, keepdims=True).astype(jnp.int32)
    return Spans(jnp.where(mask_BT, first_B1, slot_BT), slot_BT, slot_BT)


def choose(implementation: str, slots: int, dtype) -> str:
    if implementation != "auto":
        return implementation
    if slots <= SHORT:
        return "dense"
    if platform() == "gpu" and dtype == jnp.bfloat16:
        return "cudnn"
    return "splash" if platform() == "tpu" else "chunked"


def _mask(spans: Spans):
    """bool [W, U, U]"""
    slot_U = jnp.arange(spans.first_WU.shape[1])
    return chunked_attention.visible(spans, slot_U[None, :, None], slot_U[None, None])


def _cudnn(q_WUNH, k_WUKH, v_WUKH, spans):
    """cuDNN's flash attention with a mask: no scores are kept, but all blocks are computed."""
    if q_WUNH.dtype == jnp.float32:
        raise UserError(
            "config.model.attention is 'cudnn' and config.model.dtype 'float32': cuDNN attends in"
            " bfloat16 only; set the one to 'chunked' or the other to 'bfloat16'"
        )
    mask_W1UU = _mask(spans)[:, None]
    return jax.nn.dot_product_attention(
        q_WUNH, k_WUKH, v_WUKH, mask=mask_W1UU, implementation="cudnn"
    )


IMPLEMENTATIONS = {
    "chunked": functools.partial(chunked_attention.attend, block=BLOCK),
    "splash": splash.attend,
    "cudnn": _cudnn,
}
ROW_LEN = {  # the others hold a mask of a row's slots squared, cudnn and dense compute all of it
    "chunked": 0,
    "splash": 8192,
    "cudnn": 4096,
    "dense": 1024,
}
