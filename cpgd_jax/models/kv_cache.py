"""The key/value cache of a rollout: prompts once a group, responses once a row, keys rotated."""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class KVCache:
    prompt_k_LQSKH: jax.Array
    prompt_v_LQSKH: jax.Array
    prompt_mask_QS: jax.Array  # bool, True = a prompt token
    k_LBTKH: jax.Array  # response keys; column t is response token t
    v_LBTKH: jax.Array


def start(
    prompt_k_LQSKH, prompt_v_LQSKH, prompt_mask_QS, group: int, max_new_tokens: int
) -> KVCache:
    """The cache after a prefill of Q prompts, with room for `group` responses each."""
    L, Q, _, K, H = prompt_k_LQSKH.shape
    empty = jnp.zeros((L, Q * group, max_new_tokens, K, H), prompt_k_LQSKH.dtype)
    return KVCache(prompt_k_LQSKH, prompt_v_LQSKH, prompt_mask_QS, empty, empty)


def write(cache: KVCache, layer, column, k_BKH, v_BKH) -> KVCache:
    """Writes one token of every row at a common column of one layer."""
    start_at = (layer, 0, column, 0, 0)
    return cache.replace(
        k_LBTKH=jax.lax.dynamic_update_slice(cache.k_LBTKH, k_BKH[None, :, None], start_at),
        v_LBTKH=jax.lax.dynamic_update_slice(cache.v_LBTKH, v_BKH[None, :, None], start_at),
    )
