"""Whole runs of a tiny model: files, resuming, repeating, compilations, every algorithm."""

import dataclasses
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
import tiny
from tiny import assert_equal, lines, params_of, untimed

from cpgd_jax import experience, metrics, run, train
from cpgd_jax.algorithms import ALGORITHMS
from cpgd_jax.rewards import Verifier

pytestmark = pytest.mark.usefixtures("one_device")
SCORE_BATCH = Verifier.score_batch
FOUR = dict(num_rollouts=4, checkpoint__every=2, eval__every=2)


@pytest.fixture(scope="module", autouse=True)
def one_verifier():
    """The runs of this module share their worker processes."""
    with Verifier(1, 5.0) as verifier:
        patch = pytest.MonkeyPatch()
        patch.setattr(train, "Verifier", lambda *_: verifier)
        patch.setattr(Verifier, "__exit__", lambda *_: None)
        yield
        patch.undo()


@pytest.fixture(scope="module")
def graded():
    """Rewards that a random policy can get: more for more tokens of a digit."""
    patch = pytest.MonkeyPatch()

    def score_batch(self, texts, golds, **weights):
        scores = SCORE_BATCH(self, texts, golds, **weights)
        shares = [sum(c.isdigit() for c in t) / 8 for t in texts]
        return [type(s)(**{**vars(s), "total": x}) for s, x in zip(scores, shares, strict=True)]

    patch.setattr(Verifier, "score_batch", score_batch)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def straight(tmp_path_factory, graded):
    """Four rollouts without interruption: (folder, summary, compilations after the first one)."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    compiled, advanced = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, *_, **__: (
            compiled.append(len(advanced))
            if event == "/jax/core/compile/backend_compile_duration"
            else None
        )
    )
    patch = pytest.MonkeyPatch()
    collect = experience.collect

    def counted(*args):
        advanced.append(1)
        return collect(*args)

    patch.setattr(experience, "collect", counted)
    tiny.use_one_device(patch)
    config = tiny.config(**FOUR, log__tensorboard=True)
    summary = train.train(config, str(folder))
    patch.undo()
    jax.monitoring.clear_event_listeners()
    return folder, summary, [n for n in compiled if n > 1], sum(n == 1 for n in compiled)


def test_nothing_is_compiled_after_the_first_rollout(straight):
    """Nor by the evaluations during and after the run."""
    assert straight[3] > 0
    assert straight[2] == []


def test_the_files_of_a_run(straight):
    folder, summary, *_ = straight
    for name in ("config.json", "summary.json", "report.html", "rollouts.jsonl", "tokenizer"):
        assert (folder / name).exists(), name
    assert list((folder / "tensorboard").glob("events*"))
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["4", "8"]
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert summary["steps"] == 8 and summary["seconds"] > 0
    assert set(summary["held_out"]) == {"before", "after"}
    assert "<svg" in (folder / "report.html").read_text()


def test_metrics_are_complete(straight):
    rows = lines(straight[0])
    steps = [row for row in rows if "kind" not in row]
    assert [row["step"] for row in steps] == list(range(1, 9))
    assert [row["rollout"] for row in steps] == [0, 0, 1, 1, 2, 2, 3, 3]
    for row in steps:
        assert not set(metrics.REQUIRED_METRICS) - set(row)
        assert all(v is not None for v in row.values())
    kinds = [(row["kind"], row["rollout"], row["step"]) for row in rows if "kind" in row]
    assert kinds == [("before", 0, 0), ("during", 1, 4), ("after", 4, 8)]


def test_the_first_step_is_on_policy_and_the_second_is_not(straight):
    steps = [row for row in lines(straight[0]) if "kind" not in row]
    for first, second in zip(steps[::2], steps[1::2], strict=True):
        assert first["ratio/max"] == pytest.approx(1.0, abs=1e-4)
        assert abs(first["kl/old"]) < 1e-7
        assert second["ratio/max"] > 1.001 and second["kl/old"] > 1e-7


def test_the_learning_rate_counts_optimiser_steps(straight):
    rates = [row["lr"] for row in lines(straight[0]) if "kind" not in row]
    cosine = [1e-3 * (0.1 + 0.9 * (1 + np.cos(np.pi * i / 8)) / 2) for i in range(8)]
    assert rates == pytest.approx(cosine, rel=1e-4)


def test_the_sampler_agrees_with_the_trainer(straight):
    steps = [row for row in lines(straight[0]) if "kind" not in row]
    assert max(row["rollout/logp_gap_max"] for row in steps) < 1e-4


def test_rollouts_are_written(straight):
    rows = lines(straight[0], "rollouts.jsonl")
    wanted = {"prompt", "response", "gold", "accuracy", "format", "reward", "truncated"}
    assert {row["kind"] for row in rows} == {"before", "train", "after"}
    for row in rows:
        assert wanted <= set(row)
        assert "advantage" in row or row["kind"] != "train"
    assert sum(row["kind"] == "train" for row in rows) == 16


def test_a_finished_run_is_left_alone(straight, capsys):
    folder, summary, *_ = straight
    capsys.readouterr()
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*.jsonl")}
    html = (folder / "report.html").read_bytes()
    assert train.train(tiny.config(**FOUR, log__tensorboard=True), str(folder)) == summary
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == summary
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*.jsonl")} == before
    assert (folder / "report.html").read_bytes() == html
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["4", "8"]


KILLED = """
import os, signal, sys, time
sys.path[:0] = [{tests!r}, {root!r}]
import conftest, pytest, tiny, test_train
from cpgd_jax import checkpoint, experience, train
from cpgd_jax.rewards import Verifier
next(test_train.graded.__wrapped__())
collect = experience.collect

def counted(*args):
    if args[5] == 3:
        newest = os.path.join({folder!r}, "checkpoints", "4")
        while not os.path.exists(newest):  # it is written in the background
            time.sleep(0.1)
        # Of the third rollout's checkpoint, as much as a kill in the midst of writing leaves.
        folder = os.path.join({folder!r}, "checkpoints", "6.orbax-checkpoint-tmp")
        os.makedirs(os.path.join(folder, "params"))
        with open(os.path.join({folder!r}, "metrics.jsonl"), "a") as file:
            file.write('{{"rollout": 3, "st')
        os.kill(os.getpid(), signal.SIGKILL)
    return collect(*args)

experience.collect = counted
tiny.use_one_device(pytest.MonkeyPatch())
train.train(tiny.config(**test_train.FOUR), {folder!r})
"""


def test_killed_and_resumed_equals_straight_bit_for_bit(straight, tmp_path, repo):
    """Killed in the fourth rollout, with a half-written checkpoint and a torn line."""
    folder = tmp_path / "run"
    script = KILLED.format(tests=str(repo / "tests"), root=str(repo), folder=str(folder))
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=repo, env=os.environ, capture_output=True, timeout=300
    )
    assert done.returncode == -9, done.stderr.decode()
    assert (folder / "checkpoints" / "4").exists() and not (folder / "summary.json").exists()
    assert len(lines_that_parse(folder)) > 6  # two steps past the checkpoint, to be done again
    summary = train.train(tiny.config(**FOUR), str(folder))
    assert untimed(folder) == untimed(straight[0])
    assert lines(folder, "rollouts.jsonl") == lines(straight[0], "rollouts.jsonl")
    assert_equal(params_of(folder), params_of(straight[0]))
    assert summary["held_out"] == straight[1]["held_out"] and summary["steps"] == 8
    assert sorted(p.name for p in (folder / "checkpoints").iterdir()) == ["4", "8"]


def lines_that_parse(folder):
    return [x for x in (folder / "metrics.jsonl").read_text().splitlines() if x.endswith("}")]


def test_another_seed_differs_and_the_model_of_a_run_starts_another(straight, tmp_path):
    changes = dict(num_rollouts=1, model__init_from=str(straight[0]))
    train.train(tiny.config(**changes, optim__lr=1e-12), str(tmp_path / "a"))
    for x, y in zip(params_of(tmp_path / "a"), params_of(straight[0]), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-9)
    train.train(tiny.config(num_rollouts=1, seed=1), str(tmp_path / "b"))
    first = [row for row in untimed(straight[0]) if "kind" not in row][0]
    other = [row for row in untimed(tmp_path / "b") if "kind" not in row][0]
    assert first["grad_norm"] != other["grad_norm"]
    pairs = zip(params_of(tmp_path / "b"), params_of(straight[0]), strict=True)
    assert any((x != y).any() for x, y in pairs)


def test_init_from_another_shape_is_one_line(straight, tmp_path):
    changes = dict(model__init_from=str(straight[0]), model__mlp_size=32, model__rope_theta=5.0)
    with pytest.raises(run.UserError) as error:
        train.train(tiny.config(**changes), str(tmp_path / "run"))
    assert "mlp_size 32 is 64 there" in str(error.value)
    assert "rope_theta 5.0 is 10000.0 there" in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_trains(name, tmp_path, graded):
    config = tiny.config(algorithm=name, num_rollouts=1)
    summary = train.train(config, str(tmp_path))
    assert summary["steps"] == 2
    for row in lines(tmp_path):
        assert all(v is not None for v in row.values())
    steps = [row for row in lines(tmp_path) if "kind" not in row]
    assert not set(metrics.REQUIRED_METRICS) - set(steps[0])
    assert steps[0]["grad_norm"] > 1e-3
    uses_drift = ALGORITHMS[name].drift_coef > 0
    assert (steps[1]["loss/drift"] > 0) == uses_drift


def test_without_any_signal_the_run_says_so(tmp_path, capsys, monkeypatch):
    """Rewards are all 0, and responses are all cut off, since no stop can be sampled."""
    own = run.initial.tokenizer(tiny.config())
    endless = dataclasses.replace(own, forbidden_ids=own.stop_ids)
    monkeypatch.setattr(run.initial, "tokenizer", lambda config: endless)
    monkeypatch.setattr(Verifier, "score_batch", SCORE_BATCH)
    train.train(tiny.config(num_rollouts=1), str(tmp_path))
    said = capsys.readouterr().err
    assert "every group has equal rewards: no signal" in said
    assert "every response is truncated" in said


def test_one_step_a_rollout_is_warned_about(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train, "run_loop", lambda *_: {})
    train.train(tiny.config(train__minibatch_size=16), str(tmp_path))
    assert "clip and drift are dead code" in capsys.readouterr().err
