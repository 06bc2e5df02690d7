"""What the study consists of: batches of trials, each of one algorithm, task and pressure."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping

from cpgd_jax.algorithms import ALGORITHMS, Algorithm, resolve
from cpgd_jax.stability.trial import Pressure

# (label, row, cells replaced, pressure replaced); the components are rows of the main comparison
ABLATIONS = (
    ("weight std (paper)", "cpgd", {}, {}),
    ("weight equal", "cpgd", {"weight": "equal"}, {}),
    ("weight clip_filter", "cpgd", {"weight": "clip_filter"}, {}),
    ("raw rewards", "cpgd", {"baseline": "none", "weight": "equal"}, {}),
    ("reference constraint 0.05", "cpgd", {"kl_coef": 0.05}, {}),
    ("ε 0.05", "cpgd", {"clip_eps_low": 0.05, "clip_eps_high": 0.05}, {}),
    ("ε 0.5", "cpgd", {"clip_eps_low": 0.5, "clip_eps_high": 0.5}, {}),
    ("α 0.1", "cpgd", {"drift_coef": 0.1}, {}),
    ("α 1", "cpgd", {"drift_coef": 1.0}, {}),
    ("α 0.1, c 0.5", "cpgd", {"drift_coef": 0.1, "drift_cap": 0.5}, {}),
    ("α 0.1, c 10", "cpgd", {"drift_coef": 0.1, "drift_cap": 10.0}, {}),
    ("schedule λ 0", "cpgd", {"clip_schedule": 0.0}, {}),
    ("schedule λ 0.5", "cpgd", {"clip_schedule": 0.5}, {}),
    ("2 epochs", "cpgd", {}, {"epochs": 2}),
    ("4 epochs", "cpgd", {}, {"epochs": 4}),
)
STALE = ("cpgd", "pgd", "pg", "cpg", "grpo", "grpo_no_clip", "grpo_dual_clip", "rloo")
STALE_LAG = 3  # rollouts


@dataclasses.dataclass(frozen=True)
class Scale:
    """How much of it is run."""

    name: str
    rates: Mapping[str, tuple[float, ...]]  # of each task; the last but one is the common rate
    seeds: int
    pressure: Pressure
    ablations: bool

    def common_rate(self, task: str) -> float:
        """At which all algorithms are compared as well, and CPGD's ablations are run."""
        return self.rates[task][-2]


# The third is twice the one that was best for most algorithms in a pilot of one and two seeds
RATES = {"chain": (2.5e-4, 5e-4, 1e-3, 2e-3), "sums": (5e-4, 1e-3, 2e-3, 4e-3)}
FULL = Scale("full", RATES, 5, Pressure(rollouts=100), True)
FAST = Scale("fast", {"sums": RATES["sums"][1:]}, 2, Pressure(rollouts=60), False)
SCALES = {scale.name: scale for scale in (FULL, FAST)}


@dataclasses.dataclass(frozen=True)
class Batch:
    """Trials that share a program: every rate with every seed."""

    part: str  # main, stale or ablation
    label: str
    row: Algorithm
    pressure: Pressure
    task: str
    rates: tuple[float, ...]
    seeds: tuple[int, ...]

    def describe(self) -> dict:
        """All that the curves follow from, as JSON holds it."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    @property
    def name(self) -> str:
        """Of its file."""
        digest = hashlib.blake2b(json.dumps(self.describe()).encode(), digest_size=4).hexdigest()
        return f"{self.part}_{self.task}_{self.row.name}_{digest}"


def batches(scale: Scale) -> list[Batch]:
    """The main comparison first."""
    seeds = tuple(range(scale.seeds))
    found = [
        Batch("main", name, row, scale.pressure, task, rates, seeds)
        for task, rates in scale.rates.items()
        for name, row in ALGORITHMS.items()
    ]
    if not scale.ablations:
        return found
    for label, name, cells, pressure in ABLATIONS:
        hard, row = dataclasses.replace(scale.pressure, **pressure), resolve(name, **cells)
        found += [
            Batch("ablation", label, row, hard, task, (scale.common_rate(task),), seeds)
            for task in scale.rates
        ]
    stale, task = dataclasses.replace(scale.pressure, lag=STALE_LAG), next(iter(scale.rates))
    found += [
        Batch("stale", name, ALGORITHMS[name], stale, task, scale.rates[task][:-1], seeds)
        for name in STALE
    ]
    return found
