import jax
import numpy as np
import pytest
import twins
from hypothesis import given, settings
from hypothesis import strategies as st

from cpgd_jax.advantages import (
    advantages,
    clip_filter_weight,
    group_metrics,
    group_stats,
    overlong_penalty,
)
from cpgd_jax.algorithms import ALGORITHMS
from cpgd_jax.errors import UserError
from cpgd_jax.ops import masked

NAMES = list(ALGORITHMS)
GROUPED = [n for n in NAMES if n != "reinforce_pp"]
LENGTH = [[1, 3, 4, 4], [2, 2, 7, 1], [5, 1, 1, 1]]


def rewards(seed, Q=3, G=4):
    return np.random.default_rng(seed).choice([0.0, 0.5, 1.0, 1.5], (Q, G))


def assert_close(got, want):
    np.testing.assert_allclose(np.asarray(got), want, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_row_equals_its_twin(name):
    for seed in range(5):
        R = rewards(seed)
        got = advantages(name, R, LENGTH)
        assert got.dtype == np.float32 and got.shape == R.shape
        assert_close(got, twins.advantages(name, R, LENGTH))


CELLS = [
    (baseline, weight, norm)
    for baseline in ("mean", "leave_one_out", "none")
    for weight in ("equal", "std", "clip_filter", "gpg")
    for norm in (False, True)
    if not (norm and weight in ("clip_filter", "gpg"))  # refused: the weight cancels
]


@pytest.mark.parametrize("baseline, weight, norm", CELLS)
def test_any_cells_equal_their_twin(baseline, weight, norm):
    raw = {"leave_one_out": "loo", "none": "raw"}.get(baseline, baseline)
    R = rewards(11)
    R[1] = 0.5
    got = advantages("cpgd", R, LENGTH, baseline=baseline, weight=weight, global_norm=norm)
    want = twins.advantages("cpgd", R, LENGTH, baseline=raw, weight=weight, norm=norm)
    assert_close(got, want)


# ---- the reference numbers


def test_reference_numbers():
    R = [[1.0, 0, 0, 0]]
    assert_close(advantages("dr_grpo", R), [[0.75, -0.25, -0.25, -0.25]])
    assert_close(advantages("cpgd", R), [[1.5, -0.5, -0.5, -0.5]])
    assert_close(advantages("rloo", R, global_norm=False), [[1, -1 / 3, -1 / 3, -1 / 3]])
    assert_close(advantages("cpgd", R, baseline="none", weight="equal"), R)


@pytest.mark.parametrize("informative, weight", [(1, 3.0), (2, 2.0), (4, 1.0)])
def test_clip_filter_counts_the_whole_rollout(informative, weight):
    R = np.zeros((4, 4))
    R[:informative, 0] = 1
    want = weight * np.asarray(advantages("dr_grpo", R))
    assert_close(advantages("cpgd", R, weight="clip_filter"), want)
    assert float(clip_filter_weight(np.arange(4) < informative, 3.0)) == weight
    assert_close(
        advantages("cpgd", R, weight="clip_filter", clip_filter_max=1.5),
        want / weight * min(weight, 1.5),
    )


def test_gpg_scales_by_the_share_with_a_signal():
    R = [[1.0, 0], [1, 1], [0, 0], [0, 0]]
    assert_close(advantages("gpg", R), [[2, -2], [0, 0], [0, 0], [0, 0]])


def test_global_normalisation_is_token_wise():
    A = np.asarray(advantages("reinforce_pp", [[1.0, 0.0]], [[3, 1]]))
    tokens = np.repeat(A[0], [3, 1])
    assert_close([tokens.mean(), tokens.std()], [0, 1])
    assert_close(A, [[1 / np.sqrt(3), -np.sqrt(3)]])


# ---- groups


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("value", [0.1, 1.0, 1e-30, 3e7])
def test_constant_groups_have_advantage_exactly_0(name, value):
    R = np.array([[value] * 7, [1, 0, 0, 1, 0, 0, 0]])
    A = np.asarray(advantages(name, R, np.arange(1, 15).reshape(2, 7)))
    assert not A[0].any() and A[1].all()
    assert not np.asarray(advantages(name, R[:1])).any()


@pytest.mark.parametrize("name", GROUPED)
def test_two_constant_prompts_are_not_compared_with_each_other(name):
    assert not np.asarray(advantages(name, [[1.0, 1], [0, 0]], [[3, 1], [2, 5]])).any()


def test_a_constant_rollout_has_no_signal_for_reinforce_pp():
    assert not np.asarray(advantages("reinforce_pp", [[0.1] * 7] * 3)).any()


@pytest.mark.parametrize("name", NAMES)
def test_advantages_move_with_their_groups(name):
    R, length = rewards(3), np.array(LENGTH)
    A = np.asarray(advantages(name, R, length))
    order = [2, 0, 1]
    assert_close(advantages(name, R[order], length[order]), A[order])
    assert_close(advantages(name, R[:, ::-1], length[:, ::-1]), A[:, ::-1])


@pytest.mark.parametrize("name", NAMES)
def test_small_and_large_spreads_stay_finite(name):
    for R in ([[0.0, 1e-30]], [[0.0, 1e25]], [[1.0, 1.0 + 1.2e-7]]):
        A = np.asarray(advantages(name, R, baseline="mean", weight="std", global_norm=False))
        np.testing.assert_allclose(A, [[-(0.5**0.5), 0.5**0.5]], rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_nan_reward_is_contained(name, bad):
    R = np.array([[1, 0, bad, 0.5], [bad] * 4, [1, 0, 0, 1]])
    A = np.asarray(advantages(name, R, LENGTH))
    assert_close(A, twins.advantages(name, R, LENGTH))
    assert A[0, 2] == 0 and not A[1].any() and A[0, 0] != 0
    if not ALGORITHMS[name].global_norm and name != "gpg":
        assert_close(A[0, [0, 1, 3]], np.asarray(advantages(name, R[:1, [0, 1, 3]]))[0])
    assert not np.asarray(advantages(name, np.full((2, 3), bad))).any()


def test_group_statistics_and_metrics():
    R = np.array([[1, 0, np.nan, 0.5], [np.nan] * 4, [1, 1, 1, 1], [np.nan, 2, np.nan, np.nan]])
    groups = group_stats(R)
    assert groups.count_Q1[:, 0].tolist() == [3, 0, 4, 1]
    assert groups.centred_QG.tolist() == [[0.5, -0.5, 0, 0]] + [[0] * 4] * 3
    assert groups.std_Q1[:, 0].tolist() == [0.5, 0, 0, 0]
    assert groups.signal_Q1[:, 0].tolist() == [True, False, False, False]
    assert masked.to_host(group_metrics(R)) == {"group/zero_std_frac": 0.75, "reward/nan": 8.0}


# ---- KL in the reward


def kl_arrays(seed=0, Q=2, G=3, T=4):
    rng = np.random.default_rng(seed)
    mask = np.arange(T) < rng.integers(1, T + 1, (Q, G, 1))
    log_ratio = rng.normal(0, 0.5, (Q, G, T))
    return {"log_ratio_to_ref_QGT": np.where(mask, log_ratio, np.nan), "mask_QGT": mask}


def test_reinforce_pp_return_of_each_token():
    R, kl = rewards(5, 2, 3), kl_arrays()
    got = advantages("reinforce_pp", R, kl_coef=0.3, **kl)
    assert_close(got, twins.returns(R, kl["log_ratio_to_ref_QGT"], kl["mask_QGT"], 0.3))
    no_kl = advantages("reinforce_pp", R, kl["mask_QGT"].sum(-1))
    tiny = np.asarray(advantages("reinforce_pp", R, kl_coef=1e-9, **kl))
    assert_close(tiny, np.where(kl["mask_QGT"], np.asarray(no_kl)[..., None], 0))


def test_return_of_each_token_contains_nan():
    R, kl = rewards(5, 2, 3), kl_arrays()
    R[0, 1] = np.nan
    got = np.asarray(advantages("reinforce_pp", R, kl_coef=0.3, **kl))
    assert np.isfinite(got).all() and not got[0, 1].any() and got[0, 0, 0] != 0


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_a_group_baseline_takes_the_kl_of_the_response(estimator):
    R, kl = rewards(6, 2, 3), kl_arrays(1)
    got = advantages("dr_grpo", R, kl_coef=0.3, kl_in="reward", kl_estimator=estimator, **kl)
    k = np.vectorize(lambda x: twins.kl(estimator, x, 0.0)[0])(kl["log_ratio_to_ref_QGT"])
    want = twins.advantages("dr_grpo", R - 0.3 * np.where(kl["mask_QGT"], k, 0).sum(-1))
    assert_close(got, np.where(kl["mask_QGT"], want[..., None], 0))


def test_kl_in_the_reward_needs_its_arrays():
    with pytest.raises(UserError, match="log_ratio_to_ref_QGT"):
        advantages("reinforce_pp", [[1.0, 0]], kl_coef=0.1)
    advantages("grpo", [[1.0, 0]], kl_coef=0.1)  # in the loss: nothing to do here


# ---- the overlong penalty


def test_overlong_penalty_in_tokens():
    got = overlong_penalty([1, 80, 90, 95, 100, 120], 100, 20)
    assert_close(got, [0, 0, -0.5, -0.75, -1, -1])
    assert_close(overlong_penalty([90, 100], 100, 20, 0.5), [-0.25, -0.5])
    assert_close(overlong_penalty([[100, 5000]], 100, 0), [[0, 0]])
    assert_close(overlong_penalty([16384, 18432, 20480], 20480), [0, -0.5, -1])
    with pytest.raises(UserError, match="overlong_buffer = 101"):
        overlong_penalty([1], 100, 101)


def test_inside_jit_and_wrong_shapes():
    R = rewards(2)
    assert_close(jax.jit(lambda r: advantages("cpgd", r))(R), advantages("cpgd", R))
    for bad in ([1.0, 0.0], [[[1.0]]]):
        with pytest.raises(AssertionError):
            advantages("cpgd", bad)
    with pytest.raises(AssertionError):
        advantages("rloo", R, [[1, 2]])


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    shape=st.sampled_from([(1, 2), (2, 2), (3, 5)]),
    pool=st.sampled_from(
        [(0.0, 1.0), (0.0, 0.5, 1.0, 1.5), (0.1, np.nan), (-3.0, 0.1, 7.25, np.nan)]
    ),
    data=st.data(),
)
def test_any_rewards_equal_the_twin(name, shape, pool, data):
    size = shape[0] * shape[1]
    R = data.draw(st.lists(st.sampled_from(pool), min_size=size, max_size=size))
    length = data.draw(st.lists(st.integers(1, 9), min_size=size, max_size=size))
    R, length = np.array(R).reshape(shape), np.array(length).reshape(shape)
    assert_close(advantages(name, R, length), twins.advantages(name, R, length))
