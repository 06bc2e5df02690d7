import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import twins
from batches import batch, pad, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from cpgd_jax.algorithms import ALGORITHMS, CHOICES, resolve
from cpgd_jax.errors import UserError
from cpgd_jax.losses.policy import policy_loss
from cpgd_jax.losses.reduce import response_weights, token_weights
from cpgd_jax.ops import masked

NAMES = list(ALGORITHMS)
CASES = [(n, None) for n in NAMES] + [("cpgd", a) for a in CHOICES["aggregation"]]
CROSS = CASES + [
    pytest.param(n, a, marks=pytest.mark.slow)
    for n in NAMES
    for a in CHOICES["aggregation"]
    if (n, a) not in CASES
]


def value_and_grad(name, batch, **overrides):
    """(loss, gradient by logp, host metrics)."""
    rest = {k: v for k, v in batch.items() if k != "logp_BT"}

    def f(logp_BT):
        return policy_loss(name, logp_BT=logp_BT, **rest, **overrides)

    (loss, metrics), grad = jax.value_and_grad(f, has_aux=True)(jnp.asarray(batch["logp_BT"]))
    return float(loss), np.asarray(grad), metrics


def assert_same(a, b, rtol=1e-6):
    assert a[0] == pytest.approx(b[0], rel=rtol, abs=rtol)
    np.testing.assert_allclose(a[1], b[1], rtol=rtol, atol=rtol * np.abs(b[1]).max())


def twin(name, b, **kw):
    return twins.loss(name, *(b[k] for k in b), **kw)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("spread", [0.05, 0.6])
def test_row_equals_its_twin(name, spread):
    for seed in range(4):
        b = batch(seed, spread=spread)
        loss, grad, metrics = value_and_grad(name, b, max_response_len=8)
        want, want_grad, want_metrics = twin(name, b, max_response_len=8)
        assert_same((loss, grad), (want, want_grad), rtol=2e-5)
        got = masked.to_host(metrics)
        for metric, key in {
            "loss/policy": "policy",
            "loss/drift": "drift",
            "kl/old": "k3",
            "ratio/clip_frac_low": "low",
            "ratio/clip_frac_high": "high",
        }.items():
            assert got[metric] == pytest.approx(want_metrics[key], rel=2e-5, abs=2e-7), metric
        d = np.where(b["mask_BT"], b["logp_BT"] - b["old_logp_BT"], -np.inf)
        assert got["ratio/max"] == pytest.approx(np.exp(d.max()), rel=1e-5)


def test_random_batches_meet_every_case_of_the_clip():
    low = high = 0
    for seed in range(4):
        _, _, metrics = twin("cpgd", batch(seed, spread=0.6))
        low, high = low + metrics["low"], high + metrics["high"]
    assert low > 0 and high > 0


@pytest.mark.parametrize(
    "overrides, words",
    [
        ({"drift_coef": 0.5, "drift_cap": 0.3}, {"alpha": 0.5, "cap": 0.3}),
        ({"clip_eps_low": 0.1, "clip_eps_high": 0.4}, {"eps": (0.1, 0.4)}),
        ({"clip_schedule": 0.25}, {"schedule": 0.25}),
        ({"clip_schedule": 0.0, "clip_eps_high": 0.3}, {"schedule": 0.0, "eps": (0.2, 0.3)}),
        ({"dual_clip": 1.2}, {"dual": 1.2}),
        ({"aggregation": "seq_mean_token_sum"}, {"aggregation": "seq_mean_token_sum"}),
    ],
)
@pytest.mark.parametrize("name", ["cpgd", "grpo", "grpo_dual_clip"])
def test_override_equals_its_twin(name, overrides, words):
    b = batch(5)
    assert_same(value_and_grad(name, b, **overrides), twin(name, b, **words), rtol=2e-5)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_kl_to_the_reference(estimator):
    b = batch(1)
    ref = b["old_logp_BT"] + np.float32(0.3) * np.sin(np.arange(30.0, dtype=np.float32)).reshape(
        6, 5
    )
    got = value_and_grad("grpo", b, ref_logp_BT=ref, kl_coef=0.2, kl_estimator=estimator)
    want = twin("grpo", b, ref=ref, beta=0.2, estimator=estimator)
    assert_same(got, want, rtol=2e-5)
    assert float(got[2]["loss/kl_ref"].value) == pytest.approx(want[2]["kl_ref"], rel=1e-5)


def test_weights_for_the_sampler_and_the_epoch_before():
    b = batch(2)
    rng = np.random.default_rng(9)
    sampler, epoch = (
        b["old_logp_BT"] + rng.normal(0, 0.6, (6, 5)).astype(np.float32) for _ in range(2)
    )
    for name in ("cpgd", "grpo_dual_clip"):
        got = value_and_grad(
            name, b, sampler_logp_BT=sampler, sampler_is_cap=1.3, epoch_ratio_logp_BT=epoch
        )
        assert_same(got, twin(name, b, sampler=sampler, is_cap=1.3, epoch=epoch), rtol=2e-5)
    off = value_and_grad("cpgd", b, sampler_logp_BT=sampler)
    assert_same(off, value_and_grad("cpgd", b))


def test_entropy_bonus_and_metric():
    b = batch(3)
    entropy = np.random.default_rng(0).uniform(0, 2, (6, 5)).astype(np.float32)
    loss, metrics = policy_loss("cpgd", **b, entropy_BT=entropy, entropy_coef=0.1)
    assert float(loss) == pytest.approx(twin("cpgd", b, entropy=entropy, entropy_coef=0.1)[0], 1e-5)
    mean = entropy[b["mask_BT"]].mean()
    assert masked.to_host(metrics)["entropy"] == pytest.approx(mean, rel=1e-5)
    grad = jax.grad(lambda h: policy_loss("cpgd", **b, entropy_BT=h, entropy_coef=0.1)[0])
    weight = twins.weights("prompt_token_mean", b["mask_BT"], b["group_B"], 8)
    np.testing.assert_allclose(grad(jnp.asarray(entropy)), -0.1 * weight, rtol=1e-5)


def test_terms_add_up_to_the_loss():
    b = batch(4)
    extra = {"ref_logp_BT": b["old_logp_BT"] - 0.1, "entropy_BT": np.abs(b["old_logp_BT"])}
    loss, metrics = policy_loss("cpgd", **b, **extra, kl_coef=0.1, entropy_coef=0.05)
    terms = [m.value for k, m in metrics.items() if k.startswith("loss/")]
    assert len(terms) == 4 and float(sum(terms)) == pytest.approx(float(loss), rel=1e-6)


def test_advantage_of_each_token():
    b = batch(6)
    A = np.random.default_rng(1).normal(size=(6, 5)).astype(np.float32)
    per_token = b | {"advantage_B": A}
    assert_same(value_and_grad("reinforce_pp", per_token), twin("reinforce_pp", per_token), 2e-5)
    repeated = b | {"advantage_B": np.repeat(b["advantage_B"][:, None], 5, axis=1)}
    assert_same(value_and_grad("cpgd", repeated), value_and_grad("cpgd", b))


# ---- the reference numbers

RATIO = [0.5, 0.79, 0.81, 1, 1.19, 1.21, 2, 2.9, 3.1, 5]
GRADIENT = {
    1.0: [-1.005, -1.0021, -1.0019, -1, -0.9981, 0.0021, 0.010, 0.019, 0.020, 0.020],
    -1.0: [-0.005, -0.0021, 0.9981, 1, 1.0019, 1.0021, 1.010, 1.019, 1.020, 1.020],
    0.0: [-0.005, -0.0021, -0.0019, 0, 0.0019, 0.0021, 0.010, 0.019, 0.020, 0.020],
}


@pytest.mark.parametrize("A", GRADIENT)
def test_reference_gradients_of_cpgd(A):
    old = np.full((1, 10), -2, np.float32)
    b = {
        "logp_BT": (old + np.log(RATIO)).astype(np.float32),
        "old_logp_BT": old,
        "advantage_B": np.array([A], np.float32),
        "mask_BT": np.ones((1, 10), bool),
        "group_B": np.array([4]),
    }
    grad = value_and_grad("cpgd", b)[1] * 10  # the aggregation weight is 1/10
    np.testing.assert_allclose(grad[0], GRADIENT[A], atol=2e-6)


# ---- what must change nothing


def in_microbatches(name, b, size, **overrides):
    row = resolve(name, **overrides)
    weight = token_weights(row.aggregation, b["mask_BT"], b["group_B"], row.max_response_len)
    parts = [
        value_and_grad(
            name, rows(b | {"weight_BT": np.asarray(weight)}, slice(i, i + size)), **overrides
        )
        for i in range(0, len(b["mask_BT"]), size)
    ]
    metrics = functools.reduce(masked.merge, [p[2] for p in parts])
    return sum(p[0] for p in parts), np.concatenate([p[1] for p in parts]), metrics


@pytest.mark.parametrize("name, aggregation", CROSS)
def test_microbatches_padding_and_order_change_nothing(name, aggregation):
    cells = {"aggregation": aggregation, "max_response_len": 8}
    b = batch(7, lengths=[1, 5, 3, 2, 4, 0])
    whole = value_and_grad(name, b, **cells)
    host = masked.to_host(whole[2])

    split = in_microbatches(name, b, 2, **cells)
    assert_same(split, whole)
    for metric, value in masked.to_host(split[2]).items():
        assert value == pytest.approx(host[metric], rel=1e-6, abs=1e-7), metric

    wide = value_and_grad(name, pad(b, 8), **cells)
    assert_same((wide[0], wide[1][:, :5]), whole)
    assert not wide[1][:, 5:].any()

    order = [3, 4, 5, 0, 1, 2]
    moved = value_and_grad(name, rows(b, order), **cells)
    assert_same((moved[0], moved[1][np.argsort(order)]), whole)


def test_weights_of_responses_or_of_their_tokens():
    b = batch(7)
    weight_B = response_weights("prompt_token_mean", b["mask_BT"], b["group_B"])
    got = value_and_grad("cpgd", b | {"weight_BT": np.asarray(weight_B)})
    assert_same(got, value_and_grad("cpgd", b))


@pytest.mark.parametrize("aggregation", CHOICES["aggregation"])
def test_responses_of_1_and_9_tokens_equal_two_microbatches_of_one(aggregation):
    b = batch(8, Q=1, G=2, T=9, lengths=[1, 9])
    cells = {"aggregation": aggregation, "max_response_len": 16}
    assert_same(in_microbatches("cpgd", b, 1, **cells), value_and_grad("cpgd", b, **cells))


@pytest.mark.parametrize("aggregation", CHOICES["aggregation"])
def test_masked_response_leaves_numerator_and_denominator(aggregation):
    cells = {"aggregation": aggregation, "max_response_len": 8}
    b = batch(9, lengths=[2, 0, 3, 4, 0, 0])
    kept = value_and_grad("cpgd", rows(b, [0, 2, 3]), **cells)
    got = value_and_grad("cpgd", b, **cells)
    assert_same((got[0], got[1][[0, 2, 3]]), kept)
    b = batch(9, lengths=[2, 1, 3, 0, 0, 0])  # a group without an unmasked token
    kept = value_and_grad("cpgd", rows(b, [0, 1, 2]), **cells)
    got = value_and_grad("cpgd", b, **cells)
    assert_same((got[0], got[1][:3]), kept)


@pytest.mark.parametrize("name, aggregation", CASES)
def test_devices_change_nothing(name, aggregation):
    b = batch(10, Q=4, G=2)
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    sharded = {
        k: jax.device_put(v, NamedSharding(mesh, PartitionSpec("data"))) for k, v in b.items()
    }

    @jax.jit
    def f(logp_BT, rest):
        return policy_loss(name, logp_BT=logp_BT, **rest, aggregation=aggregation)[0]

    logp = sharded.pop("logp_BT")
    loss, grad = jax.value_and_grad(f)(logp, sharded)
    assert_same((float(loss), np.asarray(grad)), value_and_grad(name, b, aggregation=aggregation))


EXTRA = ("ref_logp_BT", "entropy_BT", "sampler_logp_BT", "epoch_ratio_logp_BT", "weight_BT")


@pytest.mark.parametrize("name", NAMES)
def test_masked_slots_change_nothing_bit_for_bit(name):
    cells = {"sampler_is_cap": 2.0, "entropy_coef": 0.1, "kl_coef": 0.1, "kl_in": "loss"}
    cells["kl_estimator"] = "k3"
    b = batch(11, lengths=[1, 5, 3, 2, 4, 0])
    mask = b["mask_BT"]
    b |= {k: b["old_logp_BT"] + np.float32(0.1 * i) for i, k in enumerate(EXTRA)}
    b["advantage_B"] = np.repeat(b["advantage_B"][:, None], 5, axis=1)
    clean = value_and_grad(name, b, **cells)
    assert not clean[1][~mask].any() and clean[1][mask].any()
    for junk in (np.nan, np.inf, -np.inf, 1e9, -1e9):
        dirty = {
            k: v if k in ("mask_BT", "group_B") else np.where(mask, v, np.float32(junk))
            for k, v in b.items()
        }
        got = value_and_grad(name, dirty, **cells)
        assert got[0] == clean[0]
        assert got[1].tobytes() == clean[1].tobytes()
        assert masked.to_host(got[2]) == masked.to_host(clean[2])


def test_a_masked_row_may_have_no_advantage():
    b = batch(11, lengths=[1, 5, 3, 2, 4, 0])
    clean = value_and_grad("cpgd", b)
    b["advantage_B"] = b["advantage_B"].copy()
    b["advantage_B"][5] = np.nan
    assert value_and_grad("cpgd", b)[0] == clean[0]


@pytest.mark.parametrize("name", NAMES)
def test_all_masked_gives_zero(name):
    b = batch(12, lengths=[0] * 6)
    loss, grad, metrics = value_and_grad(name, b)
    assert loss == 0 and not grad.any()
    assert set(masked.to_host(metrics).values()) == {0.0}


# ---- signs, extremes, derivatives


@pytest.mark.parametrize("name", NAMES)
def test_a_step_raises_logp_where_A_is_positive_and_lowers_it_where_negative(name):
    b = batch(13, spread=0.05)
    grad = value_and_grad(name, b, drift_coef=0.0)[1]
    on_policy = value_and_grad(name, b | {"logp_BT": b["old_logp_BT"]})[1]
    sign = np.sign(b["advantage_B"])[:, None] * b["mask_BT"]
    np.testing.assert_array_equal(np.sign(-grad), sign)
    np.testing.assert_array_equal(np.sign(-on_policy), sign)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_extreme_log_ratios_stay_finite(name, dtype):
    d = np.array([-1e4, -100, -50, -1, 0, 1, 50, 100, 1e4], np.float32)
    for A in (1.0, -1.0, 0.0):
        b = {
            "logp_BT": jnp.asarray(np.minimum(d, 0)[None], dtype),
            "old_logp_BT": jnp.asarray(np.minimum(-d, 0)[None], dtype),
            "advantage_B": jnp.array([A], dtype),
            "mask_BT": np.ones((1, 9), bool),
            "group_B": np.array([0]),
        }
        b["ref_logp_BT"] = b["old_logp_BT"]
        loss, grad, metrics = value_and_grad(name, b, kl_coef=0.1, kl_in="loss", kl_estimator="k3")
        grad = grad.astype(np.float32)
        assert np.isfinite(loss) and np.isfinite(grad).all() and np.isfinite((grad**2).sum())
        assert all(np.isfinite(v) for v in masked.to_host(metrics).values())


@pytest.mark.parametrize("name", NAMES)
def test_finite_differences(name):
    h = 5e-3
    b = batch(14, spread=0.1)
    d = b["logp_BT"] - b["old_logp_BT"]
    for bound in np.log([0.8, 1.2, 1.28, 3.0]):  # keep clear of the kinks
        near = np.abs(d - bound) < 2 * h
        b["logp_BT"] = np.where(near, b["logp_BT"] + np.float32(4 * h), b["logp_BT"])
    grad = value_and_grad(name, b, max_response_len=8)[1]
    rest = {k: v for k, v in b.items() if k != "logp_BT"}
    f = jax.jit(lambda x: policy_loss(name, logp_BT=x, **rest, max_response_len=8)[0])
    numeric = np.zeros_like(grad)
    for i in np.ndindex(grad.shape):
        step = np.zeros_like(grad)
        step[i] = h
        numeric[i] = (float(f(b["logp_BT"] + step)) - float(f(b["logp_BT"] - step))) / (2 * h)
    np.testing.assert_allclose(grad, numeric, atol=1e-3 * np.abs(grad).max())


def test_only_logp_gets_a_gradient():
    b = batch(15)
    b |= {k: b["old_logp_BT"] + np.float32(0.1) for k in EXTRA[:4]}
    weight = token_weights("token_mean", b["mask_BT"], b["group_B"])
    cells = {"sampler_is_cap": 2.0, "kl_coef": 0.1, "drift_coef": 0.5}
    floats = {k: jnp.asarray(v) for k, v in b.items() if v.dtype == np.float32}
    floats["weight_BT"] = weight
    rest = {k: v for k, v in b.items() if k not in floats}
    grad = jax.grad(lambda x: policy_loss("cpgd", **x, **rest, **cells)[0])(floats)
    assert grad.pop("logp_BT").any()
    assert not any(g.any() for g in grad.values())


def test_ratio_is_float32_whatever_arrives():
    b = batch(16)
    half = {k: jnp.asarray(v, jnp.bfloat16) if v.dtype == np.float32 else v for k, v in b.items()}
    back = {k: np.asarray(v, np.float32) if v.dtype == jnp.bfloat16 else v for k, v in half.items()}
    assert_same(
        (value_and_grad("cpgd", half)[0], 0 * b["logp_BT"]),
        (value_and_grad("cpgd", back)[0], 0 * b["logp_BT"]),
    )


def test_jit_equals_eager():
    b = batch(17)
    f = jax.jit(functools.partial(policy_loss, "cpgd", clip_schedule=0.5))
    eager = policy_loss("cpgd", **b, clip_schedule=0.5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), f(**b), eager)


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(["cpgd", "grpo", "dapo", "dr_grpo"]),
    shape=st.sampled_from([(1, 2, 1), (2, 2, 3), (2, 3, 5)]),
    lengths=st.lists(st.integers(0, 5), min_size=6, max_size=6),
    seed=st.integers(0, 10_000),
)
def test_any_shape_equals_the_twin(name, shape, lengths, seed):
    Q, G, T = shape
    b = batch(seed, Q, G, T, lengths=np.minimum(lengths[: Q * G], T))
    got = value_and_grad(name, b, max_response_len=8)
    assert_same(got, twin(name, b, max_response_len=8), rtol=5e-5)
    assert not got[1][~b["mask_BT"]].any()


# ---- refusals


@pytest.mark.parametrize(
    "cells, word",
    [
        ({"kl_coef": 0.1}, "ref_logp_BT"),
        ({"entropy_coef": 0.1}, "entropy_BT"),
        ({"sampler_is_cap": 2.0}, "sampler_logp_BT"),
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, "k1"),
        ({"agregation": "token_mean"}, "aggregation"),
    ],
)
def test_a_term_without_its_array_is_refused(cells, word):
    with pytest.raises(UserError, match=word) as error:
        policy_loss("cpgd", **batch(), **cells)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"mask_BT": np.ones((6, 5), np.int32)},
        {"old_logp_BT": np.zeros((6, 4), np.float32)},
        {"old_logp_BT": np.zeros((6, 1), np.float32)},
        {"advantage_B": np.zeros(5, np.float32)},
        {"advantage_B": np.zeros(1, np.float32)},
        {"advantage_B": np.zeros((6, 1), np.float32)},
        {"advantage_B": np.zeros(6, np.int32)},
        {"group_B": np.zeros(5, np.int32)},
        {"weight_BT": np.zeros((6, 1), np.float32)},
        {"weight_BT": np.zeros(1, np.float32)},
    ],
)
def test_wrong_shapes_and_dtypes_are_refused(change):
    with pytest.raises((AssertionError, TypeError, ValueError)):
        policy_loss("cpgd", **(batch() | change))
