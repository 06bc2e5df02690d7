"""The key/value cache of a rollout: prompts once a group, responses once a row, keys rotated.

One record a layer, heads before columns, keys transposed: what a decode step multiplies lies as the
matmul reads it, and the step's own token is one slice.
"""

import jax
import jax.numpy as jnp
from flax import struct


@struct.dataclass
class LayerCache:
    prompt_k_QKHS: jax.Array
    prompt_v_QKSH: jax.Array
    k_BKHT: jax.Array  # response keys; column t is response token t
    v_BKTH: jax.Array


@struct.dataclass
class KVCache:
    prompt_mask_QS: jax.Array  # bool, True = a prompt token
    layers: tuple[LayerCache, ...]


def start(
    prompt_k_LQSKH, prompt_v_LQSKH, prompt_mask_QS, group: int, max_new_tokens: int
) -> KVCache:
    """The cache after a prefill of Q prompts, with room for `group` responses each."""
    L, Q, _, K, H = prompt_k_LQSKH.shape
    k_BKHT = jnp.zeros((Q * group, K, H, max_new_tokens), prompt_k_LQSKH.dtype)
    prompt_k_LQKHS = prompt_k_LQSKH.transpose(0, 1, 3, 4, 2)
    prompts = zip(prompt_k_LQKHS, prompt_v_LQSKH.swapaxes(2, 3), strict=True)
    layers = (LayerCache(k, v, k_BKHT, k_BKHT.swapaxes(2, 3)) for k, v in prompts)
    return KVCache(prompt_mask_QS, tuple(layers))


def write(cache: LayerCache, column, k_BKH, v_BKH) -> LayerCache:
    """Writes one token of every row at a common column."""
    return cache.replace(
        k_BKHT=jax.lax.dynamic_update_slice(cache.k_BKHT, k_BKH[..., None], (0, 0, 0, column)),
        v_BKTH=jax.lax.dynamic_update_slice(cache.v_BKTH, v_BKH[:, :, None], (0, 0, column, 0)),
    )
