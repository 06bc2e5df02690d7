"""Configs: every field is known, typed and documented; what contradicts itself is refused."""

import dataclasses
import json

import pytest
import tiny

from configs import base
from cpgd_jax import config as config_lib
from cpgd_jax import config_checks, train
from cpgd_jax.algorithms import ALGORITHMS
from cpgd_jax.errors import UserError


def dotted(values, prefix=""):
    for key, value in values.items():
        if hasattr(value, "items"):
            yield from dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def fields(cls, prefix=""):
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(field.type):
            yield from fields(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def test_base_config_holds_exactly_the_fields_of_the_dataclasses():
    assert sorted(dotted(base.get_config())) == sorted(fields(config_lib.Config))


def test_every_checked_key_exists():
    c = tiny.config(model__vocab_size=64)
    keys = (*config_checks.CHOICES, *config_checks.POSITIVE, *config_checks.NOT_NEGATIVE)
    for key in (*keys, *config_checks.FRACTIONS):
        assert config_checks.get(c, key) is not None


def test_roundtrip_through_json():
    changes = dict(loss__drift_coef=0.5, rollout__dynamic_sampling=True)
    c = tiny.config(reward__functions=("my:f", "my:g=0.5"), **changes)
    again = config_lib.from_config_dict(json.loads(json.dumps(config_lib.to_dict(c))))
    assert again == c and again.reward.functions == ("my:f", "my:g=0.5")
    assert not config_lib.difference(
        config_lib.to_dict(again), json.loads(json.dumps(config_lib.to_dict(c)))
    )
    assert again.loss.drift_coef == 0.5 and again.loss.drift_cap is None


def test_step_counts():
    c = tiny.config(train__epochs=2, num_rollouts=3)
    assert (c.minibatches, c.steps_per_rollout, c.total_steps) == (2, 4, 12)
    assert tiny.config(stage="supervised").total_steps == 4
    # The paper's run: 128 prompts x 8 in minibatches of 128 responses.
    assert config_lib.from_config_dict(base.get_config()).steps_per_rollout == 8


def test_whole_numbers_serve_as_floats():
    value = tiny.config(rollout__temperature=1).rollout.temperature
    assert value == 1.0 and isinstance(value, float)


def refused(*words, **changes):
    with pytest.raises(UserError) as error:
        tiny.config(**changes)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message


def test_unknown_and_missing_keys_name_the_nearest():
    values = config_lib.to_dict(tiny.config())
    values["rollout"]["promts"] = values["rollout"].pop("prompts")
    with pytest.raises(UserError, match=r"unknown config key config\.rollout\.promts .*'prompts'"):
        config_lib.from_config_dict(values)
    values = config_lib.to_dict(tiny.config())
    del values["optim"]["lr"]
    with pytest.raises(UserError, match=r"config\.optim\.lr is missing"):
        config_lib.from_config_dict(values)
    values = config_lib.to_dict(tiny.config())
    values["optim"] = 3
    with pytest.raises(UserError, match=r"config\.optim is 3: it must be a section"):
        config_lib.from_config_dict(values)


def test_wrong_types():
    refused("config.num_rollouts is 2.5", "int", num_rollouts=2.5)
    refused("config.optim.lr is 'high'", "float", optim__lr="high")
    refused("config.model.remat is 1", "str", model__remat=1)
    refused("config.loss.drift_coef is 'x'", "float or None", loss__drift_coef="x")
    refused("config.optim.freeze is 'embed'", "a tuple of texts", optim__freeze="embed")
    refused("config.seed is True", "int", seed=True)
    refused("config.reward.functions is 'my:f'", "a tuple of texts", reward__functions="my:f")
    refused("config.reward.functions is (1,)", "a tuple of texts", reward__functions=(1,))


def lora(**changes):
    return {"model__lora": {"rank": 4, "alpha": 8.0, "targets": ("q", "v")} | changes}


CONTRADICTIONS = [
    (dict(stage="rll"), "config.stage is 'rll' (did you mean 'rl'?)"),
    (dict(model__remat="blok"), "did you mean 'block'?"),
    (lora(rank=-1), "config.model.lora.rank is -1: it must be 0 or above"),
    (lora(alpha=0.0), "config.model.lora.alpha is 0.0: it must be above 0"),
    (lora(targets=("q", "gat")), "config.model.lora.targets has 'gat' (did you mean 'gate'?)"),
    (lora(targets=()), "config.model.lora.targets is (): name a projection"),
    (dict(optim__master_dtype="float16"), "choose one of float32, bfloat16"),
    (dict(model__dtype="float16"), "choose one of float32, bfloat16"),
    (dict(data__source="json"), "did you mean 'jsonl'?"),
    (dict(data__system_prompt="resoning"), "did you mean 'reasoning'?"),
    (dict(num_rollouts=0), "config.num_rollouts is 0: it must be above 0"),
    (dict(optim__lr=float("nan")), "config.optim.lr is nan: it must be above 0"),
    (dict(optim__lr=float("inf")), "config.optim.lr is inf"),
    (dict(seed=-1), "config.seed is -1: it must be 0 or above"),
    (dict(optim__lr_end_frac=1.5), "config.optim.lr_end_frac is 1.5: it must be between 0 and 1"),
    (dict(rollout__top_p=0.0), "config.rollout.top_p is 0.0"),
    (dict(rollout__temperature=0.0), "config.rollout.temperature is 0.0"),
    (dict(reward__overlong_buffer=9), "config.reward.overlong_buffer is 9"),
    (dict(model__num_kv_heads=3), "must be a multiple of config.model.num_kv_heads 3"),
    (dict(model__head_dim=15), "rotary embedding needs it even"),
    (dict(rollout__prompts=3), "does not divide the rollout of 3 prompts x 4 samples = 12"),
    (dict(rollout__samples_per_prompt=1), "samples_per_prompt = 1 also leaves a group baseline"),
    (dict(train__minibatch_size=2, train__microbatch_size=2), "a minibatch holds whole groups"),
    (dict(train__microbatch_size=3), "microbatch_size 3 does not divide config.train.minibatch"),
    (dict(stage="supervised", data__source="jsonl"), "only arithmetic and pictures have demonstra"),
    (dict(stage="supervised", train__microbatch_size=3), "does not divide config.supervised.batch"),
]


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS, ids=lambda x: str(x)[:40])
def test_contradictions(changes, message):
    refused(message, **changes)


ROW_CONTRADICTIONS = [
    (dict(algorithm="cgpd"), "nearest: 'cpgd'"),
    (dict(rollout__samples_per_prompt=1, rollout__prompts=8), "samples_per_prompt = 1"),
    (dict(loss__kl_coef=0.1, loss__kl_estimator="k1", loss__kl_in="loss"), "'k1' as a loss"),
    (dict(advantage__global_norm=True, advantage__weight="clip_filter"), "cancels"),
    (dict(loss__aggregation="mean"), "aggregation = 'mean' is unknown"),
]


@pytest.mark.parametrize(("changes", "message"), ROW_CONTRADICTIONS, ids=lambda x: str(x)[:40])
def test_contradictions_of_the_row(changes, message):
    with pytest.raises(UserError) as error:
        train.algorithm_row(tiny.config(**changes))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_one_step_a_rollout_is_warned_about():
    assert not train.algorithm_row(tiny.config())[1]
    warnings = train.algorithm_row(tiny.config(train__minibatch_size=16))[1]
    assert any("dead code" in w for w in warnings)
    assert not train.algorithm_row(tiny.config(train__minibatch_size=16, train__epochs=2))[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_row_is_one_flag(name):
    row, _ = train.algorithm_row(tiny.config(algorithm=name))
    assert row == dataclasses.replace(ALGORITHMS[name], max_response_len=8)


def test_cells_override_the_row():
    changes = dict(loss__drift_cap=1.5, advantage__mask_truncated=True, loss__clip_eps_low=0.1)
    row, _ = train.algorithm_row(tiny.config(**changes))
    assert (row.drift_cap, row.mask_truncated, row.clip_eps_low) == (1.5, True, 0.1)
    assert (row.clip_eps_high, row.drift_coef) == (0.2, 0.01)


def test_difference_names_leaves():
    old, new = {"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 1, "c": 5}, "e": 4}
    assert config_lib.difference(old, new) == [
        "a.c: 2 -> 5",
        "d: 3 -> '(absent)'",
        "e: '(absent)' -> 4",
    ]
    assert config_lib.difference(old, old) == []
