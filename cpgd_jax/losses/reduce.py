"""Aggregations of per-token losses to a scalar, as weights: loss = Σ_b weight_b Σ_t loss_bt.

Every aggregation gives all tokens of a response the same weight. Its denominator counts what one
optimiser step sees, over all devices and microbatches, so a train step computes the weights once,
from the whole step's mask, and hands each microbatch its slice. A response without an unmasked
token is in neither numerator nor denominator; all masked gives 0.
"""

import chex
import jax
import jax.numpy as jnp

from cpgd_jax.errors import UserError


def token_weights(aggregation, mask_BT, group_B, max_response_len=None):
    """`response_weights` on each unmasked token: float32 [B, T], 0 where masked."""
    weight_B = response_weights(aggregation, mask_BT, group_B, max_response_len)
    return jnp.where(mask_BT, weight_B[:, None], 0.0)


def response_weights(aggregation, mask_BT, group_B, max_response_len=None):
    """Weight that every token of a response has in its optimiser step: float32 [B].

    `mask_BT` bool; `group_B` int, any label that tells prompts apart; `max_response_len` in tokens,
    for `constant_length` (Dr.GRPO, arXiv 2503.20783) only.
    Raises UserError: unknown aggregation, or `constant_length` without its length.
    """
    chex.assert_rank([mask_BT, group_B], [2, 1])
    chex.assert_type(mask_BT, bool)
    chex.assert_type(group_B, int)
    chex.assert_equal_shape_prefix((mask_BT, group_B), 1)
    if aggregation not in AGGREGATIONS:
        raise UserError(f"aggregation = {aggregation!r}: pick one of {', '.join(AGGREGATIONS)}")
    if aggregation == "constant_length" and not max_response_len:
        raise UserError("aggregation = 'constant_length' needs max_response_len")
    length_B = mask_BT.sum(axis=1, dtype=jnp.float32)
    denominator_B = AGGREGATIONS[aggregation](length_B, group_B, max_response_len)
    return 1.0 / jnp.maximum(denominator_B, 1.0)


def _prompt_token_mean(length_B, group_B, _):
    """Token mean within each prompt's group, then prompts (arXiv 2505.12504, equation 2)."""
    _, prompt_B = jnp.unique(group_B, return_inverse=True, size=group_B.size)
    tokens_Q = jax.ops.segment_sum(length_B, prompt_B, num_segments=group_B.size)
    return tokens_Q[prompt_B] * (tokens_Q > 0).sum(dtype=jnp.float32)


def _token_mean(length_B, group_B, _):
    return jnp.broadcast_to(length_B.sum(), length_B.shape)


def _seq_mean_token_mean(length_B, group_B, _):
    return length_B * _responses(length_B)


def _seq_mean_token_sum(length_B, group_B, _):
    return jnp.broadcast_to(_responses(length_B), length_B.shape)


def _constant_length(length_B, group_B, max_response_len):
    return jnp.broadcast_to(_responses(length_B) * float(max_response_len), length_B.shape)


def _responses(length_B):
    return (length_B > 0).sum(dtype=jnp.float32)


AGGREGATIONS = {
    "prompt_token_mean": _prompt_token_mean,
    "token_mean": _token_mean,
    "seq_mean_token_mean": _seq_mean_token_mean,
    "seq_mean_token_sum": _seq_mean_token_sum,
    "constant_length": _constant_length,
}
