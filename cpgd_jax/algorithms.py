"""The algorithms as one table: a row is a set of named pieces, and a new algorithm is a new row.

CPGD and its ablations are those of arXiv 2505.12504 (sections 3 and 4); the other rows name their
paper. Any cell can be replaced by a config value or a keyword, so an ablation needs no code.
"""

import dataclasses
import difflib
import math
import numbers

from cpgd_jax.errors import UserError


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """One row: the cells of the advantage, of the loss, and of the rollout."""

    name: str
    baseline: str  # subtracted from the reward: mean (of the group), leave_one_out, none
    weight: str  # of a prompt: equal 1, std 1/std_group, clip_filter, gpg
    objective: str  # per token, see losses.objectives
    aggregation: str  # of tokens to a scalar, see losses.reduce
    global_norm: bool = False  # (A - mean) / std over every unmasked token of the rollout
    clip_filter_max: float = 3.0  # c_omega
    mask_truncated: bool = False  # leave truncated responses out of the loss

    clip_eps_low: float = 0.2
    clip_eps_high: float = 0.2
    clip_schedule: float = 1.0  # lambda of the tight-to-loose threshold; 1 = constant
    dual_clip: float = 3.0  # c_dual, read by ppo_dual_clip only
    drift_coef: float = 0.0  # alpha
    drift_cap: float = 2.0  # c
    max_response_len: int = 4096  # tokens, read by constant_length only
    kl_coef: float = 0.0  # beta, to the frozen initial policy; 0 needs no reference
    kl_estimator: str = "k3"  # k1, k2, k3
    kl_in: str = "loss"  # loss or reward
    entropy_coef: float = 0.0
    sampler_is_cap: float = 0.0  # of the weight trainer/sampler; 0 = off

    dynamic_sampling: bool = False  # refill prompts whose rewards are all equal
    overlong: bool = False  # soft overlong penalty


_ROWS = (
    # name, baseline, weight, objective, aggregation; a cell not named has the default above
    Algorithm("pg", "mean", "std", "policy_gradient", "prompt_token_mean"),
    Algorithm("pgd", "mean", "std", "policy_gradient", "prompt_token_mean", drift_coef=0.01),
    Algorithm("cpg", "mean", "std", "log_ratio_clip", "prompt_token_mean"),
    Algorithm("cpgd", "mean", "std", "log_ratio_clip", "prompt_token_mean", drift_coef=0.01),
    # arXiv 2402.03300; beta > 0 adds k3 to the reference
    Algorithm("grpo", "mean", "std", "ppo_clip", "seq_mean_token_mean"),
    Algorithm("grpo_no_clip", "mean", "std", "ratio", "seq_mean_token_mean"),
    Algorithm("grpo_dual_clip", "mean", "std", "ppo_dual_clip", "seq_mean_token_mean"),
    Algorithm("grpo_drift", "mean", "std", "ppo_clip", "seq_mean_token_mean", drift_coef=0.01),
    # arXiv 2402.14740, with the clip and the normalisation of the CPGD paper's comparison
    Algorithm(
        "rloo", "leave_one_out", "equal", "ppo_clip", "seq_mean_token_mean", global_norm=True
    ),
    # arXiv 2501.03262; beta enters the per-token return
    Algorithm(
        "reinforce_pp", "none", "equal", "ppo_clip", "seq_mean_token_mean",
        global_norm=True, kl_in="reward", kl_estimator="k1",
    ),
    # arXiv 2503.14476
    Algorithm(
        "dapo", "mean", "std", "ppo_clip", "token_mean",
        clip_eps_high=0.28, dynamic_sampling=True, overlong=True,
    ),
    # arXiv 2503.20783
    Algorithm("dr_grpo", "mean", "equal", "ppo_clip", "constant_length"),
    # arXiv 2504.02546
    Algorithm("gpg", "mean", "gpg", "policy_gradient", "token_mean"),
)  # fmt: skip

ALGORITHMS: dict[str, Algorithm] = {row.name: row for row in _ROWS}

CHOICES = {
    "baseline": ("mean", "leave_one_out", "none"),
    "weight": ("equal", "std", "clip_filter", "gpg"),
    "objective": ("policy_gradient", "log_ratio_clip", "ratio", "ppo_clip", "ppo_dual_clip"),
    "aggregation": (
        "prompt_token_mean",
        "token_mean",
        "seq_mean_token_mean",
        "seq_mean_token_sum",
        "constant_length",
    ),
    "kl_estimator": ("k1", "k2", "k3"),
    "kl_in": ("loss", "reward"),
}
CLIPPED = ("log_ratio_clip", "ppo_clip", "ppo_dual_clip")
_LEAST = {"dual_clip": 1.0, "max_response_len": 1}  # else 0
_MOST = {"clip_eps_low": 1.0, "clip_schedule": 1.0}  # else infinity
_POSITIVE = ("drift_cap", "clip_filter_max")
_TYPES = {f.name: f.type for f in dataclasses.fields(Algorithm) if f.name != "name"}


def resolve(name: str | Algorithm, **overrides) -> Algorithm:
    """The row `name` with cells replaced; an override of None keeps the row's own value.

    Raises UserError: unknown row, cell or value, or cells that contradict each other.
    """
    row = name if isinstance(name, Algorithm) else ALGORITHMS.get(name)
    if row is None:
        raise UserError(f"algorithm = {name!r} is unknown; {_nearest(name, ALGORITHMS)}")
    for cell in overrides:
        if cell not in _TYPES:
            raise UserError(f"{row.name}: cell {cell!r} is unknown; {_nearest(cell, _TYPES)}")
    cells = {k: _value(row, k, v) for k, v in overrides.items() if v is not None}
    row = dataclasses.replace(row, **cells)
    _refuse(row)
    return row


def check(
    row: Algorithm,
    *,
    samples_per_prompt: int,
    steps_per_rollout: int,
    epochs: int = 1,
    has_reference: bool | None = None,
) -> list[str]:
    """Holds a row against the run it is used in: warnings, one line each.

    `steps_per_rollout` counts the optimiser steps of one epoch; `has_reference=None` is unknown.
    Raises UserError where the run could not mean what it says.
    """
    _refuse(row)
    if samples_per_prompt == 1:
        for cell, single in (
            ("baseline", "none"),
            ("weight", "equal"),
            ("dynamic_sampling", False),
        ):
            if getattr(row, cell) != single:
                raise UserError(
                    f"{row.name}: samples_per_prompt = 1 leaves {cell} = {getattr(row, cell)!r} "
                    f"nothing to compare; sample at least 2, or set {cell} = {single!r}"
                )
    if row.kl_coef > 0 and has_reference is False:
        raise UserError(
            f"{row.name}: kl_coef = {row.kl_coef} needs a reference policy and none is loaded; "
            "load one, or set kl_coef = 0"
        )
    return [f"{row.name}: {text}" for text in _warnings(row, steps_per_rollout * epochs)]


def _warnings(row, steps):
    clip = row.objective in CLIPPED
    if steps == 1 and (clip or row.drift_coef > 0):
        yield (
            "one optimiser step a rollout, so the ratio is 1 throughout and clip and drift are "
            "dead code; use a smaller minibatch or more epochs"
        )
    if row.clip_schedule < 1 and not clip:
        yield f"clip_schedule = {row.clip_schedule} has no effect: {row.objective} has no clip"
    if row.kl_coef > 0 and row.kl_in == "reward" and row.kl_estimator != "k1":
        yield (
            f"kl_estimator = {row.kl_estimator!r} in the reward gives a biased gradient of the KL; "
            "k1 gives an unbiased one"
        )
    if row.dynamic_sampling and row.weight in ("clip_filter", "gpg"):
        yield f"weight = {row.weight!r} is 1 when dynamic_sampling has filled the rollout"
    if row.mask_truncated and row.overlong:
        yield "mask_truncated leaves out the responses that the overlong penalty punishes most"


def _refuse(row):
    """Cells that contradict each other whatever the run."""
    if row.kl_coef > 0 and row.kl_in == "loss" and row.kl_estimator == "k1":
        raise UserError(
            f"{row.name}: kl_estimator = 'k1' as a loss has expected on-policy gradient 0 and "
            "constrains nothing; use 'k2' or 'k3', or kl_in = 'reward'"
        )
    if row.global_norm and row.weight in ("clip_filter", "gpg"):
        raise UserError(
            f"{row.name}: weight = {row.weight!r} is one factor for the whole rollout and cancels "
            "in global_norm = True; set weight = 'equal' or global_norm = False"
        )


def _value(row, cell, value):
    if cell in CHOICES:
        if value not in CHOICES[cell]:
            raise UserError(
                f"{row.name}: {cell} = {value!r} is unknown; {_nearest(value, CHOICES[cell])}"
            )
        return value
    kind = _TYPES[cell]
    if kind is bool:
        if not isinstance(value, bool):
            raise UserError(f"{row.name}: {cell} = {value!r} is no bool; nearest: {bool(value)}")
        return value
    return _number(row, cell, value, kind)


def _number(row, cell, value, kind):
    least, most = _LEAST.get(cell, 0.0), _MOST.get(cell, math.inf)
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    inside = number and least <= value <= most and (value > 0 or cell not in _POSITIVE)
    if inside and (kind is float or isinstance(value, numbers.Integral)):
        return kind(value)
    lower = f"({least}" if cell in _POSITIVE else f"[{least}"
    raise UserError(
        f"{row.name}: {cell} = {value!r} is not a {kind.__name__} in {lower}, {most}]; "
        f"the row has {getattr(row, cell)}"
    )


def _nearest(word, known):
    close = difflib.get_close_matches(str(word), known, n=1, cutoff=0.4)
    return f"{f'nearest: {close[0]!r}; ' if close else ''}pick one of {', '.join(known)}"
