"""Overall as the CPGD paper defines it (arXiv 2505.12504), and the rows of its tables."""

from collections.abc import Mapping

from cpgd_jax.errors import UserError, nearest

NAMES = ("mathvista", "mathverse", "mathvision", "olympiadbench", "wemath", "mmk12")

# model -> its scores in percent in the order of NAMES, and Overall as printed
PAPER = {
    "GPT-4o": ((63.8, 50.2, 30.4, 35.0, 68.8, 49.9), 1.16),
    "o1": ((73.9, 57.0, 60.3, 68.0, 98.7, 73.9), 1.83),
    "InternVL2.5-8B": ((64.4, 39.5, 19.7, 12.3, 53.5, 45.6), 0.81),
    "Qwen2.5-VL-7B": ((68.2, 47.9, 25.4, 20.2, 62.1, 53.6), 1.00),
    "InternVL2.5-MPO-8B": ((68.9, 35.5, 21.5, 7.8, 53.5, 34.5), 0.75),
    "R1-Onevision": ((64.1, 47.1, 23.5, 17.3, 61.8, 39.8), 0.91),
    "OpenVLThinker": ((70.2, 47.9, 25.3, 20.1, 64.3, 60.6), 1.03),
    "MM-Eureka": ((73.0, 50.3, 26.9, 20.1, 66.1, 64.5), 1.07),
    "RLOO": ((68.6, 48.3, 23.0, 19.5, 65.8, 61.3), 1.01),
    "REINFORCE++": ((63.9, 45.5, 18.2, 17.8, 66.7, 64.3), 0.96),
    "GRPO": ((70.3, 51.4, 25.9, 18.5, 67.4, 65.1), 1.06),
    "CPGD clip-filter": ((73.4, 51.4, 25.9, 21.5, 70.2, 67.3), 1.10),
    "CPGD std": ((74.0, 50.6, 28.3, 21.4, 68.3, 65.3), 1.11),
    "PG": ((67.8, 42.0, 22.5, 8.0, 58.6, 65.9), 0.89),
    "PGD": ((64.2, 41.1, 20.8, 7.5, 58.3, 67.3), 0.86),
    "CPG": ((72.7, 52.3, 27.6, 20.8, 70.7, 66.2), 1.11),
    "raw rewards": ((69.1, 40.2, 21.8, 3.5, 59.7, 67.2), 0.85),
    "equal weight": ((73.1, 51.1, 27.2, 20.8, 67.9, 65.8), 1.09),
    "reference constraint": ((71.8, 50.0, 21.0, 21.2, 69.8, 65.8), 1.05),
}
BASELINE = "Qwen2.5-VL-7B"


def overall(scores: Mapping[str, float], baseline: Mapping[str, float]) -> float:
    """The mean over the benchmarks in `scores` of score / baseline's score, not rounded.

    Both map a benchmark's name to a score, in the same unit. UserError: nothing to compare, or a
    baseline without one of the benchmarks or with a score that is not positive.
    """
    if not scores:
        raise UserError("no benchmark has a score: name at least one")
    for name in scores:
        if not baseline.get(name, 0) > 0:
            raise UserError(f"the baseline has no score above 0 for {name!r}: give one that has")
    return sum(score / baseline[name] for name, score in scores.items()) / len(scores)


def row(model: str) -> dict[str, float]:
    """The scores of a model in the paper, by benchmark. UserError: there is none of that name."""
    by_lower = {name.lower(): name for name in PAPER}
    if model.lower() not in by_lower:
        raise UserError(
            f"the paper has no row {model!r}{nearest(model, PAPER)}: give one of {', '.join(PAPER)}"
        )
    return dict(zip(NAMES, PAPER[by_lower[model.lower()]][0], strict=True))
