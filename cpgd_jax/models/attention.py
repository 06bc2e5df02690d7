"""Grouped-query attention (arXiv 2305.13245): whole sequences, or a cache with a shared prompt.

Head n = k * R + r of N query heads reads key/value head k of K. Softmax in float32.
"""

import jax
import jax.numpy as jnp

MASKED = -1e30  # finite, so that a query with nothing to attend to gives a number, not NaN


def attend(q_BTNH, k_BSKH, v_BSKH, mask_BTS):
    """Softmax attention; mask True = may attend. Returns [B, T, N, H]."""
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    q_BTKRH = q_BTNH.reshape(B, T, K, N // K, H)
    score = jnp.einsum("btkrh,bskh->bkrts", q_BTKRH, k_BSKH, preferred_element_type=jnp.float32)
    score = jnp.where(mask_BTS[:, None, None], score * H**-0.5, MASKED)
    weight = jax.nn.softmax(score, axis=-1).astype(v_BSKH.dtype)
    return jnp.einsum("bkrts,bskh->btkrh", weight, v_BSKH).reshape(B, T, N, H)


def attend_shared(q_BNH, cache, prompt_mask_QS, mask_BT):
    """One query a row over its prompt's keys (one copy a group) and its own response keys.

    cache: a `kv_cache.LayerCache`. Rows are group by group, B = Q * G. mask True = may attend.
    Returns [B, N, H].
    """
    B, N, H = q_BNH.shape
    Q, K, _, S = cache.prompt_k_QKHS.shape
    q_BKRH = q_BNH.reshape(B, K, N // K, H) * H**-0.5
    q_QGKRH = q_BKRH.reshape(Q, B // Q, K, N // K, H)

    f32 = jnp.float32
    own = jnp.einsum("bkrh,bkht->bkrt", q_BKRH, cache.k_BKHT, preferred_element_type=f32)
    prompt = jnp.einsum(
        "qgkrh,qkhs->qgkrs", q_QGKRH, cache.prompt_k_QKHS, preferred_element_type=f32
    )
    own = jnp.where(mask_BT[:, None, None], own, MASKED)
    prompt = jnp.where(prompt_mask_QS[:, None, None, None], prompt, MASKED)
    score = jnp.concatenate([prompt.reshape(*own.shape[:3], S), own], axis=-1)
    weight = jax.nn.softmax(score, axis=-1).astype(q_BNH.dtype)
    weight_QGKRS = weight[..., :S].reshape(prompt.shape)
    out = jnp.einsum("qgkrs,qksh->qgkrh", weight_QGKRS, cache.prompt_v_QKSH).reshape(q_BKRH.shape)
    out += jnp.einsum("bkrt,bkth->bkrh", weight[..., S:], cache.v_BKTH)
    return out.reshape(B, N, H)
