import dataclasses

import pytest
import twins

from cpgd_jax.algorithms import ALGORITHMS, CHOICES, CLIPPED, check, resolve
from cpgd_jax.errors import UserError
from cpgd_jax.losses.kl import ESTIMATORS
from cpgd_jax.losses.objectives import OBJECTIVES
from cpgd_jax.losses.reduce import AGGREGATIONS

RUN = {"samples_per_prompt": 8, "steps_per_rollout": 8, "epochs": 1}
WORDS = {
    "pg": "policy_gradient",
    "log clip": "log_ratio_clip",
    "ppo": "ppo_clip",
    "dual": "ppo_dual_clip",
    "ratio": "ratio",
    "loo": "leave_one_out",
    "raw": "none",
}


def test_the_table():
    assert list(ALGORITHMS) == list(twins.TABLE)
    for name, (advantage, objective, alpha, aggregation, eps) in twins.TABLE.items():
        row = ALGORITHMS[name]
        assert row.name == name
        baseline, weight, norm = advantage
        assert (row.baseline, row.weight, row.global_norm) == (
            WORDS.get(baseline, baseline),
            weight,
            norm,
        )
        assert row.objective == WORDS[objective]
        assert (row.drift_coef, row.aggregation) == (alpha, aggregation)
        assert (row.clip_eps_low, row.clip_eps_high) == eps
        assert (row.drift_cap, row.dual_clip, row.clip_filter_max) == (2.0, 3.0, 3.0)
        assert (row.clip_schedule, row.kl_coef, row.entropy_coef, row.sampler_is_cap) == (
            1,
            0,
            0,
            0,
        )
        assert (row.dynamic_sampling, row.overlong) == (name == "dapo", name == "dapo")
        assert (row.kl_in, row.kl_estimator) == (
            ("reward", "k1") if name == "reinforce_pp" else ("loss", "k3")
        )
        assert not row.mask_truncated


def test_every_choice_is_built():
    assert set(CHOICES["objective"]) == set(OBJECTIVES)
    assert set(CHOICES["aggregation"]) == set(AGGREGATIONS)
    assert set(CHOICES["kl_estimator"]) == set(ESTIMATORS)
    assert set(CLIPPED) < set(OBJECTIVES)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_is_accepted_without_a_warning_in_the_paper_run(name):
    assert check(resolve(name), **RUN, has_reference=False) == []


def test_overrides():
    row = resolve(
        "cpgd", drift_coef=0.5, weight="clip_filter", clip_eps_low=None, mask_truncated=True
    )
    assert (row.drift_coef, row.weight, row.clip_eps_low) == (0.5, "clip_filter", 0.2)
    assert row.mask_truncated and row.name == "cpgd"
    assert resolve(row, drift_coef=0) == dataclasses.replace(row, drift_coef=0.0)
    assert resolve("cpgd") == ALGORITHMS["cpgd"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        row.drift_coef = 1.0


@pytest.mark.parametrize(
    "name, cells, words",
    [
        ("grpo-drift", {}, ["'grpo-drift'", "nearest: 'grpo_drift'"]),
        ("cpgd", {"drift_coeff": 1.0}, ["'drift_coeff'", "nearest: 'drift_coef'"]),
        ("cpgd", {"aggregation": "tokenmean"}, ["aggregation", "'tokenmean'", "'token_mean'"]),
        ("cpgd", {"objective": "ppo-clip"}, ["objective", "'ppo_clip'"]),
        ("cpgd", {"drift_coef": -1.0}, ["drift_coef", "-1.0", "0.01"]),
        ("cpgd", {"drift_cap": 0.0}, ["drift_cap", "(0"]),
        ("cpgd", {"drift_coef": float("nan")}, ["drift_coef", "nan"]),
        ("cpgd", {"drift_coef": "0.1"}, ["drift_coef", "'0.1'"]),
        ("cpgd", {"drift_coef": True}, ["drift_coef", "True"]),
        ("cpgd", {"clip_eps_low": 1.5}, ["clip_eps_low", "1.5", "1.0]"]),
        ("cpgd", {"clip_schedule": 2.0}, ["clip_schedule"]),
        ("grpo_dual_clip", {"dual_clip": 0.5}, ["dual_clip", "[1.0"]),
        ("dr_grpo", {"max_response_len": 0}, ["max_response_len"]),
        ("dr_grpo", {"max_response_len": 8.5}, ["max_response_len", "int"]),
        ("cpgd", {"global_norm": 1}, ["global_norm", "bool"]),
        ("cpgd", {"kl_coef": 0.1, "kl_estimator": "k1"}, ["k1", "expected", "k3"]),
        ("rloo", {"weight": "clip_filter"}, ["clip_filter", "cancels"]),
        ("rloo", {"weight": "gpg"}, ["gpg", "cancels"]),
        ("cpgd", {"weight": "clip_filter", "global_norm": True}, ["cancels"]),
    ],
)
def test_bad_names_and_values_are_one_clear_line(name, cells, words):
    with pytest.raises(UserError) as error:
        resolve(name, **cells)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_k1_is_accepted_where_it_is_not_differentiated():
    resolve("cpgd", kl_coef=0.1, kl_estimator="k1", kl_in="reward")
    resolve("cpgd", kl_coef=0.0, kl_estimator="k1")
    assert check(resolve("reinforce_pp", kl_coef=0.1), **RUN) == []


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n != "reinforce_pp"])
def test_a_group_of_one_is_refused(name):
    with pytest.raises(UserError, match="samples_per_prompt = 1"):
        check(resolve(name), **RUN | {"samples_per_prompt": 1})


def test_a_group_of_one_is_enough_without_a_group_baseline():
    assert check(resolve("reinforce_pp"), **RUN | {"samples_per_prompt": 1}) == []
    raw = resolve("cpgd", baseline="none", weight="equal")
    assert check(raw, **RUN | {"samples_per_prompt": 1}) == []


def test_kl_without_a_reference_is_refused():
    row = resolve("grpo", kl_coef=0.1)
    with pytest.raises(UserError, match="kl_coef = 0.1 needs a reference"):
        check(row, **RUN, has_reference=False)
    assert check(row, **RUN, has_reference=True) == check(row, **RUN) == []


@pytest.mark.parametrize("name", ["cpgd", "pgd", "cpg", "grpo", "dapo"])
def test_one_step_a_rollout_makes_clip_and_drift_dead_code(name):
    (warning,) = check(resolve(name), **RUN | {"steps_per_rollout": 1})
    assert "dead code" in warning and "\n" not in warning
    assert check(resolve(name), **RUN | {"steps_per_rollout": 1, "epochs": 2}) == []


def test_one_step_a_rollout_is_fine_without_them():
    assert check(resolve("pg"), **RUN | {"steps_per_rollout": 1}) == []
    assert check(resolve("grpo_no_clip"), **RUN | {"steps_per_rollout": 1}) == []


@pytest.mark.parametrize(
    "name, cells, word",
    [
        ("pg", {"clip_schedule": 0.5}, "clip_schedule"),
        ("grpo", {"kl_coef": 0.1, "kl_in": "reward"}, "biased"),
        ("dapo", {"weight": "clip_filter"}, "dynamic_sampling"),
        ("dapo", {"mask_truncated": True}, "overlong"),
    ],
)
def test_what_has_no_effect_is_said(name, cells, word):
    (warning,) = check(resolve(name, **cells), **RUN)
    assert warning.startswith(f"{name}: ") and word in warning


def test_a_row_made_by_hand_is_checked_too():
    with pytest.raises(UserError, match="cancels"):
        check(dataclasses.replace(ALGORITHMS["rloo"], weight="gpg"), **RUN)
