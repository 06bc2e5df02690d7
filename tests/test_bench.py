"""Each benchmark at toy size: its row's fields; peers played by small scripts."""

import dataclasses
import json
import runpy
import subprocess
import sys

import numpy as np
import pytest
import tiny

from cpgd_jax.bench import (
    iteration,
    logprob,
    loss,
    peers,
    rollout,
    timing,
    train_step,
    trainer,
    workloads,
)
from cpgd_jax.errors import UserError
from cpgd_jax.models import ModelConfig
from cpgd_jax.ops import masked

TOY = ModelConfig(64, 1, 16, 32, 2, 1, 8)


def main(repo, *arguments):
    command = [sys.executable, "-m", "experiments.bench", *arguments]
    return subprocess.run(command, cwd=repo, capture_output=True, text=True)


def toy(name, **changes):
    changes = dict(prompts=2, samples=3, prompt_len=5, max_new_tokens=6, slots=None) | changes
    return dataclasses.replace(workloads.SAMPLING[name], **changes)


# ---- the command


def test_the_command_prints_one_json_line(repo):
    done = main(repo, "loss", "--batch=16", "--length=32", "--repeats=2", "--algorithm=grpo")
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["name"] == "loss/grpo"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["los"], "name one of loss, reward, rollout, logprob, train_step"),
        (["rollout", "--workload=short"], "choose one of fixed, ragged, long"),
    ],
)
def test_wrong_flags_end_in_one_line(repo, arguments, message):
    done = main(repo, *arguments)
    assert done.returncode == 2 and message in done.stderr and not done.stdout
    assert done.stderr.count("\n") == 1


# ---- rows


def test_loss():
    (row,) = loss.run("cpgd", 16, 32, repeats=2)
    assert row["name"] == "loss/cpgd" and row["seconds"] > 0 and row["shape"] == [16, 32]
    assert row["ratio"]["masked_mean_exp"] > 0 and row["ratio_with_metrics"]["masked_mean_exp"] > 0


@pytest.mark.slow
def test_reward(repo):
    row = json.loads(main(repo, "reward").stdout)
    assert row["answers_per_s"] > 0 and row["timeouts"] >= 51  # more on a busy machine
    assert row["ratio"]["bound_with_5_percent_hanging"] > 0


@pytest.mark.slow
def test_rollout_of_a_fixed_length():
    (row,) = rollout.run("rollout/fixed", toy("fixed"), TOY, 2, {"peer": lambda: 5.0})
    assert row["ratio"]["peer"] == pytest.approx(row["tokens_per_s"] / 5.0)
    assert row["peers_tokens_per_s"] == {"peer": 5.0}
    assert row["response_len_mean"] == 6.0
    assert row["prefill_group_over_one"] > 0 and row["prefill_seconds"] > 0
    assert row["matmul_seconds"] > 0 and "matmul_and_attention_share" in row


def test_rollout_of_ragged_lengths():
    work = toy("ragged", prompts=8, max_new_tokens=40, slots=6, stop_ids=tuple(range(8)))
    (row,) = rollout.run("rollout/ragged", work, TOY, 1, {})
    assert row["ratio"] == {} and "matmul_share" not in row
    assert 4 < row["response_len_mean"] < 14  # a stop token has probability 8/64


@pytest.mark.parametrize("attention", [False, True])
def test_products_of_the_decode_steps_neither_grow_nor_vanish(attention):
    tie_B1 = rollout.matmuls(toy("fixed"), TOY, attention)()
    assert tie_B1.shape == (6, 1)
    assert (np.abs(tie_B1) > 1e-3).all() and (np.abs(tie_B1) < 1e3).all()


@pytest.mark.slow
def test_logprob():
    memory, time = logprob.run(24, 1, "float32", vocab=500, width=8, full=64)
    assert memory["name"] == "logprob/memory" and memory["tokens"] == 64 and memory["bytes"] > 0
    assert time["name"] == "logprob/time" and time["tokens"] == 24 and time["seconds"] > 0
    assert memory["ratio"]["plain"] > 0 and time["ratio"]["plain"] > 0
    assert time["largest_difference"] < 1e-5


SMALL = dict(model__vocab_size=64, rollout__max_prompt_len=5, rollout__max_response_len=6)


@pytest.mark.parametrize(
    "name", ["shared", pytest.param("prefix", marks=pytest.mark.slow), "ragged"]
)
def test_train_step(one_device, name):
    work = dataclasses.replace(
        workloads.TRAINING[name], prompts=2, samples=4, prompt_len=5, max_response_len=6
    )
    config = tiny.config(**SMALL)
    (row,) = train_step.run(f"train_step/{name}", work, config, 2, {"peer": lambda: 5.0})
    assert row["ratio"]["peer"] == pytest.approx(row["tokens_per_s"] / 5.0)
    assert row["mfu"] > 0 and row["step_seconds"] > 0 and row["matmul_flops_per_s"] > 0
    assert set(row["ratio"]) == {"peer", *([work.beside] if work.beside else [])}


def test_padded_rows_give_the_same_step(one_device):
    config = tiny.config(**SMALL)
    work = workloads.Training(2, 4, 5, 6, mean_len=3)
    batch = workloads.batch(work, 64)
    losses = []
    for layout in ("pack", "padded"):
        one = trainer.Trainer(config)
        micro = one.run.pack(batch) if layout == "pack" else one.padded(batch)
        losses.append(masked.to_host(one.step(micro)))
    assert losses[0].keys() == losses[1].keys() and losses[0]["grad_norm"] > 0
    for name, value in losses[0].items():
        assert value == pytest.approx(losses[1][name], rel=1e-4, abs=1e-6), name


@pytest.mark.slow
def test_compile_time(one_device, monkeypatch):
    monkeypatch.setattr(train_step, "DEEP", 2)
    monkeypatch.setattr(train_step, "FLAT", 1)
    (row,) = train_step.compile_time(tiny.config(**SMALL), 1)
    assert row["name"] == "train_step/compile" and row["layers"] == 2
    assert set(row["ratio"]) == {"1_layers"}


def test_iteration(one_device):
    (row,) = iteration.run(tiny.config(**SMALL), 1, {"peer": lambda: 2.0})
    assert row["name"] == "iteration" and row["seconds"] > 0
    assert row["ratio"]["peer"] == pytest.approx(row["seconds"] / 2.0)


def test_workloads_are_those_of_the_peers(shared):
    there = runpy.run_path(str(shared / "bench" / "workloads.py"))
    fixed, ragged = workloads.SAMPLING["fixed"], workloads.SAMPLING["ragged"]
    assert (fixed.prompts, fixed.samples) == (there["PROMPTS"], there["SAMPLES"])
    assert (fixed.prompt_len, fixed.max_new_tokens) == (there["PROMPT_LEN"], there["NEW_TOKENS"])
    assert (ragged.prompts, ragged.max_new_tokens) == (
        there["RAGGED_PROMPTS"],
        there["RAGGED_CAP"],
    )
    assert (ragged.slots, ragged.stop_ids) == (there["RAGGED_BATCH"], there["STOP_IDS"])
    model, own = there["MODEL"], workloads.CONFIG
    assert own["model.hidden_size"] == model["hidden_size"]
    assert own["model.mlp_size"] == model["intermediate_size"]
    assert own["model.num_layers"] == model["num_hidden_layers"]
    assert own["model.vocab_size"] == model["vocab_size"]
    assert own["rollout.max_response_len"] == there["NEW_TOKENS"]


# ---- timing


def test_programs_take_turns():
    calls = []
    programs = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = timing.in_turn(programs, 2)
    assert calls == ["a", "b"] * 3 and {k: len(v) for k, v in seconds.items()} == {"a": 2, "b": 2}


def test_a_ratio_is_the_median_of_pairs():
    assert timing.ratio([1.0, 20.0, 3.0], [2.0, 10.0, 3.0]) == 1.0


# ---- peers

PRINTED = {
    "tunix_rollout.py": "first call s 9.1\ntunix rollout tokens 8192 tok/s 1024.0 times [8.0]",
    "tunix_ragged.py": "tunix ragged useful tokens 16000 tok/s 120.5 s 130.0",
    "tunix_train_step.py": "first s 30\ntunix train step s 25.0 tok/s 491.5 [25.0]",
    "hf_rollout.py": "hf rollout tokens 8192 tok/s 700.1 [1]\nhf train step s 30.1 tok/s 408.2 [1]",
    "trl_grpo.py": "{'loss': 0}\ntrl iteration s [40.0, 33.0, 32.0, 34.0] median of last 3 33.0",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in PRINTED.items():
        (tmp_path / name).write_text(f"print({text!r})")
    return tmp_path


@pytest.mark.parametrize(
    ("benchmark", "expected"),
    [
        ("rollout/fixed", {"tunix": 1024.0, "hf": 700.1}),
        ("rollout/ragged", {"tunix": 120.5}),
        ("train_step/shared", {"tunix": 491.5, "hf": 408.2}),
        ("iteration", {"trl": 33.0, "tunix": 8.0 + 25.0}),
    ],
)
def test_what_peers_print_is_read(folder, benchmark, expected):
    assert set(peers.SCRIPTS[benchmark]) == set(expected)
    pythons = dict.fromkeys(expected, sys.executable)
    programs = peers.programs(benchmark, list(expected), str(folder), pythons)
    assert {name: program() for name, program in programs.items()} == expected


def test_peers_and_ours_take_turns():
    own = iter([10.0, 20.0, 90.0])
    peer = iter([5.0, 5.0, 30.0])
    found = peers.in_turn(lambda: next(own), {"peer": lambda: next(peer)}, 3)
    assert found == ([10.0, 20.0, 90.0], {"peer": 5.0}, {"peer": 3.0})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import sys; sys.exit('no such module')", "failed in .*no such module"),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("print('nothing')", "printed no line"),
    ],
)
def test_a_peer_that_fails_is_one_line(folder, source, message):
    (folder / "tunix_ragged.py").write_text(source)
    programs = peers.programs("rollout/ragged", ["tunix"], folder, {"tunix": sys.executable})
    with pytest.raises(UserError, match=message) as error:
        programs["tunix"]()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("benchmark", "pythons", "message"),
    [
        ("rollout/ragged", {"tunix": sys.executable}, "tunix needs .*tunix_ragged.py"),
        ("rollout/ragged", {}, "give --peer_python=tunix=PYTHON"),
        ("rollout/long", {}, "rollout/long has no peer 'tunix': its peers are none"),
        ("iteration", {"tunix": "/nowhere/python"}, "tunix needs /nowhere/python"),
    ],
)
def test_what_a_peer_lacks_is_named(tmp_path, benchmark, pythons, message):
    with pytest.raises(UserError, match=message):
        peers.programs(benchmark, ["tunix"], tmp_path, pythons)
