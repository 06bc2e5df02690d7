"""What is written is valid JSON, survives a kill, and warns; the display stays short in a log."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from cpgd_jax import jsonl, metrics, progress
from cpgd_jax.errors import UserError


def lines(path):
    """Strict: a NaN literal or a bad line fails."""

    def refuse(name):
        raise AssertionError(name)

    return [json.loads(x, parse_constant=refuse) for x in path.read_text("utf-8").splitlines()]


def writer(tmp_path, kept=None):
    return metrics.MetricsWriter(tmp_path, tensorboard=False, kept=kept)


def before(rollout):
    return lambda row: row["rollout"] < rollout


def test_every_line_is_valid_json_whatever_the_values(tmp_path, capsys):
    row = {
        "step": np.int32(3),
        "lr": np.float32(0.5),
        "loss/policy": float("nan"),
        "grad_norm": jnp.float32(np.inf),
        "entropy": jnp.bfloat16(1.5),
        "parts": {"x": [1.0, -np.inf]},
        "kl/old": None,
    }
    with writer(tmp_path) as w:
        w.write(row)
    (got,) = lines(tmp_path / "metrics.jsonl")
    assert got == {
        "step": 3,
        "lr": 0.5,
        "loss/policy": None,
        "grad_norm": None,
        "entropy": 1.5,
        "parts": {"x": [1.0, None]},
    }
    err = capsys.readouterr().err
    assert "step 3: loss/policy is nan" in err and "step 3: grad_norm is inf" in err


def test_a_line_is_on_disk_before_the_next_is_written(tmp_path):
    with writer(tmp_path) as w:
        w.write({"step": 1})
        assert lines(tmp_path / "metrics.jsonl") == [{"step": 1}]


@pytest.mark.parametrize("text", ["a\nb", "\u2028", "\x00\x1b[31m", "\ud800", "三分之一", '"\\'])
def test_any_model_text_keeps_to_its_line(tmp_path, text):
    with writer(tmp_path) as w:
        w.write_rollouts([{"rollout": 0, "response": text}, {"rollout": 0, "response": "next"}])
    rows = list(jsonl.read_lines(tmp_path / "rollouts.jsonl"))
    assert [r["response"] for r in rows] == [text, "next"]


def test_resume_drops_what_will_be_written_again_and_a_torn_line(tmp_path):
    with writer(tmp_path) as w:
        w.write({"step": 0, "rollout": -1, "eval/greedy_accuracy": 0.4})
        for step in range(8):
            w.write({"step": step + 1, "rollout": step // 2})
        w.write_rollouts([{"rollout": r, "response": "é"} for r in range(4)])
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        with open(tmp_path / name, "ab") as file:
            file.write('{"rollout": 1, "x": "é'.encode()[:-1])  # killed inside a character
    with writer(tmp_path, before(2)) as w:
        w.write({"step": 5, "rollout": 2})
    assert [r["step"] for r in lines(tmp_path / "metrics.jsonl")] == [0, 1, 2, 3, 4, 5]
    assert [r["rollout"] for r in lines(tmp_path / "rollouts.jsonl")] == [0, 1]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.jsonl", "rollouts.jsonl"]


def test_without_resume_nothing_whole_is_lost(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\nnot json\n{"step": 2}')
    with writer(tmp_path) as w:
        w.write({"step": 3})
    rows = list(jsonl.read_lines(tmp_path / "metrics.jsonl"))
    assert [r["step"] for r in rows] == [1, 2, 3]
    assert "not json\n" in (tmp_path / "metrics.jsonl").read_text()


def test_a_kill_during_the_rewrite_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"rollout": 0}\n{"rollout": 1}\n')
    monkeypatch.setattr(jsonl.os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        jsonl.drop_lines(path, before(1))
    assert path.read_text() == '{"rollout": 0}\n{"rollout": 1}\n'


def test_a_workdir_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write in"):
        writer(tmp_path / "file")


def test_tensorboard_shows_the_resumed_run_once(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for first, value in ((0, 1.0), (2, 2.0)):
        with metrics.MetricsWriter(tmp_path, tensorboard=True, kept=before(first)) as w:
            for i in range(first, 4):
                w.write({"step": i + 1, "rollout": i, "lr": value, "kind": "train"})
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert events.Tags()["scalars"] == ["rollout", "lr"]
    got = [(e.step, e.value) for e in events.Scalars("lr")]
    assert got == [(1, 1.0), (2, 1.0), (3, 2.0), (4, 2.0)]


def test_alarms_are_loud_and_few(capsys):
    alarms = metrics.Alarms()
    for step in range(120):
        bad = {"response/truncated_frac": 1.0, "group/zero_std_frac": 1.0, "loss/policy": np.nan}
        alarms.check({"rollout": 7, "step": step, "entropy": np.nan, **bad})
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 6 and all(s.startswith("WARNING: rollout 7 step") for s in said)
    text = "\n".join(said)
    assert text.count("every response is truncated") == 1
    assert text.count("every group has equal rewards: no signal") == 1
    assert text.count("entropy is nan") == 1
    assert text.count("loss/policy is nan") == 3 and "10 times" in text and "100 times" in text


def test_healthy_rows_raise_no_alarm():
    row = dict.fromkeys(metrics.REQUIRED_METRICS, 0.0)
    assert metrics.alarms_of(row) == []


def test_plain_progress_is_one_line_every_few_seconds(capsys):
    now = [0.0]
    with progress.Progress(100, every_s=5, clock=lambda: now[0]) as p:
        for i in range(100):
            p.note("sampling")
            now[0] += 1
            p.update(i + 1, {"reward/accuracy": 0.5, "grad_norm": float("nan"), "odd": "text"})
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 21
    assert said[1] == "rollout 6/100  0:06, 1:34 left  accuracy 50.0%  grad norm nan"
    assert said[-1].startswith("rollout 100/100  1:40  ")


def test_time_left_leaves_out_the_compilation_and_earlier_processes():
    now = [0.0]
    p = progress.Progress(30, start=10, every_s=1e9, clock=lambda: now[0])
    assert p.seconds_left is None
    for seconds, done in ((60, 11), (1, 12), (1, 13)):
        now[0] += seconds
        p.update(done)
    assert p.seconds_left == pytest.approx(17)
    now[0] += 2
    assert p.seconds_left == pytest.approx(15)


def test_live_display_renders_what_is_watched():
    from rich.console import Console

    p = progress.Progress(10)
    p.update(3, {"reward/accuracy": 0.5, "ratio/max": 1.25, "grad_norm": None})
    p.note("evaluating")
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(p._render())
    text = console.export_text()
    for part in ("rollout", "3/10", "evaluating", "accuracy 50.0%", "ratio max 1.25", "norm null"):
        assert part in text, part


def test_table_prints_text_as_it_is(capsys):
    progress.table("Held-out", ["decoding", "accuracy"], [["[bold]greedy", 0.5], ["mean", 3]])
    out = capsys.readouterr().out
    assert "Held-out" in out and "[bold]greedy" in out and "0.500" in out


def test_importing_metrics_does_not_import_jax():
    code = "import sys, cpgd_jax.metrics, cpgd_jax.report; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
