"""ConfigDict (configs/*.py, flags) -> frozen dataclasses. Fields are explained in configs/base.py.

An unknown key, a missing key, a wrong type or values that contradict each other is a one-line
`UserError` that names the key, the value and the remedy.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cpgd_jax import config_checks, sizes
from cpgd_jax.errors import UserError, nearest


@dataclass(frozen=True)
class Lora:
    rank: int
    alpha: float
    targets: tuple[str, ...]


@dataclass(frozen=True)
class Model:
    init_from: str
    size: str
    num_layers: int | None
    hidden_size: int | None
    mlp_size: int | None
    num_heads: int | None
    num_kv_heads: int | None
    head_dim: int | None
    vocab_size: int | None
    rope_theta: float | None
    norm_eps: float | None
    qkv_bias: bool | None
    tie_embeddings: bool | None
    max_positions: int | None
    vision: sizes.Vision | None
    init_std: float
    dtype: str
    attention: str
    remat: str
    lora: Lora


@dataclass(frozen=True)
class Arithmetic:
    max_operand: int
    three_operand_frac: float
    held_out_frac: float
    slip_frac: float
    bad_format_frac: float


@dataclass(frozen=True)
class Pictures:
    held_out_frac: float
    slip_frac: float
    bad_format_frac: float


@dataclass(frozen=True)
class Data:
    source: str
    path: str
    held_out_path: str
    question_field: str
    answer_field: str
    max_broken: float
    tokenizer: str
    system_prompt: str
    images: bool
    image_root: str
    min_pixels: int
    max_pixels: int
    arithmetic: Arithmetic
    pictures: Pictures


@dataclass(frozen=True)
class RolloutConfig:
    prompts: int
    samples_per_prompt: int
    max_prompt_len: int
    max_response_len: int
    temperature: float
    top_k: int
    top_p: float
    slots: int
    decode_dtype: str
    cache_dtype: str
    dynamic_sampling: bool | None
    max_refills: int


@dataclass(frozen=True)
class Reward:
    accuracy_weight: float
    format_weight: float
    timeout_s: float
    workers: int
    overlong_buffer: int | None
    overlong_penalty: float
    repetition_penalty: float
    length_penalty: float
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Advantage:
    baseline: str | None
    weight: str | None
    clip_filter_max: float | None
    global_norm: bool | None
    mask_truncated: bool


@dataclass(frozen=True)
class Loss:
    objective: str | None
    clip_eps_low: float | None
    clip_eps_high: float | None
    clip_schedule: float | None
    dual_clip: float | None
    drift_coef: float | None
    drift_cap: float | None
    aggregation: str | None
    kl_coef: float | None
    kl_estimator: str | None
    kl_in: str | None
    entropy_coef: float
    sampler_is_cap: float


@dataclass(frozen=True)
class Train:
    minibatch_size: int
    microbatch_size: int
    row_len: int
    old_logp: str
    max_logp_gap: float
    epochs: int


@dataclass(frozen=True)
class Optim:
    lr: float
    lr_end_frac: float
    warmup_steps: int
    b1: float
    b2: float
    eps: float
    weight_decay: float
    grad_clip: float
    freeze: tuple[str, ...]
    train_vision: bool
    master_dtype: str


@dataclass(frozen=True)
class Supervised:
    steps: int
    batch_size: int


@dataclass(frozen=True)
class Eval:
    every: int
    problems: int
    samples: int
    blank_images: bool


@dataclass(frozen=True)
class Checkpoint:
    every: int
    keep: int
    keep_best: bool
    grace_s: float


@dataclass(frozen=True)
class Guard:
    max_skips: int
    keep_batches: int
    grad_spike: float
    ratio_spike: float


@dataclass(frozen=True)
class Watch:
    window: int
    action: str
    max_rollbacks: int
    length_frac: float
    entropy_frac: float
    truncated_frac: float
    no_signal_frac: float


@dataclass(frozen=True)
class Mesh:
    data: int
    fsdp: int
    tensor: int


@dataclass(frozen=True)
class Log:
    rollouts: int
    tensorboard: bool


@dataclass(frozen=True)
class Config:
    seed: int
    stage: str
    algorithm: str
    num_rollouts: int
    model: Model
    data: Data
    rollout: RolloutConfig
    reward: Reward
    advantage: Advantage
    loss: Loss
    train: Train
    optim: Optim
    supervised: Supervised
    eval: Eval
    checkpoint: Checkpoint
    guard: Guard
    watch: Watch
    mesh: Mesh
    log: Log

    @property
    def minibatches(self) -> int:
        """Optimiser steps an epoch of one rollout."""
        return self.rollout.prompts * self.rollout.samples_per_prompt // self.train.minibatch_size

    @property
    def steps_per_rollout(self) -> int:
        return self.minibatches * self.train.epochs

    @property
    def total_steps(self) -> int:
        """Optimiser steps of the whole run: the length of the learning-rate schedule."""
        if self.stage == "supervised":
            return self.supervised.steps
        return self.num_rollouts * self.steps_per_rollout


def from_config_dict(values: Mapping[str, Any]) -> Config:
    """A checked, frozen `Config` of a ConfigDict or nested dict with every key of base.py.

    Sizes of the model that are None are those of `model.size`, if it names a row of `sizes.SIZES`.
    """
    config = _build(Config, values, "config")
    if config.model.size:
        model = sizes.fill(config.model, sizes.named(config.model.size))
        config = dataclasses.replace(config, model=model)
    config_checks.check(config)
    return config


def to_dict(config: Config) -> dict:
    """Nested plain dict, as written to workdir/config.json; `from_config_dict` reads it back."""
    return dataclasses.asdict(config, dict_factory=_plain)


def _plain(items) -> dict:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in items}


def difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """`key: old -> new` for every leaf in which two nested dicts differ."""
    lines = []
    for key in sorted({*old, *new}):
        a, b = old.get(key, "(absent)"), new.get(key, "(absent)")
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += difference(a, b, f"{prefix}{key}.")
        elif a != b:
            lines.append(f"{prefix}{key}: {a!r} -> {b!r}")
    return lines


def _build(cls, values, path):
    if not isinstance(values, Mapping) and not hasattr(values, "items"):
        raise UserError(f"{path} is {values!r}: it must be a section with fields")
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in hints:
            raise UserError(
                f"unknown config key {path}.{key}{nearest(key, hints)}; see configs/base.py"
            )
    for key in hints:
        if key not in values:
            raise UserError(
                f"config key {path}.{key} is missing{nearest(key, values)}:"
                " start from configs/base.py"
            )
    return cls(**{key: _convert(hints[key], values[key], f"{path}.{key}") for key in hints})


def _convert(hint, value, path):
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if dataclasses.is_dataclass(kinds[0]) and not (value is None and len(kinds) > 1):
        return _build(kinds[0], value, path)
    if typing.get_origin(hint) is tuple:
        return _items(value, typing.get_args(hint)[0], path)
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) not in kinds:
        names = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
        raise UserError(f"{path} is {value!r}: it must be of type {names}")
    return value


_EXAMPLES = {str: "texts, such as ('a', 'b')", int: "whole numbers, such as (1, 2)"}


def _items(value, kind, path) -> tuple:
    if not isinstance(value, tuple | list) or not all(type(item) is kind for item in value):
        raise UserError(f"{path} is {value!r}: it must be a tuple of {_EXAMPLES[kind]}")
    return tuple(value)
