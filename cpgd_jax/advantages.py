"""Rewards to advantages: a group is a row of `reward_QG`; statistics are the whole rollout's.

A reward that is not finite leaves its group's statistics, gets advantage 0 and is counted
(`group_metrics`). A group whose rewards are all equal carries no signal: under a group baseline its
advantage is exactly 0, decided by max == min (seven float32 rewards of 0.1 have a std of 8e-9).
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp

from cpgd_jax.algorithms import Algorithm, resolve
from cpgd_jax.errors import UserError
from cpgd_jax.losses import kl
from cpgd_jax.ops import masked


class Groups(NamedTuple):
    """Statistics of each prompt's group over its finite rewards."""

    valid_QG: jax.Array  # bool, True = a finite reward
    count_Q1: jax.Array  # float32, finite rewards
    centred_QG: jax.Array  # float32, reward - mean of its group; 0 where not valid or no signal
    std_Q1: jax.Array  # float32, ddof 1; 0 exactly where there is no signal
    signal_Q1: jax.Array  # bool, True = the finite rewards differ


def advantages(
    name: str | Algorithm,
    reward_QG,
    length_QG=None,
    *,
    log_ratio_to_ref_QGT=None,
    mask_QGT=None,
    **overrides,
):
    """Advantage of each response, float32 [Q, G], by the row's baseline, weight and normalisation.

    `reward_QG` float [Q, G], all of the rollout's prompts; `length_QG` int [Q, G], unmasked tokens
    of each response, the weights of the token-wise global normalisation (None: one token each).
    With `kl_coef` > 0 in the reward, `log_ratio_to_ref_QGT` = ln(π_old/π_ref) and `mask_QGT` (bool,
    True = an unmasked token) are needed and the result is [Q, G, T], 0 where masked: without a
    group baseline each token's return `G_i = R - β Σ_{j≥i} k_j` (REINFORCE++, arXiv 2501.03262);
    with one the response's `R - β Σ_j k_j` (RLOO, arXiv 2402.14740), on each of its tokens.
    Raises UserError: see `algorithms.resolve`; a KL in the reward without its arrays.
    """
    row = resolve(name, **overrides)
    reward_QG = jnp.asarray(reward_QG, jnp.float32)
    chex.assert_rank(reward_QG, 2)
    if row.kl_coef > 0 and row.kl_in == "reward":
        if log_ratio_to_ref_QGT is None or mask_QGT is None:
            raise UserError(
                f"{row.name}: kl_coef = {row.kl_coef} in the reward needs log_ratio_to_ref_QGT and "
                "mask_QGT; pass both, or set kl_coef = 0"
            )
        return _with_kl(row, reward_QG, log_ratio_to_ref_QGT, mask_QGT)
    if length_QG is None:
        length_QG = jnp.ones_like(reward_QG)
    return _per_response(row, reward_QG, jnp.asarray(length_QG, jnp.float32))


def group_stats(reward_QG) -> Groups:
    """What the rewards of each group say: float [Q, G] -> Groups."""
    chex.assert_rank(reward_QG, 2)
    reward_QG = jnp.asarray(reward_QG, jnp.float32)
    valid_QG = jnp.isfinite(reward_QG)
    count_Q1 = valid_QG.sum(axis=1, keepdims=True, dtype=jnp.float32)
    largest_Q1 = jnp.where(valid_QG, reward_QG, -jnp.inf).max(axis=1, keepdims=True)
    least_Q1 = jnp.where(valid_QG, reward_QG, jnp.inf).min(axis=1, keepdims=True)
    signal_Q1 = largest_Q1 > least_Q1
    # From the least and in units of the spread, so that nothing is rounded away or overflows.
    spread_Q1 = jnp.where(signal_Q1, largest_Q1 - least_Q1, 1.0)
    counted_QG = valid_QG & signal_Q1
    x_QG = jnp.where(counted_QG, (reward_QG - least_Q1) / spread_Q1, 0.0)
    mean_Q1 = x_QG.sum(axis=1, keepdims=True) / jnp.maximum(count_Q1, 1.0)
    x_QG = jnp.where(counted_QG, x_QG - mean_Q1, 0.0)
    variance_Q1 = jnp.square(x_QG).sum(1, keepdims=True) / jnp.maximum(count_Q1 - 1.0, 1.0)
    std_Q1 = spread_Q1 * jnp.sqrt(variance_Q1)
    return Groups(valid_QG, count_Q1, spread_Q1 * x_QG, std_Q1, signal_Q1)


def group_metrics(reward_QG) -> dict:
    """`group/zero_std_frac`: share of groups without a signal; `reward/nan`: rewards not finite."""
    groups = group_stats(reward_QG)
    return {
        "group/zero_std_frac": masked.mean(1.0 - groups.signal_Q1, jnp.ones_like(groups.signal_Q1)),
        "reward/nan": masked.Sum((~groups.valid_QG).sum(dtype=jnp.float32)),
    }


def clip_filter_weight(signal_Q, largest):
    """`min(c_ω, Q / #{x: std_group ≠ 0})` over the whole rollout (arXiv 2505.12504, section 3)."""
    return jnp.minimum(largest, signal_Q.size / jnp.maximum(signal_Q.sum(), 1))


def overlong_penalty(length, cap, buffer=None, penalty=1.0):
    """DAPO's soft overlong punishment (arXiv 2503.14476, equation 13), to be added to the reward.

    0 up to `cap - buffer` tokens, then linearly down to `-penalty` at `cap`; float32, shaped like
    `length` (tokens). `buffer` 0 is off; None is a fifth of the cap, DAPO's 4096 of 20480.
    """
    buffer = cap // 5 if buffer is None else buffer
    if not 0 <= buffer <= cap:
        raise UserError(f"overlong_buffer = {buffer}: must be in [0, {cap}], the response length")
    over = jnp.asarray(length, jnp.float32) - (cap - buffer)
    return -penalty * jnp.clip(over / max(buffer, 1), 0.0, 1.0) * (buffer > 0)


def _per_response(row, reward_QG, length_QG):
    """Baseline, weight, then global normalisation, in this order."""
    chex.assert_equal_shape((reward_QG, length_QG))
    groups = group_stats(reward_QG)
    A = _weigh(row, _centre(row, reward_QG, groups), groups)
    if row.global_norm:
        A = _normalise(A, jnp.where(groups.valid_QG, length_QG, 0.0))
    counts = groups.valid_QG if row.baseline == "none" else groups.valid_QG & groups.signal_Q1
    return jnp.where(counts, A, 0.0)


def _centre(row, reward_QG, groups):
    if row.baseline == "none":
        return masked.fill(reward_QG, groups.valid_QG)
    if row.baseline == "leave_one_out":
        # R_k - mean of the others = (R_k - mean of all) * n / (n - 1)
        return groups.centred_QG * groups.count_Q1 / jnp.maximum(groups.count_Q1 - 1.0, 1.0)
    return groups.centred_QG


def _weigh(row, A, groups):
    if row.weight == "std":
        return jnp.where(groups.signal_Q1, A / jnp.where(groups.signal_Q1, groups.std_Q1, 1.0), 0.0)
    if row.weight == "clip_filter":
        return A * clip_filter_weight(groups.signal_Q1, row.clip_filter_max)
    if row.weight == "gpg":
        # α = B / (number of responses in groups with a signal), arXiv 2504.02546
        with_signal = (groups.valid_QG & groups.signal_Q1).sum()
        return A * (groups.valid_QG.sum() / jnp.maximum(with_signal, 1))
    return A


def _normalise(x, weight):
    """`(x - mean) / std`, ddof 0, each entry counted `weight` times; 0 where all are equal."""
    counted = weight > 0
    total = jnp.maximum(weight.sum(), 1.0)
    mean = (weight * x).sum() / total
    centred = jnp.where(counted, x - mean, 0.0)
    std = jnp.sqrt((weight * jnp.square(centred)).sum() / total)
    least, largest = jnp.where(counted, x, jnp.inf).min(), jnp.where(counted, x, -jnp.inf).max()
    differ = largest > least
    return jnp.where(differ, centred / jnp.where(differ, std, 1.0), 0.0)


def _with_kl(row, reward_QG, log_ratio_QGT, mask_QGT):
    """β Σ k_j taken off the reward: see `advantages`."""
    mask_QGT, log_ratio_QGT = jnp.asarray(mask_QGT), jnp.asarray(log_ratio_QGT, jnp.float32)
    chex.assert_rank([log_ratio_QGT, mask_QGT], 3)
    chex.assert_equal_shape((log_ratio_QGT, mask_QGT))
    chex.assert_equal_shape_prefix((reward_QG, mask_QGT), 2)
    chex.assert_type(mask_QGT, bool)
    log_ratio_QGT = masked.fill(log_ratio_QGT, mask_QGT)
    k_QGT = kl.ESTIMATORS[row.kl_estimator](log_ratio_QGT, jnp.zeros_like(log_ratio_QGT))
    to_go_QGT = jnp.flip(jnp.cumsum(jnp.flip(k_QGT, -1), -1), -1)
    if row.baseline != "none":
        length_QG = mask_QGT.sum(axis=2, dtype=jnp.float32)
        A_QG = _per_response(row, reward_QG - row.kl_coef * to_go_QGT[..., 0], length_QG)
        return jnp.where(mask_QGT, A_QG[..., None], 0.0)
    counted_QGT = mask_QGT & jnp.isfinite(reward_QG)[..., None]
    return_QGT = masked.fill(reward_QG[..., None] - row.kl_coef * to_go_QGT, counted_QGT)
    A_QGT = (
        _normalise(return_QGT, counted_QGT.astype(jnp.float32)) if row.global_norm else return_QGT
    )
    return masked.fill(A_QGT, counted_QGT)
