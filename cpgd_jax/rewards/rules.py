"""The parts of a reward, each a small function, and the record that holds them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cpgd_jax.rewards import answers

REPEATED_WORDS = 8  # length of the runs of words whose repetition is counted

_WORD = re.compile(r"[\u4e00-\u9fff]|\w+|[^\w\s]")


@dataclass(frozen=True)
class Score:
    """The verdict on one response."""

    accuracy: int  # 1 = the answer equals the gold
    format: int  # 1 = <think>...</think><answer>...</answer> and nothing else
    total: float  # the weighted sum of the parts, see `total`
    extracted: str  # the answer as the response wrote it; "" = none found
    reason: str  # why, in a few words
    seconds: float  # wall clock of this verdict, without the wait for a free worker
    timed_out: bool = False  # the comparison or a user's reward hit its limit (and counts as 0)
    failed: bool = False  # it raised, or its process died (and counts as 0)
    extra: Mapping[str, float] = field(default_factory=dict)  # the other parts by name, unweighted


def format_reward(response: str) -> int:
    """1 if the response is one reasoning block, then one answer block, and nothing else."""
    return int(answers.follows_format(response))


def repetition(response: str) -> float:
    """Share of the runs of REPEATED_WORDS words that occurred before: 0 to 1."""
    words = _WORD.findall(answers.until_stop(response))
    runs = [tuple(words[at : at + REPEATED_WORDS]) for at in range(len(words) - REPEATED_WORDS + 1)]
    return 1.0 - len(set(runs)) / len(runs) if runs else 0.0


def total(
    accuracy: int,
    format: int,
    repetition: float = 0.0,
    *,
    accuracy_weight: float = 1.0,
    format_weight: float = 0.5,
    repetition_penalty: float = 0.0,
) -> float:
    """The weighted sum of the parts; users' rewards and the length are added by the caller."""
    kept = accuracy_weight * accuracy + format_weight * format
    return kept - repetition_penalty * repetition


def length(tokens, limit: int):
    """Share of the length limit that a response (or an array of lengths) takes: 0 to 1."""
    return tokens / limit
