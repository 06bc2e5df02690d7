"""Per-token policy objectives, to be maximised: arrays in, an unreduced array out.

Symbols: `d` = logp - old, `r` = exp(d), `A` the advantage, `low` and `high` the clip thresholds.
All arrays are float32 and broadcast against each other without rank promotion. A token past its
clip bound has gradient exactly 0; a token on the bound keeps its gradient.
"""

import jax
import jax.numpy as jnp

# e^40 = 2e17: its square, and so a gradient norm, still fits float32 and bfloat16.
MAX_LOG_RATIO = 40.0


@jax.custom_jvp
def ratio(d):
    """exp(d), finite for any finite `d`: clamped before exp.

    The derivative is the (clamped) ratio itself, so that a token beyond the clamp is still pulled
    back; the derivative of a clip would be 0 there.
    """
    return jnp.exp(jnp.minimum(d, MAX_LOG_RATIO))


ratio.defjvps(lambda dot_d, r, d: r * dot_d)


def policy_gradient(d, A, low, high, dual):
    """`d·A`: 0 on-policy, with gradient `A·∇logp` (arXiv 2505.12504, equation 2 without clip)."""
    return d * A


def log_ratio_clip(d, A, low, high, dual):
    """`min(d·A, clip(d, ln(1-low), ln(1+high))·A)` (arXiv 2505.12504, equation 2)."""
    return _pessimistic(d, A, jnp.log1p(-low), jnp.log1p(high))


def unclipped_ratio(d, A, low, high, dual):
    """`r·A`."""
    return ratio(d) * A


def ppo_clip(d, A, low, high, dual):
    """`min(r·A, clip(r, 1-low, 1+high)·A)` (arXiv 1707.06347, equation 7)."""
    return _pessimistic(ratio(d), A, 1.0 - low, 1.0 + high)


def ppo_dual_clip(d, A, low, high, dual):
    """PPO clip, and for A < 0 never below `dual·A` (arXiv 1912.09729)."""
    clipped = ppo_clip(d, A, low, high, dual)
    floor = dual * A
    return jnp.where((A < 0) & (clipped < floor), floor, clipped)


def _pessimistic(x, A, lower, upper):
    """`min(x·A, clip(x, lower, upper)·A)`; `where`, as `min` would halve the gradient at a tie."""
    from_above = jnp.where(x > upper, upper, x)
    from_below = jnp.where(x < lower, lower, x)
    return jnp.where(A > 0, from_above, from_below) * A


def clip_thresholds(eps_low, eps_high, schedule, mask_BT):
    """Tight to loose: `ε_i = λ·ε + (1-λ)·ε·i/|y|`, i from 1 (arXiv 2505.12504, section 4).

    Returns (low, high): floats where λ = 1, else float32 [B, T].
    """
    if schedule == 1.0:
        return eps_low, eps_high
    i_BT = jnp.cumsum(mask_BT, axis=1, dtype=jnp.float32)
    length_B1 = jnp.maximum(i_BT[:, -1:], 1.0)
    scale_BT = schedule + (1.0 - schedule) * i_BT / length_B1
    return eps_low * scale_BT, eps_high * scale_BT


OBJECTIVES = {
    "policy_gradient": policy_gradient,
    "log_ratio_clip": log_ratio_clip,
    "ratio": unclipped_ratio,
    "ppo_clip": ppo_clip,
    "ppo_dual_clip": ppo_dual_clip,
}
