"""The supervised stage: it learns the demonstrations, resumes, and is a normal run."""

import shutil

import numpy as np
import pytest
import tiny
from tiny import assert_equal, lines, params_of, untimed

from cpgd_jax import metrics, supervised

pytestmark = pytest.mark.usefixtures("one_device")


def test_the_supervised_stage_learns_and_resumes(tmp_path, capsys):
    changes = dict(stage="supervised", rollout__max_response_len=16, optim__lr=1e-2)
    changes |= dict(supervised__steps=20, checkpoint__every=10)
    summary = supervised.train(tiny.config(**changes), str(tmp_path / "a"))
    rows = [row for row in lines(tmp_path / "a") if "kind" not in row]
    assert [row["step"] for row in rows] == list(range(1, 21))
    for row in rows:
        assert not set(metrics.REQUIRED_SUPERVISED) - set(row)
    assert rows[0]["loss/nll"] == pytest.approx(np.log(57), rel=0.05)  # nothing is known yet
    assert rows[-1]["loss/nll"] < 0.6 * rows[0]["loss/nll"]
    assert [row["kind"] for row in lines(tmp_path / "a") if "kind" in row] == ["before", "after"]
    assert summary["steps"] == 20

    shutil.copytree(tmp_path / "a", tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "checkpoints" / "20")
    (tmp_path / "b" / "summary.json").unlink()
    again = supervised.train(tiny.config(**changes), str(tmp_path / "b"))
    assert untimed(tmp_path / "b") == untimed(tmp_path / "a")
    assert_equal(params_of(tmp_path / "b"), params_of(tmp_path / "a"))
    assert again["held_out"] == summary["held_out"]

    capsys.readouterr()
    assert supervised.train(tiny.config(**changes), str(tmp_path / "a")) == summary


def test_a_stage_killed_before_its_first_checkpoint_begins_anew(tmp_path):
    changes = dict(stage="supervised", rollout__max_response_len=16, supervised__steps=2)
    config = tiny.config(**changes)
    supervised.train(config, str(tmp_path))
    first = untimed(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "summary.json").unlink()
    supervised.train(config, str(tmp_path))
    assert untimed(tmp_path) == first
