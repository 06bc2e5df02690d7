"""The parts of a reward, each a small function, and the record that holds them."""

from dataclasses import dataclass

from cpgd_jax.rewards import answers


@dataclass(frozen=True)
class Score:
    """The verdict on one response."""

    accuracy: int  # 1 = the answer equals the gold
    format: int  # 1 = <think>...</think><answer>...</answer> and nothing else
    total: float  # accuracy_weight * accuracy + format_weight * format
    extracted: str  # the answer as the response wrote it; "" = none found
    reason: str  # why, in a few words
    seconds: float  # wall clock of this verdict, without the wait for a free worker
    timed_out: bool = False  # the comparison hit its limit (accuracy is then 0)


def format_reward(response: str) -> int:
    """1 if the response is one reasoning block, then one answer block, and nothing else."""
    return int(answers.follows_format(response))


def total(
    accuracy: int, format: int, *, accuracy_weight: float = 1.0, format_weight: float = 0.5
) -> float:
    """The weighted sum of the parts."""
    return accuracy_weight * accuracy + format_weight * format
