"""A run goes on from any optimiser step, and goes back when learning has collapsed."""

from types import SimpleNamespace

import numpy as np
import pytest
import tiny
from tiny import assert_equal, lines, params_of, untimed

from cpgd_jax import loop, train
from cpgd_jax.errors import UserError
from cpgd_jax.rewards import Verifier
from cpgd_jax.watch import Finding, Watch

pytestmark = pytest.mark.usefixtures("one_device", "graded")
SCORE_BATCH = Verifier.score_batch
# Two rollouts, each of two epochs of two steps.
SHORT = dict(num_rollouts=2, eval__every=1, checkpoint__every=5, train__epochs=2)
LONG = dict(num_rollouts=6, checkpoint__every=2, checkpoint__keep=3)


@pytest.fixture(scope="module", autouse=True)
def one_verifier():
    with Verifier(1, 5.0) as verifier:
        patch = pytest.MonkeyPatch()
        patch.setattr(train, "Verifier", lambda *_: verifier)
        patch.setattr(Verifier, "__exit__", lambda *_: None)
        yield
        patch.undo()


@pytest.fixture
def graded(monkeypatch):
    """Rewards that a random policy can get: more for more digits."""

    def score_batch(self, texts, golds, **weights):
        scores = SCORE_BATCH(self, texts, golds, **weights)
        shares = [sum(c.isdigit() for c in t) / 8 for t in texts]
        return [type(s)(**{**vars(s), "total": x}) for s, x in zip(scores, shares, strict=True)]

    monkeypatch.setattr(Verifier, "score_batch", score_batch)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    graded.__wrapped__(patch)
    tiny.use_one_device(patch)
    folder = tmp_path_factory.mktemp("straight") / "run"
    train.train(tiny.config(**SHORT), str(folder))
    patch.undo()
    return folder


class Ended(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("steps", [1, 3, 4, 6])
def test_saved_at_any_step_it_goes_on_bit_for_bit(straight, tmp_path, monkeypatch, steps):
    """In an epoch, in the second one with its own weights, and after a rollout's last step, before
    the evaluation that is due."""
    step = loop._Loop._step

    def one(self, index, k):
        row = step(self, index, k)
        if self.steps == steps:
            assert self._leave() == f"saved after {steps} optimiser steps"
            raise Ended
        return row

    monkeypatch.setattr(loop._Loop, "_step", one)
    folder = tmp_path / "run"
    with pytest.raises(Ended):
        train.train(tiny.config(**SHORT), str(folder))
    monkeypatch.setattr(loop._Loop, "_step", step)
    with open(folder / "metrics.jsonl", "a") as file:  # of a step that the state does not include
        file.write('{"rollout": 1, "step": 7}\n{"rollout": 0, "step": 4, "kind": "duri')
    train.train(tiny.config(**SHORT), str(folder))
    assert untimed(folder) == untimed(straight)
    assert lines(folder, "rollouts.jsonl") == lines(straight, "rollouts.jsonl")
    assert_equal(params_of(folder), params_of(straight))


def collapse_at(monkeypatch, *rollouts):
    """The watch finds a collapse that began in the rollout before, each time once."""
    left = list(rollouts)

    def look(self, row):
        if row["rollout"] not in left:
            return []
        left.remove(row["rollout"])
        found = "length collapse", "response/length_mean", row["step"], row["rollout"] - 1, "short"
        return [Finding(*found)]

    monkeypatch.setattr(Watch, "look", look)


@pytest.mark.slow
def test_rolled_back_to_before_the_collapse(tmp_path, monkeypatch, capsys):
    """Found in the fifth rollout (index 4), begun in the fourth: back to after the second."""
    collapse_at(monkeypatch, 4)
    positions, collect = [], train.experience.collect
    monkeypatch.setattr(
        train.experience, "collect", lambda *args: positions.append(args[5:]) or collect(*args)
    )
    summary = train.train(tiny.config(**LONG, watch__action="rollback"), str(tmp_path))
    assert summary["steps"] == 12
    assert [index for index, _ in positions] == [0, 1, 2, 3, 4, 2, 3, 4, 5]
    assert [position for _, position in positions] == list(range(0, 36, 4))  # no prompt twice
    rows = [row for row in lines(tmp_path) if row.get("kind") not in ("before", "after")]
    steps = [row["step"] for row in rows if "kind" not in row]
    assert steps == list(range(1, 13))
    (told,) = [row for row in rows if row.get("kind") == "rollback"]
    assert told["told"] == "rolled back from step 10 to 4: length collapse, short"
    assert "length collapse: short" in capsys.readouterr().err
    assert told["told"] in (tmp_path / "report.html").read_text()
    assert [p.name for p in (tmp_path / "rolled_back_checkpoints").iterdir()] == ["8"]
    assert (tmp_path / "metrics.before_rollback_10.jsonl").exists()
    assert all(np.isfinite(x).all() for x in params_of(tmp_path))


def test_it_stops_where_that_is_asked_for_or_rolling_back_does_not_help(tmp_path, monkeypatch):
    collapse_at(monkeypatch, 4)
    with pytest.raises(UserError, match="step 10: stopped by config.watch: length collapse, short"):
        train.train(tiny.config(**LONG, watch__action="stop"), str(tmp_path / "stop"))
    collapse_at(monkeypatch, 3, 3)
    changes = dict(LONG, watch__action="rollback", watch__max_rollbacks=1)
    with pytest.raises(UserError, match="step 8: stopped after 1 rollbacks"):
        train.train(tiny.config(**changes), str(tmp_path / "again"))
    collapse_at(monkeypatch, 1)
    with pytest.raises(UserError, match="no checkpoint from before it is kept"):
        train.train(tiny.config(**changes), str(tmp_path / "early"))


def test_the_best_checkpoint_is_kept(tmp_path, monkeypatch):
    accuracies = iter([0.1, 0.5, 0.3, 0.2, 0.4, 0.4, 0.1])  # before, during five times, after
    held_out = loop.evaluate.held_out

    def measured(*args):
        found, rows = held_out(*args)
        return found | {"eval/mean_accuracy": next(accuracies)}, rows

    monkeypatch.setattr(loop.evaluate, "held_out", measured)
    changes = dict(num_rollouts=6, eval__every=1, checkpoint__every=2, checkpoint__keep=1)
    train.train(tiny.config(**changes), str(tmp_path))
    assert sorted(int(p.name) for p in (tmp_path / "checkpoints").iterdir()) == [2, 12]


def test_a_checkpoint_of_another_version_is_one_line(tmp_path):
    held = SimpleNamespace(restore=lambda *_: ("state", {"done": 3}))
    run = SimpleNamespace(workdir=tmp_path)
    begun = SimpleNamespace(checkpoints=held, state=None, run=run)
    with pytest.raises(UserError, match=r"not written by this version \(KeyError\('here'\)\)"):
        loop._Loop._restore(begun)
