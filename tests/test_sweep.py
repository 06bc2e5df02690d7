"""Sweeps: which trials there are, that they run once, and the table of what they gave."""

import json
import subprocess
import sys
import types

import numpy as np
import pytest
import tiny

from cpgd_jax.errors import UserError
from cpgd_jax.sweep import processes, table, trials, wandb_group


def made(root, **spec):
    return trials.make_trials(trials.Spec(**{"grid": {}, "random": {}} | spec), root)


def changes(found):
    return [dict(trial.changes) for trial in found]


# ---- which trials


def test_a_grid_is_every_combination(tmp_path):
    spec = trials.read_spec("", ["optim.lr=1e-4,3e-4", "algorithm=cpgd,grpo", "seed=0"], [], 0)
    found = trials.make_trials(spec, tmp_path)
    assert changes(found) == [
        {"algorithm": name, "optim.lr": lr, "seed": 0}
        for lr in (1e-4, 3e-4)
        for name in ("cpgd", "grpo")
    ]
    assert len({trial.folder for trial in found}) == 4
    assert all(trial.folder.parent == tmp_path for trial in found)


def test_draws_keep_to_their_law_and_repeat(tmp_path):
    spec = trials.read_spec(
        "", [], ["optim.lr=1e-5:1e-2:log", "seed=3,4", "loss.drift_cap=1:2"], 50
    )
    first, again = (changes(trials.make_trials(spec, tmp_path, seed=s)) for s in (1, 1))
    assert first == again != changes(trials.make_trials(spec, tmp_path, seed=2))
    rates, caps = (np.array([c[k] for c in first]) for k in ("optim.lr", "loss.drift_cap"))
    assert rates.min() >= 1e-5 and rates.max() <= 1e-2 and caps.min() >= 1 and caps.max() <= 2
    # logarithmic: half of the draws lie below the geometric mean, where uniform ones are 3%
    assert 0.25 < (rates < 10**-3.5).mean() < 0.75
    assert {c["seed"] for c in first} == {3, 4}


def test_a_file_and_flags_go_together(tmp_path):
    file = tmp_path / "sweep.json"
    file.write_text('{"grid": {"seed": [0, 1]}, "list": [{"algorithm": "pg"}, {"optim.lr": 0.1}]}')
    found = trials.make_trials(trials.read_spec(str(file), ["seed=5"], [], 0), tmp_path)
    assert changes(found) == [{"algorithm": "pg", "seed": 5}, {"optim.lr": 0.1, "seed": 5}]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (([], [], 0), "nothing to sweep"),
        ((["optim.lr"], [], 0), "write FIELD=VALUE,VALUE"),
        (([], ["optim.lr=1:2"], 0), "give both --random and"),
        (([], ["optim.lr"], 3), "write FIELD=LOW:HIGH"),
    ],
)
def test_flags_that_say_nothing_are_named(flags, words):
    with pytest.raises(UserError, match=words):
        trials.read_spec("", *flags)


@pytest.mark.parametrize("law", ["2:1", "0:1:log", "a:b", "1:inf"])
def test_a_law_that_cannot_be_drawn_from_is_named(tmp_path, law):
    spec = trials.read_spec("", [], [f"optim.lr={law}"], 1)
    with pytest.raises(UserError, match="random optim.lr"):
        trials.make_trials(spec, tmp_path)


@pytest.mark.parametrize(
    "text",
    ["[1]", "{", '{"gird": {}}', '{"grid": {"seed": 1}}', '{"list": [1]}', '{"trials": "3"}'],
)
def test_a_file_of_another_shape_is_named(tmp_path, text):
    file = tmp_path / "sweep.json"
    file.write_text(text)
    with pytest.raises(UserError, match="sweep.json"):
        trials.read_spec(str(file), [], [], 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"optim.lrr": 1}, "config.optim.lrr"),
        ({"optim.lr": "x"}, "lr"),
        ({"algorithm": "a"}, "'a'"),
    ],
)
def test_a_trial_is_held_against_the_config_before_any_runs(tmp_path, change, words):
    (trial,) = made(tmp_path, list=[change])
    with pytest.raises(UserError, match=words):
        trials.checked(tiny.values(), trial)


def test_checking_leaves_the_base_as_it_is(tmp_path):
    values = tiny.values()
    (trial,) = made(tmp_path, list=[{"optim.lr": 0.5, "optim.freeze": ["embed"]}])
    assert trials.checked(values, trial).optim.lr == 0.5 and values.optim.lr == 1e-3


def test_the_command_holds_the_changes_and_can_be_pasted(tmp_path):
    (trial,) = made(tmp_path / "a b", list=[{"optim.lr": 1e-5, "optim.freeze": ["x y"]}])
    arguments = trials.command(trial, "c.py", {"seed": 7, "optim.lr": 3})
    assert arguments[3:] == [
        "--config=c.py",
        f"--workdir={trial.folder}",
        "--config.seed=7",
        "--config.optim.lr=1e-05",
        "--config.optim.freeze=('x y',)",
    ]
    line = trials.shell_line(arguments)
    echo = f"{sys.executable} -c 'import sys, json; print(json.dumps(sys.argv[1:]))' "
    shell = subprocess.run(echo + line.split(" ", 1)[1], shell=True, capture_output=True, text=True)
    assert json.loads(shell.stdout) == arguments[1:]


def test_names_of_folders_are_safe_and_differ():
    names = [trials.folder_name((("data.path", f"/x/{'y' * 90}/{i}"),)) for i in range(2)]
    assert names[0] != names[1] and all(len(n) < 100 and "/" not in n for n in names)


# ---- running them


def test_each_command_runs_and_failures_are_told(tmp_path, capsys):
    found = made(tmp_path, grid={"seed": [0, 1, 2]})
    program = "import sys; print('seed', sys.argv[1]); sys.exit(int(sys.argv[1] == '1'))"
    commands = [(t, [sys.executable, "-c", program, str(i)]) for i, t in enumerate(found)]
    assert processes.run_all(commands, 2) == [found[1]]
    assert [processes.last_line(t.folder) for t in found] == ["seed 0", "seed 1", "seed 2"]
    assert f"{found[1].folder.name} failed: seed 1" in capsys.readouterr().err


def test_a_command_that_cannot_start_is_one_line(tmp_path):
    (trial,) = made(tmp_path, list=[{"seed": 1}])
    with pytest.raises(UserError, match="cannot be run"):
        processes.run_all([(trial, [str(tmp_path / "none")])], 1)


# ---- the table


def finish(trial, accuracy, rollouts=2):
    trial.folder.mkdir(parents=True)
    rows = [{"step": i, "eval/mean_accuracy": accuracy * i / rollouts} for i in range(rollouts + 1)]
    (trial.folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (trial.folder / "summary.json").write_text("{}")
    (trial.folder / "config.json").write_text('{"seed": 1}')


@pytest.fixture
def finished(tmp_path):
    """Two algorithms of two seeds, .5 and .7, and .4 of one seed; the other has not begun."""
    found = made(tmp_path, grid={"algorithm": ["cpgd", "pg"], "seed": [0, 1]})
    for trial, accuracy in zip(found, (0.5, 0.7, 0.4), strict=False):
        finish(trial, accuracy)
    return found


def test_seeds_are_put_together(tmp_path, finished):
    value = table.write(tmp_path, finished, "eval/mean_accuracy")
    assert [row["state"] for row in value["trials"]] == ["finished"] * 3 + ["waiting"]
    best = value["best"]
    assert best["algorithm"] == "cpgd" and best["seeds"] == 2
    np.testing.assert_allclose((best["mean"], best["std"]), (0.6, 0.2 / np.sqrt(2)))
    assert (best["least"], best["largest"]) == (0.5, 0.7)
    assert value["groups"][1] == {
        "algorithm": "pg", "seeds": 1, "mean": 0.4, "std": None, "least": 0.4, "largest": 0.4,
    }  # fmt: skip
    assert json.loads((tmp_path / "table.json").read_text()) == value
    assert len((tmp_path / "table.csv").read_text().splitlines()) == 5
    assert "| cpgd | 2 | 0.6 | 0.1414 |" in (tmp_path / "table.md").read_text()


def test_the_smallest_may_be_the_best(tmp_path, finished):
    value = table.write(tmp_path, finished, "eval/mean_accuracy", largest=False)
    assert value["best"]["algorithm"] == "pg" and value["groups"][0] == value["best"]


def test_a_metric_that_no_trial_has_is_named(tmp_path, finished):
    with pytest.raises(UserError, match="'eval/mean_acuracy'.*nearest: 'eval/mean_accuracy'"):
        table.write(tmp_path, finished, "eval/mean_acuracy")
    assert (tmp_path / "table.csv").exists()


def test_finished_trials_go_to_wandb_once_as_a_group(finished, monkeypatch):
    sent = []

    class Run:
        def log(self, row, step):
            sent[-1]["rows"].append((step, row))

        def finish(self):
            sent[-1]["done"] = True

    def init(**arguments):
        sent.append(arguments | {"rows": []})
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    assert wandb_group.send(finished, "p", "g") == 3 and wandb_group.send(finished, "p", "g") == 0
    assert [(s["group"], s["project"], s["config"], s["done"]) for s in sent] == [
        ("g", "p", {"seed": 1}, True)
    ] * 3
    assert sent[0]["rows"][2] == (2, {"eval/mean_accuracy": 0.5})


def test_without_the_extra_it_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="cpgd_jax\\[wandb\\]"):
        wandb_group.require()


# ---- the main


@pytest.fixture
def sweep(repo, tmp_path):
    """`sweep(*flags)` runs experiments.sweep on the tiny config: the finished process."""
    file = tmp_path / "config.py"
    file.write_text(
        f"import sys\nsys.path.insert(0, {str(repo / 'tests')!r})\nimport tiny\n\n"
        "get_config = tiny.values\n"
    )
    head = [sys.executable, "-m", "experiments.sweep", f"--config={file}"]
    head.append(f"--workdir={tmp_path / 'sweep'}")

    def call(*flags):
        return subprocess.run([*head, *flags], cwd=repo, capture_output=True, text=True)

    return call


def test_commands_for_a_cluster_run_nothing(sweep, tmp_path):
    done = sweep("--grid=seed=0,1", "--commands", "--config.num_rollouts=1")
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 2 and not (tmp_path / "sweep").exists()
    assert all(line.startswith("python -m experiments.train --config=") for line in lines)
    assert all("--config.num_rollouts=1" in line for line in lines)
    assert lines[1].endswith("--config.seed=1")


@pytest.mark.slow
def test_trials_run_once_and_are_put_together(sweep, tmp_path):
    flags = ("--grid=seed=0,1", "--config.eval.every=2", "--jobs=2")
    done = sweep(*flags)
    assert done.returncode == 0, done.stderr
    assert "2 trials, 0 finished before" in done.stdout
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["best"]["seeds"] == 2 and told["failed"] == 0
    folders = [p for p in (tmp_path / "sweep").iterdir() if p.is_dir()]
    assert len(folders) == 2 and all((p / "summary.json").exists() for p in folders)
    again = sweep(*flags)
    assert "2 trials, 2 finished before" in again.stdout and again.returncode == 0
    assert json.loads(again.stdout.splitlines()[-1]) == told
    other = sweep(*flags, "--config.optim.lr=1")
    assert other.returncode == 2 and "optim.lr" in other.stderr
