"""The propositions of arXiv 2505.12504, held on policies small enough to be exact."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpgd_jax.losses.policy import policy_loss

PPO, CPG = "grpo", "cpg"


def bandit(name, A, epsilon, arm=0):
    """Gradient of the objective by the logits of a softmax bandit, one sampled arm."""

    def ascent(logits, old):
        def loss(logits):
            return policy_loss(
                name,
                logp_BT=jax.nn.log_softmax(logits)[None, arm : arm + 1],
                old_logp_BT=jnp.reshape(old, (1, 1)),
                advantage_B=jnp.array([A]),
                mask_BT=jnp.ones((1, 1), bool),
                group_B=jnp.array([0]),
                clip_eps_low=epsilon,
                clip_eps_high=epsilon,
            )[0]

        return -jax.grad(loss)(logits)

    return jax.jit(ascent)


@pytest.mark.parametrize("epsilon", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("side", [1, -1])
def test_proposition_1(epsilon, side):
    """At r = 1 ± ε, on the bound, PPO's and CPG's steps both pass it, as the clip acts too late.

    PPO's step is r times CPG's. So it goes further where r = 1 + ε (A > 0), and only there: where
    r = 1 - ε (A < 0) it is the shorter one, the ratio damping what it amplifies above 1.
    """
    A, r = float(side), 1 + side * epsilon
    steps = {name: bandit(name, A, epsilon) for name in (PPO, CPG)}
    for seed in range(3):
        logits = np.random.default_rng(seed).normal(size=5).astype(np.float32)
        logp = jax.nn.log_softmax(logits)[0]
        inside = np.float32(1e-6) * side  # float32 may round the bound to either side of itself
        old = logp - np.log1p(side * epsilon, dtype=np.float32) + inside
        for lr in (1e-3, 1e-2, 1e-1):
            moved = {}
            for name, ascent in steps.items():
                after = jax.nn.log_softmax(logits + lr * ascent(logits, old))[0]
                moved[name] = abs(float(jnp.expm1(after - old)))
            assert min(moved.values()) > epsilon
            assert (moved[PPO] > moved[CPG]) == (side > 0)
    gradient = {name: ascent(logits, old) for name, ascent in steps.items()}
    np.testing.assert_allclose(gradient[PPO], r * gradient[CPG], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.01, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_theorem_1(alpha, seed):
    """E_new[R] - E_old[R] ≥ α·E[KL(old ‖ new)] for R ≥ 0 and an update with J(new) ≥ J(old) = 0.

    Every action of every state is one token, weighted by π_old: the loss is the exact expectation.
    """
    X, K = 4, 6
    rng = np.random.default_rng(seed)
    reward = jnp.asarray(rng.uniform(0, 1, (X, K)), jnp.float32)
    logits = jnp.asarray(rng.normal(size=(X, K)), jnp.float32)

    @jax.jit
    def update(logits, size):
        old = jax.nn.log_softmax(logits)

        def J(logits):
            loss, _ = policy_loss(
                "cpgd",
                logp_BT=jax.nn.log_softmax(logits).reshape(-1, 1),
                old_logp_BT=old.reshape(-1, 1),
                advantage_B=reward.reshape(-1),
                mask_BT=jnp.ones((X * K, 1), bool),
                group_B=jnp.repeat(jnp.arange(X), K),
                weight_BT=jnp.exp(old).reshape(-1, 1) / X,
                drift_coef=alpha,
            )
            return -loss

        new = logits + size * jax.grad(J)(logits)
        logp = jax.nn.log_softmax(new)
        rise = ((jnp.exp(logp) - jnp.exp(old)) * reward).sum() / X
        divergence = (jnp.exp(old) * (old - logp)).sum() / X
        return new, J(new), rise, divergence

    held = 0
    for _ in range(100):
        size = 20.0 * rng.uniform()
        new, objective, rise, divergence = update(logits, size)
        while objective < 0:  # an update may not lower the objective: halve it until it does not
            size /= 2
            new, objective, rise, divergence = update(logits, size)
        assert rise >= alpha * divergence - 1e-6
        held += divergence > 1e-4
        logits = new
    assert held >= 5  # the bound was tested by updates that moved


# ---- the observation behind the paper

BOUNDED = ("grpo_dual_clip", "pg", "pgd", "cpg", "cpgd", "gpg")
UNBOUNDED = ("grpo", "grpo_no_clip", "grpo_drift", "rloo", "reinforce_pp", "dapo", "dr_grpo")


def gradient_norm(name, r, tokens=64, V=32):
    """Norm by the logits of one response with A = -1, one token's ratio `r`, the others' 1."""
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(tokens, V)), jnp.float32)
    d = jnp.zeros(tokens).at[tokens // 2].set(np.log(r))

    def loss(logits):
        logp = jax.nn.log_softmax(logits)[:, 0]
        return policy_loss(
            name,
            logp_BT=logp[None],
            old_logp_BT=(jax.lax.stop_gradient(logp) - d)[None],
            advantage_B=jnp.array([-1.0]),
            mask_BT=jnp.ones((1, tokens), bool),
            group_B=jnp.array([0]),
            max_response_len=tokens,
        )[0]

    return float(jnp.linalg.norm(jax.grad(loss)(logits)))


@pytest.mark.parametrize("name", UNBOUNDED)
def test_one_huge_ratio_at_negative_advantage_has_an_unbounded_gradient(name):
    norms = [gradient_norm(name, r) for r in (1, 1e2, 1e4, 1e6)]
    assert norms[1] > 5 * norms[0]
    np.testing.assert_allclose(np.array(norms[2:]) / norms[1:3], 100, rtol=0.02)


@pytest.mark.parametrize("name", BOUNDED)
def test_one_huge_ratio_at_negative_advantage_has_a_bounded_gradient(name):
    norms = [gradient_norm(name, r) for r in (1, 1e2, 1e4, 1e6)]
    assert max(norms) <= 1.03 * norms[0]
    assert norms[2] == norms[3]
