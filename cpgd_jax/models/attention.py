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


def attend_shared(q_BNH, prompt_k_QSKH, prompt_v_QSKH, prompt_mask_QS, k_BTKH, v_BTKH, mask_BT):
    """One query a row over its prompt's keys (one copy a group) and its own response keys.

    Rows are group by group, B = Q * G. mask True = may attend. Returns [B, N, H].
    """
    B, N, H = q_BNH.shape
    Q, S, K, _ = prompt_k_QSKH.shape
    q_QGKRH = q_BNH.reshape(Q, B // Q, K, N // K, H) * H**-0.5
    k_QGTKH = k_BTKH.reshape(Q, B // Q, *k_BTKH.shape[1:])
    v_QGTKH = v_BTKH.reshape(k_QGTKH.shape)
    own_mask = mask_BT.reshape(Q, B // Q, 1, 1, -1)

    f32 = jnp.float32
    prompt = jnp.einsum("qgkrh,qskh->qgkrs", q_QGKRH, prompt_k_QSKH, preferred_element_type=f32)
    own = jnp.einsum("qgkrh,qgtkh->qgkrt", q_QGKRH, k_QGTKH, preferred_element_type=f32)
    prompt = jnp.where(prompt_mask_QS[:, None, None, None, :], prompt, MASKED)
    own = jnp.where(own_mask, own, MASKED)
    weight = jax.nn.softmax(jnp.concatenate([prompt, own], axis=-1), axis=-1).astype(q_BNH.dtype)
    out = jnp.einsum("qgkrs,qskh->qgkrh", weight[..., :S], prompt_v_QSKH)
    out += jnp.einsum("qgkrt,qgtkh->qgkrh", weight[..., S:], v_QGTKH)
    return out.reshape(B, N, H)
