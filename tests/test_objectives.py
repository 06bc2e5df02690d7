import jax
import jax.numpy as jnp
import numpy as np
import pytest
import twins

from cpgd_jax.losses import kl
from cpgd_jax.losses.objectives import MAX_LOG_RATIO, OBJECTIVES, clip_thresholds, ratio

KINDS = {
    "policy_gradient": "pg",
    "log_ratio_clip": "log clip",
    "ratio": "ratio",
    "ppo_clip": "ppo",
    "ppo_dual_clip": "dual",
}
D = np.concatenate([np.linspace(-1.5, 1.5, 41), np.log([0.79, 0.81, 1.19, 1.21, 2.9, 3.1])])


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("A", [2.0, 0.3, 0.0, -0.3, -2.0])
def test_value_and_derivative_equal_the_twin(name, A):
    def f(d):
        return OBJECTIVES[name](d, jnp.float32(A), 0.2, 0.2, 3.0)

    d = jnp.asarray(D, jnp.float32)
    value, slope = f(d), jax.vmap(jax.grad(f))(d)
    want = [twins.objective(KINDS[name], x, A, 0.2, 0.2, 3.0) for x in D]
    np.testing.assert_allclose(value, [w[0] for w in want], rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(slope, [w[1] for w in want], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("name, bounds", [("log_ratio_clip", (0.0, 0.0)), ("ppo_clip", (0.0, 0.0))])
def test_a_token_on_its_bound_keeps_its_whole_gradient(name, bounds):
    for A in (1.0, -1.0):
        slope = jax.grad(lambda d, A=A: OBJECTIVES[name](d, A, *bounds, 3.0))(0.0)
        assert float(slope) == A


def test_asymmetric_clip():
    f = OBJECTIVES["ppo_clip"]
    d = jnp.log(jnp.array([0.7, 0.75, 1.25, 1.27, 1.29]))
    np.testing.assert_allclose(f(d, 1.0, 0.2, 0.28, 3.0), [0.7, 0.75, 1.25, 1.27, 1.28], rtol=1e-6)
    np.testing.assert_allclose(f(d, -1.0, 0.2, 0.28, 3.0)[:2], [-0.8, -0.8], rtol=1e-6)


def test_dual_clip_bounds_the_loss_at_negative_advantage_only():
    f = OBJECTIVES["ppo_dual_clip"]
    d = jnp.log(jnp.array([2.9, 3.1, 100.0]))
    np.testing.assert_allclose(f(d, -2.0, 0.2, 0.2, 3.0), [-5.8, -6.0, -6.0], rtol=1e-6)
    np.testing.assert_allclose(f(d, 2.0, 0.2, 0.2, 3.0), [2.4, 2.4, 2.4], rtol=1e-6)


def test_ratio_is_clamped_before_exp_and_still_pulls():
    d = jnp.array([-1e4, 0.0, 1.0, MAX_LOG_RATIO, 1e2, 1e4])
    top = np.exp(np.float32(MAX_LOG_RATIO))
    np.testing.assert_allclose(ratio(d), [0, 1, np.e, top, top, top], rtol=1e-6)
    np.testing.assert_array_equal(jax.vmap(jax.grad(ratio))(d), ratio(d))


def test_thresholds_go_from_tight_to_loose():
    mask = np.array([[True, True, True, True, False], [True, False, False, False, False]])
    low, high = clip_thresholds(0.2, 0.4, 0.5, mask)
    np.testing.assert_allclose(low[0, :4], 0.1 + 0.1 * np.arange(1, 5) / 4, rtol=1e-6)
    np.testing.assert_allclose(high[0, :4], 0.2 + 0.2 * np.arange(1, 5) / 4, rtol=1e-6)
    np.testing.assert_allclose([low[1, 0], high[1, 0]], [0.2, 0.4], rtol=1e-6)
    low, _ = clip_thresholds(0.2, 0.4, 0.0, mask)
    np.testing.assert_allclose(low[0, :4], 0.2 * np.arange(1, 5) / 4, rtol=1e-6)
    assert clip_thresholds(0.2, 0.4, 1.0, mask) == (0.2, 0.4)
    low, high = clip_thresholds(0.2, 0.4, 0.5, np.zeros((1, 3), bool))
    assert np.isfinite(low).all() and np.isfinite(high).all()


# ---- KL estimators and the drift


@pytest.mark.parametrize("name", kl.ESTIMATORS)
def test_estimators_equal_their_twin(name):
    x = jnp.linspace(-2, 2, 21)
    ref = jnp.float32(-0.7)
    f = kl.ESTIMATORS[name]
    want = [twins.kl(name, float(v), -0.7) for v in x]
    np.testing.assert_allclose(f(x, ref), [w[0] for w in want], rtol=1e-5, atol=1e-6)
    slope = jax.vmap(jax.grad(f), (0, None))(x, ref)
    np.testing.assert_allclose(slope, [w[1] for w in want], rtol=1e-5, atol=1e-6)


def law(seed, K=5):
    return np.random.default_rng(seed).normal(size=K).astype(np.float32)


def exact_kl(p, q):
    p, q = jax.nn.log_softmax(p), jax.nn.log_softmax(q)
    return float((jnp.exp(p) * (p - q)).sum())


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_are_unbiased(name):
    new, ref = law(0), law(1)
    p, q = jax.nn.log_softmax(new), jax.nn.log_softmax(ref)
    mean = float((jnp.exp(p) * kl.ESTIMATORS[name](p, q)).sum())
    assert mean == pytest.approx(exact_kl(new, ref), rel=1e-5)


def on_policy_gradient(name, new, ref):
    """Expected gradient of the estimator as a loss, tokens sampled from the current policy."""
    p = jax.lax.stop_gradient(jax.nn.softmax(new))

    def loss(x):
        return (p * kl.ESTIMATORS[name](jax.nn.log_softmax(x), jax.nn.log_softmax(ref))).sum()

    return jax.grad(loss)(jnp.asarray(new))


def test_k1_as_a_loss_has_no_gradient_and_k2_has_that_of_the_kl():
    new, ref = law(0), law(1)

    def exact(x):
        p, q = jax.nn.log_softmax(x), jax.nn.log_softmax(ref)
        return (jnp.exp(p) * (p - q)).sum()

    assert np.abs(on_policy_gradient("k1", new, ref)).max() < 1e-6
    np.testing.assert_allclose(
        on_policy_gradient("k2", new, ref), jax.grad(exact)(jnp.asarray(new)), atol=1e-6
    )


@pytest.mark.parametrize("name", ["k2", "k3"])
def test_minimising_a_kl_term_lowers_the_exact_kl(name):
    for seed in range(3):
        new, ref = law(seed), law(seed + 10)
        before = exact_kl(new, ref)
        for _ in range(20):
            new = new - 0.1 * on_policy_gradient(name, new, ref)
        assert exact_kl(new, ref) < 0.9 * before


def test_drift_reports_k3_and_caps_only_its_gradient():
    r = np.array([0.01, 0.5, 1, 2, 2.9, 3.1, 5, 50], np.float32)
    d = jnp.log(r)
    old = jnp.full_like(d, -3.0)
    np.testing.assert_allclose(kl.drift(old + d, old, 2.0), r - 1 - np.log(r), rtol=1e-4, atol=1e-6)
    slope, slope_old = jax.grad(lambda x, o: kl.drift(x, o, 2.0).sum(), (0, 1))(old + d, old)
    np.testing.assert_allclose(slope, np.minimum(r - 1, 2), rtol=1e-5, atol=1e-6)
    assert not slope_old.any()
    assert (slope[3:] > 0).all()  # past the cap it goes on pulling the ratio down


def test_clipping_the_estimate_instead_would_flip_the_sign():
    """Why the gradient is capped: of a capped estimate only -ln r is left, and it pulls upwards."""

    def clipped_estimate(d):
        return jnp.minimum(jnp.exp(d), 3.0) - 1 - d

    d = jnp.log(5.0)
    assert jax.grad(clipped_estimate)(d) == -1.0
    assert jax.grad(lambda x: kl.drift(x, 0.0, 2.0))(d) == 2.0


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_drift_and_estimators_are_finite_at_any_distance(dtype):
    d = jnp.array([-1e4, -100, 0, 100, 1e4], dtype)
    zero = jnp.zeros_like(d)
    for f in (lambda x, o: kl.drift(x, o, 2.0), *kl.ESTIMATORS.values()):
        value, slope = f(d, zero), jax.grad(lambda x, f=f: f(x, zero).sum())(d)
        assert jnp.isfinite(value).all() and jnp.isfinite(slope).all()
        assert value.dtype == slope.dtype == dtype
