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
from cpgd_jax.losses.reduce import response_weights
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
                              (or its `reduce.response_weights`, [B])
        entropy_BT            entropy of each token's law; needed where entropy_coef > 0
        sampler_logp_BT       the sampler's own ln-probability; needed where sampler_is_cap > 0
        epoch_ratio_logp_BT   ln-probability at the end of the epoch before (section 6.1)
    `name` and `overrides` (cells of the row) are static.

    Returns (float32 [], metrics): `loss/*` are the terms of the loss and add up to it; `kl/old` is
    the k3 estimate of KL(old ‖ new), a token mean; `ratio/clip_frac_*` count tokens whose gradient
    the clip took away. Raises UserError: see `algorithms.resolve`; a term without its array.
    """
    row = resolve(name, **overrides)
    arrays = {
        "logp": logp_BT,
        "old": old_logp_BT,
        "advantage": advantage_B,
        "ref": ref_logp_BT,
        "entropy": entropy_BT,
        "sampler": sampler_logp_BT,
        "epoch": epoch_ratio_logp_BT,
    }
    arrays = {k: jnp.asarray(x) for k, x in arrays.items() if x is not None}
    _check(row, mask_BT, arrays)
    if weight_BT is None:
        weight_BT = response_weights(row.aggregation, mask_BT, group_B, row.max_response_len)
    weight_BT = jax.lax.stop_gradient(jnp.asarray(weight_BT))
    chex.assert_shape(weight_BT, mask_BT.shape[: weight_BT.ndim])

    # The backward pass computes the terms again: reading the inputs twice is cheaper than keeping
    # every intermediate of every token.
    token_loss = jax.checkpoint(lambda arrays: sum(_terms(row, mask_BT, arrays).values()))
    loss = _aggregate(weight_BT, mask_BT, token_loss(arrays))
    return loss, _metrics(row, weight_BT, mask_BT, jax.lax.stop_gradient(arrays))


def _terms(row, mask_BT, arrays) -> dict:
    """The loss of each token, float32 [B, T], term by term."""
    x = _filled(mask_BT, arrays)
    d, A = x["logp"] - x["old"], _weighted_advantage(row, x)
    low, high = _thresholds(row, mask_BT)
    terms = {"loss/policy": -OBJECTIVES[row.objective](d, A, low, high, row.dual_clip)}
    if row.drift_coef > 0:
        terms["loss/drift"] = row.drift_coef * kl.drift(x["logp"], x["old"], row.drift_cap)
    if row.kl_coef > 0 and row.kl_in == "loss":
        terms["loss/kl_ref"] = row.kl_coef * kl.ESTIMATORS[row.kl_estimator](x["logp"], x["ref"])
    if row.entropy_coef > 0:
        terms["loss/entropy"] = -row.entropy_coef * x["entropy"]
    return terms


def _filled(mask_BT, arrays) -> dict:
    """float32 [B, T], 0 in the masked slots before any arithmetic; two of them carry a gradient."""
    filled = {}
    for name, x in arrays.items():
        x = x.astype(jnp.float32)
        x = masked.fill(jnp.broadcast_to(x[:, None], mask_BT.shape) if x.ndim == 1 else x, mask_BT)
        filled[name] = x if name in ("logp", "entropy") else jax.lax.stop_gradient(x)
    return filled


def _weighted_advantage(row, x):
    """A for each token, times the truncated weights that correct for who sampled it.

    Every objective is positively homogeneous in A, so a weight on A is a weight on the objective.
    """
    A = x["advantage"]
    if "epoch" in x:
        # Section 6.1: A <- clip(sg(pi_(m-1) / pi_old), 1-eps, 1+eps) * A
        A *= jnp.clip(ratio(x["epoch"] - x["old"]), 1 - row.clip_eps_low, 1 + row.clip_eps_high)
    if row.sampler_is_cap > 0:
        A *= jnp.minimum(ratio(x["old"] - x["sampler"]), row.sampler_is_cap)
    return A


def _thresholds(row, mask_BT):
    return clip_thresholds(row.clip_eps_low, row.clip_eps_high, row.clip_schedule, mask_BT)


def _aggregate(weight, mask_BT, token_BT):
    """Σ weight · token over True slots, the weight [B, T] or [B]."""
    if weight.ndim == 2:
        return masked.fill(weight * token_BT, mask_BT).sum()
    return (weight * masked.fill(token_BT, mask_BT).sum(axis=1)).sum()


def _metrics(row, weight, mask_BT, arrays) -> dict:
    """Sums over the tokens, all in one pass."""
    x = _filled(mask_BT, arrays)
    d, A = x["logp"] - x["old"], _weighted_advantage(row, x)
    low, high = _thresholds(row, mask_BT)
    clip = row.objective in CLIPPED
    means = {
        "kl/old": kl.k3(x["old"], x["logp"]),
        "ratio/clip_frac_low": (A < 0) & (d < jnp.log1p(-low)) & clip,
        "ratio/clip_frac_high": (A > 0) & (d > jnp.log1p(high)) & clip,
    }
    if "entropy" in x:
        means["entropy"] = x["entropy"]
    weight_BT = weight if weight.ndim == 2 else weight[:, None]
    terms = {k: weight_BT * value for k, value in _terms(row, mask_BT, arrays).items()}
    total, largest = masked.totals(terms | means, d, mask_BT)
    count = mask_BT.sum(dtype=jnp.float32)
    metrics = {"loss/drift": masked.Sum(jnp.zeros(())), "ratio/max": masked.Max(ratio(largest))}
    metrics |= {k: masked.Sum(total[k]) for k in terms}
    return metrics | {k: masked.Mean(total[k], count) for k in means}


def _check(row, mask_BT, arrays):
    chex.assert_rank(mask_BT, 2)
    chex.assert_type(mask_BT, bool)
    chex.assert_type(list(arrays.values()), float)
    per_token = [x for k, x in arrays.items() if k != "advantage" or x.ndim > 1]
    chex.assert_equal_shape([mask_BT, *per_token])
    chex.assert_equal_shape_prefix((arrays["advantage"], mask_BT), 1)
    needs = [
        ("entropy_coef", "entropy", "entropy_BT"),
        ("sampler_is_cap", "sampler", "sampler_logp_BT"),
    ]
    if row.kl_in == "loss":
        needs.append(("kl_coef", "ref", "ref_logp_BT"))
    for cell, array, keyword in needs:
        value = getattr(row, cell)
        if value > 0 and array not in arrays:
            raise UserError(
                f"{row.name}: {cell} = {value} needs {keyword}; pass it, or set {cell} = 0"
            )
