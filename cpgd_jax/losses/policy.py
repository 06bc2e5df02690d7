"""The policy loss of every algorithm: a row's pieces put together, per token first, reduced once.

CPGD (arXiv 2505.12504, equation 2): `J = -(1/Q) Σ_x 1/(Σ_k |y_k|) Σ_k Σ_i (Φ_i - α·E_i)`, with
Φ the objective and E the policy drift. The other rows replace Φ, α and the weights of the sums.
"""

import chex
import jax
import jax.numpy as jnp

from cpgd_jax.algorithms import CLIPPED, Algorithm, resolve
from cpgd_jax.errors import UserError
from cpgd_jax.losses import kl
from cpgd_jax.losses.objectives import OBJECTIVES, clip_thresholds, ratio
from cpgd_jax.losses.reduce import token_weights
from cpgd_jax.ops import masked


def policy_loss(
    name: str | Algorithm,
    *,
    logp_BT,
    old_logp_BT,
    advantage_B,
    mask_BT,
    group_B,
    ref_logp_BT=None,
    weight_BT=None,
    entropy_BT=None,
    sampler_logp_BT=None,
    epoch_ratio_logp_BT=None,
    **overrides,
):
    """Loss to be minimised and its metrics; the gradient reaches `logp_BT` and `entropy_BT` only.

    Shapes, float32 or bfloat16 unless said otherwise (ratios are float32 throughout):
        logp_BT, old_logp_BT  ln-probability of the sampled tokens, now and before the first update
        advantage_B           [B], or [B, T] where each token has its own
        mask_BT               bool, True = the token counts; masked slots may hold anything
        group_B               int, the prompt of each row
        ref_logp_BT           the frozen reference's; read where kl_coef > 0 and kl_in = "loss"
        weight_BT             `reduce.token_weights` of the whole optimiser step, for a microbatch:
                              losses and gradients of microbatches then add up to the whole
        entropy_BT            entropy of each token's law; needed where entropy_coef > 0
        sampler_logp_BT       the sampler's own ln-probability; needed where sampler_is_cap > 0
        epoch_ratio_logp_BT   ln-probability at the end of the epoch before (section 6.1)
    `name` and `overrides` (cells of the row) are static.

    Returns (float32 [], metrics): `loss/*` are the terms of the loss and add up to it; `kl/old` is
    the k3 estimate of KL(old ‖ new), a token mean; `ratio/clip_frac_*` count tokens whose gradient
    the clip took away. Raises UserError: see `algorithms.resolve`; a term without its array.
    """
    row = resolve(name, **overrides)
    logp, old, ref, entropy, sampler, epoch = _prepare(
        mask_BT, logp_BT, old_logp_BT, ref_logp_BT, entropy_BT, sampler_logp_BT, epoch_ratio_logp_BT
    )
    if weight_BT is None:
        weight_BT = token_weights(row.aggregation, mask_BT, group_B, row.max_response_len)
    weight_BT = jax.lax.stop_gradient(masked.fill(jnp.asarray(weight_BT), mask_BT))

    old = jax.lax.stop_gradient(old)
    A = _weighted_advantage(row, advantage_B, mask_BT, old, sampler, epoch)
    low, high = clip_thresholds(row.clip_eps_low, row.clip_eps_high, row.clip_schedule, mask_BT)
    d = logp - old

    terms = {"loss/policy": -OBJECTIVES[row.objective](d, A, low, high, row.dual_clip)}
    if row.drift_coef > 0:
        terms["loss/drift"] = row.drift_coef * kl.drift(logp, old, row.drift_cap)
    if row.kl_coef > 0 and row.kl_in == "loss":
        ref = jax.lax.stop_gradient(_needed(row, "kl_coef", ref, "ref_logp_BT"))
        terms["loss/kl_ref"] = row.kl_coef * kl.ESTIMATORS[row.kl_estimator](logp, ref)
    if row.entropy_coef > 0:
        terms["loss/entropy"] = -row.entropy_coef * _needed(
            row, "entropy_coef", entropy, "entropy_BT"
        )
    means = _token_means(row, jax.lax.stop_gradient(d), A, low, high)
    if entropy is not None:
        means["entropy"] = entropy
    weighted = {term: weight_BT * value for term, value in terms.items()}
    total, largest = masked.totals(weighted | means, masked.fill(d, mask_BT, -jnp.inf))
    loss = sum(total[term] for term in terms)

    count = mask_BT.sum(dtype=jnp.float32)
    metrics = {"loss/drift": masked.Sum(jnp.zeros(()))}
    metrics |= {term: masked.Sum(total[term]) for term in terms}
    metrics |= {name: masked.Mean(total[name], count) for name in means}
    metrics["ratio/max"] = masked.Max(ratio(largest))
    return loss, jax.lax.stop_gradient(metrics)


def _prepare(mask_BT, *arrays):
    """float32 with 0 in the masked slots, before any arithmetic; None stays None."""
    chex.assert_rank(mask_BT, 2)
    chex.assert_type(mask_BT, bool)
    given = [x for x in arrays if x is not None]
    chex.assert_equal_shape([mask_BT, *given])
    chex.assert_type(given, float)
    return [
        None if x is None else masked.fill(jnp.asarray(x, jnp.float32), mask_BT) for x in arrays
    ]


def _weighted_advantage(row, advantage, mask_BT, old, sampler, epoch):
    """A for each token, times the truncated weights that correct for who sampled it.

    Every objective is positively homogeneous in A, so a weight on A is a weight on the objective.
    """
    chex.assert_type(advantage, float)
    chex.assert_equal_shape_prefix((advantage, mask_BT), 1)
    advantage = jnp.asarray(advantage, jnp.float32)
    if advantage.ndim == 1:
        advantage = jnp.broadcast_to(advantage[:, None], mask_BT.shape)
    A = masked.fill(advantage, mask_BT)
    if epoch is not None:
        # Section 6.1: A <- clip(sg(pi_(m-1) / pi_old), 1-eps, 1+eps) * A
        A *= jnp.clip(ratio(epoch - old), 1.0 - row.clip_eps_low, 1.0 + row.clip_eps_high)
    if row.sampler_is_cap > 0:
        sampler = _needed(row, "sampler_is_cap", sampler, "sampler_logp_BT")
        A *= jnp.minimum(ratio(old - sampler), row.sampler_is_cap)
    return jax.lax.stop_gradient(A)


def _token_means(row, d, A, low, high):
    """Metrics that are means over tokens; masked slots have d = A = 0 and so add 0."""
    if row.objective in CLIPPED:
        under, over = (A < 0) & (d < jnp.log1p(-low)), (A > 0) & (d > jnp.log1p(high))
    else:
        under = over = jnp.zeros(d.shape, bool)
    return {
        "kl/old": kl.ratio_minus_1(d) - d,
        "ratio/clip_frac_low": under.astype(jnp.float32),
        "ratio/clip_frac_high": over.astype(jnp.float32),
    }


def _needed(row, cell, array, keyword):
    if array is None:
        raise UserError(
            f"{row.name}: {cell} = {getattr(row, cell)} needs {keyword}; pass it, or set {cell} = 0"
        )
    return array
