"""Token log-probabilities and entropies from hidden states, never logits of all tokens at once."""

import chex
import jax
import jax.numpy as jnp


def token_logprobs(hidden_BTD, head_VD, token_BT, *, temperature: float, chunk: int = 1024):
    """ln softmax(hidden @ head.T / temperature)[token] and the entropy, both [B, T] float32.

    Works through the B*T tokens `chunk` at a time and recomputes the logits of a chunk in the
    backward pass, so that at most [chunk, V] of them exist. `hidden[:, t]` must be the state that
    predicts `token[:, t]`. Raises ValueError for a temperature that is not positive.
    """
    if temperature <= 0:
        raise ValueError(f"temperature {temperature} is not positive: scoring has no greedy limit")
    chex.assert_rank((hidden_BTD, head_VD, token_BT), (3, 2, 2))
    B, T, D = hidden_BTD.shape
    count = B * T
    chunk = min(chunk, count)
    padding = -count % chunk
    hidden_CD = jnp.pad(hidden_BTD.reshape(count, D), ((0, padding), (0, 0)))
    token_C = jnp.pad(token_BT.reshape(count), (0, padding))
    head_VD = head_VD.astype(hidden_BTD.dtype)

    @jax.checkpoint
    def one_chunk(hidden_cD, token_c):
        logits_cV = jnp.einsum("cd,vd->cv", hidden_cD, head_VD, preferred_element_type=jnp.float32)
        return from_logits(logits_cV / temperature, token_c)

    if padding + count == chunk:
        logp_C, entropy_C = one_chunk(hidden_CD, token_C)
    else:
        chunked = (hidden_CD.reshape(-1, chunk, D), token_C.reshape(-1, chunk))
        logp_C, entropy_C = jax.lax.map(lambda xs: one_chunk(*xs), chunked)
    return logp_C.reshape(-1)[:count].reshape(B, T), entropy_C.reshape(-1)[:count].reshape(B, T)


def from_logits(logits, token):
    """logits [..., V] (already divided by the temperature), token [...] -> (logp, entropy) float32.

    -inf logits (forbidden tokens) add nothing to the entropy.
    """
    logp_all = jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    logp = jnp.take_along_axis(logp_all, token[..., None], axis=-1)[..., 0]
    finite = jnp.isfinite(logp_all)
    safe = jnp.where(finite, logp_all, 0.0)
    return logp, -jnp.sum(jnp.where(finite, jnp.exp(safe) * safe, 0.0), axis=-1)
