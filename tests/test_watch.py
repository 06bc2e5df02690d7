"""Each kind of collapse is named once when it begins, and a healthy run is left in peace."""

import json

import numpy as np
import pytest
import tiny

from cpgd_jax import watch
from cpgd_jax.watch import ACCURACY, ENTROPY, FORMAT, LENGTH, NO_SIGNAL, TRUNCATED, Watch

SETTINGS = tiny.config(watch__window=5).watch
N = 40  # rollouts


def rows(**curves):
    """Rows of a run that learns, with some curves replaced; two optimiser steps a rollout."""
    t = np.linspace(0, 1, N)
    healthy = {
        LENGTH: 100 - 40 * t,
        ENTROPY: 1.0 - 0.8 * t,
        TRUNCATED: 0.3 - 0.3 * t,
        NO_SIGNAL: 0.5 + 0.3 * t,
        FORMAT: 0.4 + 0.6 * t,
        ACCURACY: 0.3 + 0.5 * t,
    }
    curves = {k: np.broadcast_to(v, N) for k, v in (healthy | curves).items()}
    return [
        {"rollout": r, "step": 2 * (r + 1)} | {k: float(v[r]) for k, v in curves.items()}
        for r in range(N)
    ]


def found(**curves):
    return watch.replay(rows(**curves), SETTINGS)


def falling(start, end):
    return np.where(np.arange(N) < 20, start, end)


def test_a_run_that_learns_is_left_in_peace():
    assert found() == []


@pytest.mark.parametrize(
    ("name", "curves", "words"),
    [
        ("length collapse", {LENGTH: falling(100, 5)}, "5.0 tokens, 100.0 at first"),
        ("entropy collapse", {ENTROPY: falling(1, 0.001)}, "0.001 nats a token, 1 at first"),
        ("all truncated", {TRUNCATED: falling(0.2, 1)}, "100.0% of the responses"),
        ("no signal", {NO_SIGNAL: falling(0.5, 1)}, "equal rewards (accuracy"),
        ("format without accuracy", {FORMAT: falling(0.2, 1), ACCURACY: 0.1}, "20.0% -> "),
    ],
)
def test_each_collapse_is_told_once_with_its_step(name, curves, words):
    (one,) = found(**curves)
    assert one.name == name and words in one.sentence and one.metric in curves
    assert 20 < one.step / 2 <= 25 and one.rollout == one.step // 2 - SETTINGS.window


def test_it_is_told_again_after_it_has_passed():
    wave = np.where(np.arange(N) // 10 % 2 == 1, 1.0, 0.2)
    assert [f.step for f in found(**{TRUNCATED: wave})] == [30, 70]


def test_a_single_bad_rollout_is_no_collapse():
    assert found(**{TRUNCATED: np.where(np.arange(N) == 20, 1.0, 0.2)}) == []


def test_numbers_that_are_missing_or_not_finite_tell_nothing():
    assert found(**dict.fromkeys(watch.METRICS, np.nan)) == []
    assert watch.replay([{"rollout": r, "step": r} for r in range(N)], SETTINGS) == []
    assert watch.replay([{"kind": "before"}, {"x": 1}], SETTINGS) == []


def test_a_resumed_run_is_told_the_same():
    told, state = [], None
    for row in rows(**{LENGTH: falling(100, 5), ENTROPY: np.nan}):
        one = Watch(SETTINGS)
        one.state = json.loads(json.dumps(state or one.state))
        told += one.look(row)
        state = one.state
    assert told == found(**{LENGTH: falling(100, 5)}) and len(told) == 1
