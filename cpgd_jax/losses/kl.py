"""KL divergences of policies from the log-probabilities of sampled tokens: arrays in, array out.

k1, k2, k3 are the estimators of KL(π_θ ‖ π_ref) on tokens that π_θ sampled
(J. Schulman, "Approximating KL divergence", 2020); k3 is GRPO's (arXiv 2402.03300, equation 4).
"""

import functools

import jax
import jax.numpy as jnp

from cpgd_jax.losses.objectives import ratio


def k1(logp, ref):
    """`ln π_θ/π_ref`: unbiased. As a loss its expected on-policy gradient is 0: a reward only."""
    return logp - ref


def k2(logp, ref):
    """`½ (ln π_θ/π_ref)²`: its on-policy gradient is that of KL(π_θ ‖ π_ref)."""
    return 0.5 * jnp.square(logp - ref)


def k3(logp, ref):
    """`π_ref/π_θ - 1 - ln π_ref/π_θ`: unbiased and never negative."""
    return ratio(ref - logp) - 1.0 - (ref - logp)


ESTIMATORS = {"k1": k1, "k2": k2, "k3": k3}


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def drift(logp, old, cap):
    """Policy drift of CPGD: the k3 estimate `r - 1 - d` of KL(π_old ‖ π_θ), with `d` = logp - old.

    Its gradient is replaced by `∂/∂logp = min(sg(r) - 1, cap)` (arXiv 2505.12504, section 3): only
    the gradient is capped, never the value, so past the cap the term goes on pulling the ratio
    down with strength `cap`. `old` gets no gradient. Finite for any finite `d`.
    """
    return k3(old, logp)


def _drift_forward(logp, old, cap):
    return k3(old, logp), jnp.minimum(ratio(logp - old) - 1.0, cap)


def _drift_backward(cap, slope, g):
    return g * slope, jnp.zeros_like(slope)


drift.defvjp(_drift_forward, _drift_backward)
