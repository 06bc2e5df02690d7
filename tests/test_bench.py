import json
import subprocess
import sys

import pytest


def test_loss_prints_one_json_line(repo):
    small = ["--batch=16", "--length=32", "--repeats=2", "--algorithm=grpo"]
    command = [sys.executable, "-m", "experiments.bench", "loss", *small]
    out = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=True).stdout
    (line,) = out.splitlines()
    row = json.loads(line)
    assert row["name"] == "loss/grpo" and row["seconds"] > 0 and row["shape"] == [16, 32]
    assert row["ratio"]["masked_mean_exp"] > 0 and row["ratio_with_metrics"]["masked_mean_exp"] > 0


def test_an_unknown_benchmark_is_refused(repo):
    command = [sys.executable, "-m", "experiments.bench", "los"]
    done = subprocess.run(command, cwd=repo, capture_output=True, text=True)
    assert done.returncode and "name one of loss, reward" in done.stdout + done.stderr


@pytest.mark.slow
def test_reward_prints_one_json_line(repo):
    command = [sys.executable, "-m", "experiments.bench", "reward"]
    out = subprocess.run(command, cwd=repo, capture_output=True, text=True, check=True).stdout
    row = json.loads(out)
    assert row["answers_per_s"] > 0 and row["timeouts"] >= 51  # more on a busy machine
    assert row["ratio"]["bound_with_5_percent_hanging"] > 0
