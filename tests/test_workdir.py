"""The folder of a run belongs to one config; nothing in it is overwritten by another."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

from cpgd_jax import config as config_lib
from cpgd_jax import workdir
from cpgd_jax.errors import UserError


@pytest.fixture
def config():
    return tiny.config()


def refused(folder, config, *words):
    for act in (workdir.check, workdir.claim):
        with pytest.raises(UserError) as error:
            act(folder, config)
        message = str(error.value)
        assert "\n" not in message
        for word in words:
            assert word in message, message


def test_claim_writes_the_config_and_the_same_config_claims_again(tmp_path, config):
    folder = workdir.claim(tmp_path / "a" / "b", config)
    written = json.loads((folder / "config.json").read_text())
    assert config_lib.from_config_dict(written) == config
    before = (folder / "config.json").stat().st_mtime_ns
    workdir.claim(folder, config)
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_check_writes_nothing(tmp_path, config):
    workdir.check(tmp_path / "a" / "b", config)
    assert not list(tmp_path.iterdir())


def test_another_config_is_refused_and_named(tmp_path, config):
    workdir.claim(tmp_path, config)
    kept = (tmp_path / "config.json").read_bytes()
    other = tiny.config(optim__lr=0.5, algorithm="grpo")
    refused(tmp_path, other, "optim.lr: 0.001 -> 0.5", "algorithm: 'cpgd' -> 'grpo'", "--workdir")
    assert (tmp_path / "config.json").read_bytes() == kept


def test_fields_that_do_not_change_the_result_may_differ(tmp_path, config):
    workdir.claim(tmp_path, config)
    workdir.claim(tmp_path, tiny.config(checkpoint__every=7, log__rollouts=1, reward__workers=2))
    refused(tmp_path, tiny.config(reward__timeout_s=9.0), "reward.timeout_s")


@pytest.mark.parametrize("content", [b"{", b"[]", b"3", b"\xff\xfe", b""])
def test_damaged_config(tmp_path, config, content):
    (tmp_path / "config.json").write_bytes(content)
    refused(tmp_path, config, "config.json", "damaged")
    assert (tmp_path / "config.json").read_bytes() == content


def test_unwritable(tmp_path, config):
    file = tmp_path / "file"
    file.write_text("x")
    refused(file / "run", config, "cannot be written", "is a file")
    refused(file, config, "cannot be written")
    refused("/dev/null/x", config, "cannot be written")
    assert file.read_text() == "x"


def test_no_permission(tmp_path, config, monkeypatch):
    monkeypatch.setattr(workdir.os, "access", lambda path, mode: False)
    refused(tmp_path / "run", config, "cannot be written (no permission)")


def test_write_json_is_whole_or_absent(tmp_path):
    workdir.write_json(tmp_path / "a.json", {"x": 1})
    with pytest.raises(TypeError):
        workdir.write_json(tmp_path / "a.json", {"x": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_an_empty_name_is_refused(config):
    refused("", config, "--workdir is empty")


@pytest.mark.parametrize("name", workdir.WRITTEN)
def test_what_looks_like_a_run_without_a_config_is_left_alone(tmp_path, config, name):
    (tmp_path / name).write_text("mine")
    refused(tmp_path, config, name, "give another folder")
    assert (tmp_path / name).read_text() == "mine"


def test_two_processes_do_not_share_a_folder(tmp_path, config):
    workdir.claim(tmp_path, config)
    workdir.claim(tmp_path, config)  # this process may again
    code = """
import sys, tiny
from cpgd_jax import workdir
for act in (workdir.check, workdir.claim):
    try:
        act(sys.argv[1], tiny.config())
    except Exception as error:
        print(type(error).__name__, error)
"""
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent)])
    out = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(out) == 2
    assert all(line.startswith("UserError") and f"process {os.getpid()}:" in line for line in out)
