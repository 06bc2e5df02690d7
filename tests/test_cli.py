"""Bad input to a main: one line on stderr, exit status 2, nothing written."""

import json
import os
import subprocess
import sys

import pytest
import tiny
from absl import flags
from ml_collections import config_flags

from cpgd_jax import cli, supervised, train
from cpgd_jax.config import to_dict


@pytest.fixture
def call(repo, tmp_path, monkeypatch, capsys):
    """`call(*flags)` runs experiments.train's main in this process: (exit status, stderr)."""
    file = tmp_path / "tiny.py"
    file.write_text("import tiny\n\nget_config = tiny.values\n")

    def run(*arguments, config=file, folder=tmp_path / "run"):
        values = flags.FlagValues()
        values["verbosity"] = flags.FLAGS["verbosity"]
        chosen = config_flags.DEFINE_config_file("config", None, "", flag_values=values)
        workdir = flags.DEFINE_string("workdir", None, "", flag_values=values)

        def main():
            settings = cli.load_config(chosen)
            stage = supervised if settings.stage == "supervised" else train
            stage.train(settings, workdir.value)

        argv = ["train", f"--config={config}", f"--workdir={folder}", *arguments]
        monkeypatch.setattr(sys, "argv", argv)
        monkeypatch.setattr(cli.flags, "FLAGS", values)
        with pytest.raises(SystemExit) as exit:
            cli._guarded(main, (), "", cli._parse(argv)[1:])
        return exit.value.code, capsys.readouterr().err

    return run


BAD = [
    (["--wrkdir=x"], ["wrkdir", "workdir"]),
    (["--config.rollout.promts=3"], ["promts", '"prompts"']),
    (["--config.rolout.prompts=3"], ["rolout", '"rollout"']),
    (["--config.seed=abc"], ["config.seed=abc"]),
    (["--config.rollout=3"], ["config.rollout=3"]),
    (["stray"], ["unexpected argument 'stray'"]),
    (["--config.algorithm=cgpd"], ["'cgpd'", "nearest: 'cpgd'"]),
    (["--config.rollout.max_prompt_len=4"], ["tokens, over config.rollout.max_prompt_len 4"]),
    (
        ["--config.stage=supervised", "--config.rollout.max_response_len=5"],
        ["demonstration of '9+9=?' has 16 tokens, over config.rollout.max_response_len 5"],
    ),
    (
        ["--config.rollout.samples_per_prompt=1", "--config.rollout.prompts=8"],
        ["samples_per_prompt = 1", "baseline"],
    ),
    (["--config.rollout.prompts=3"], ["does not divide the rollout of 3 prompts"]),
    (["--config.model.init_from=missing_folder"], ["config.model.init_from", "missing_folder"]),
    (["--config.data.tokenizer=missing_folder"], ["tokenizer 'missing_folder' not found"]),
    (["--config.data.source=jsonl"], ["config.data.path is ''"]),
    (["--config.mesh.fsdp=3"], ["there are 4 devices"]),
    (["--config.train.microbatch_size=2"], ["multiple of mesh data x fsdp = 4"]),
    (["--config.reward.functions=('no_such:f',)"], ["'no_such:f'", "cannot be imported"]),
    (["--config.reward.functions=('f',)"], ["config.reward.functions", "'module:function=weight'"]),
    (["--config.optim.warmup_steps=99"], ["warmup_steps 99"]),
    (["--config.data.arithmetic.held_out_frac=1.0"], ["leaves no train problems"]),
    (["--config.eval.problems=100000"], ["config.eval.problems is 100000"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD, ids=lambda x: " ".join(x)[:50])
def test_bad_input_is_one_line_and_writes_nothing(call, tmp_path, arguments, words):
    code, error = call(*arguments)
    one_line(code, error, *words)
    assert [p.name for p in tmp_path.iterdir()] == ["tiny.py"]


def one_line(code, error, *words):
    assert code == 2
    assert error.startswith("error: ") and error.count("\n") == 1, error
    for word in words:
        assert word in error, error


def test_config_files_that_cannot_be_loaded(call, tmp_path):
    one_line(*call(config="configs/nope.py"), "--config cannot be read", "nope.py")
    (tmp_path / "bad.py").write_text("def get_config(:\n")
    one_line(*call(config=tmp_path / "bad.py"), "bad.py")
    assert not (tmp_path / "run").exists()


def test_a_workdir_that_is_not_ours_to_write(call, tmp_path):
    one_line(*call(folder=tmp_path / "tiny.py" / "run"), "cannot be written")
    one_line(*call(folder="/dev/null/x"), "cannot be written")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_dict(tiny.config(algorithm="grpo"))))
    one_line(*call(folder=folder), "another config", "algorithm: 'grpo' -> 'cpgd'")
    (folder / "config.json").write_text("{")
    one_line(*call(folder=folder), "config.json", "damaged")
    assert [p.name for p in folder.iterdir()] == ["config.json"]


def test_init_from_a_folder_that_is_no_run(call, tmp_path):
    (tmp_path / "empty").mkdir()
    one_line(*call(f"--config.model.init_from={tmp_path / 'empty'}"), "give the workdir of a run")
    (tmp_path / "empty" / "checkpoints").mkdir()
    one_line(*call(f"--config.model.init_from={tmp_path / 'empty'}"), "empty", "not found")
    assert not (tmp_path / "run").exists()


def test_an_interruption_is_one_line(capsys):
    def main():
        raise KeyboardInterrupt

    for after, text in (("the same command resumes", "; the same command resumes"), ("", "")):
        with pytest.raises(SystemExit) as exit:
            cli._guarded(main, (), after, [])
        one_line(exit.value.code, capsys.readouterr().err, f"error: interrupted{text}\n")


def process(repo, *arguments):
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=repo,
        env=dict(os.environ, JAX_PLATFORMS="cpu"),
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_process_says_one_line_and_ends_with_2(repo, tmp_path):
    """Through absl and the shell; one case, since a process takes seconds."""
    done = process(
        repo,
        "experiments.train",
        "--config=configs/quickstart.py",
        f"--workdir={tmp_path / 'run'}",
        "--config.optim.lrr=1",
    )
    one_line(done.returncode, done.stderr, "'lrr'", '"lr"')
    assert done.stdout == "" and not (tmp_path / "run").exists()


def test_a_missing_workdir_is_one_line(repo):
    done = process(repo, "experiments.train", "--config=configs/quickstart.py")
    one_line(done.returncode, done.stderr, "--workdir")


def test_every_main_has_help(repo):
    names = sorted(p.stem for p in (repo / "experiments").glob("*.py") if p.stem != "__init__")
    script = (
        "import runpy, sys\n"
        f"for name in {names}:\n"
        "    sys.argv = [name, '--help']\n"
        "    from absl import flags\n"
        "    try:\n"
        "        runpy.run_module('experiments.' + name, run_name='__main__', alter_sys=True)\n"
        "    except SystemExit as error:\n"
        "        print('exit', name, error.code)\n"
        "    for flag in list(flags.FLAGS):\n"
        "        if flag not in ('help', 'helpfull'):\n"
        "            delattr(flags.FLAGS, flag)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=repo, capture_output=True, text=True, timeout=120
    )
    for name in names:
        assert f"exit {name} " in done.stdout, done.stderr
    assert "--workdir" in done.stdout and "Traceback" not in done.stderr
