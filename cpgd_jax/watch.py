"""Tells of a collapse: means over several rollouts that have gone where nothing is learned.

Each is compared with the run's own first rollouts, or with a bound that no healthy run reaches.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cpgd_jax.config import Watch as Settings

LENGTH, ENTROPY = "response/length_mean", "entropy"
TRUNCATED, NO_SIGNAL = "response/truncated_frac", "group/zero_std_frac"
FORMAT, ACCURACY = "reward/format", "reward/accuracy"
METRICS = (LENGTH, ENTROPY, TRUNCATED, NO_SIGNAL, FORMAT, ACCURACY)
# Format is farmed when its share has risen by so much, and that of right answers by no more than
FORMAT_GAIN, ACCURACY_GAIN = 0.2, 0.01


class Finding(NamedTuple):
    name: str
    metric: str  # whose curve shows it
    step: int  # optimiser step at which it was told
    rollout: int  # the first of those whose mean it is
    sentence: str


class Watch:
    """Looks at each rollout. `state` is what a resumed run goes on from; it is JSON."""

    def __init__(self, settings: Settings):
        self.state = {"first": [], "recent": [], "told": []}
        self._settings = settings

    def look(self, row: dict) -> list[Finding]:
        """What has begun with this rollout, whose last row of metrics is given."""
        numbers = {k: row.get(k) for k in METRICS} | {"rollout": row["rollout"]}
        window, told = self._settings.window, self.state["told"]
        first = [*self.state["first"], numbers][:window]
        recent = [*self.state["recent"], numbers][-window:]
        found = []
        if len(recent) == window:
            found = list(_rules(_means(first), _means(recent), self._settings))
        self.state = {"first": first, "recent": recent, "told": [name for name, *_ in found]}
        return [
            Finding(name, metric, row["step"], recent[0]["rollout"], sentence)
            for name, metric, sentence in found
            if name not in told
        ]


def replay(rows: Iterable[dict], settings: Settings) -> list[Finding]:
    """Everything that a run was told, from its rows of metrics."""
    watch, found, last = Watch(settings), [], None
    for row in (*rows, {"rollout": None}):
        if "kind" in row:
            continue
        if last and row.get("rollout") != last["rollout"]:
            found += watch.look(last)
        last = row if isinstance(row.get("rollout"), int) and "step" in row else None
    return found


def _rules(first: dict, now: dict, s: Settings) -> Iterator[tuple[str, str, str]]:
    """(name, metric, sentence) of what holds. A comparison with NaN, an unknown mean, does not."""
    if now[LENGTH] < s.length_frac * first[LENGTH]:
        told = f"responses of {now[LENGTH]:.1f} tokens, {first[LENGTH]:.1f} at first"
        yield "length collapse", LENGTH, told
    if now[ENTROPY] < s.entropy_frac * first[ENTROPY]:
        told = f"entropy of {now[ENTROPY]:.2g} nats a token, {first[ENTROPY]:.2g} at first"
        yield "entropy collapse", ENTROPY, told
    if now[TRUNCATED] > s.truncated_frac:
        yield "all truncated", TRUNCATED, f"{now[TRUNCATED]:.1%} of the responses are cut off"
    if now[NO_SIGNAL] > s.no_signal_frac:
        told = f"{now[NO_SIGNAL]:.1%} of the groups have equal rewards"
        yield "no signal", NO_SIGNAL, f"{told} (accuracy {now[ACCURACY]:.1%})"
    gained = now[FORMAT] - first[FORMAT]
    if gained >= FORMAT_GAIN and now[ACCURACY] - first[ACCURACY] <= ACCURACY_GAIN:
        told = f"format {first[FORMAT]:.1%} -> {now[FORMAT]:.1%}, accuracy"
        told += f" {first[ACCURACY]:.1%} -> {now[ACCURACY]:.1%}"
        yield "format without accuracy", FORMAT, told


def _means(rows: list[dict]) -> dict:
    return {name: _mean([row[name] for row in rows]) for name in METRICS}


def _mean(values: list) -> float:
    """Of those that are finite numbers; NaN if there is none."""
    known = [x for x in values if isinstance(x, int | float) and math.isfinite(x)]
    return sum(known) / len(known) if known else math.nan
