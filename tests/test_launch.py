"""Launchers: with stand-ins for gcloud, scontrol and srun they give the command of training."""

import json
import os
import shlex
import subprocess
import sys

import pytest
import yaml

# Stands in for the program of its name: says its arguments, a JSON list a line.
ECHO = f"""#!{sys.executable}
import json, sys
with open("{{log}}", "a") as log:
    log.write(json.dumps(sys.argv) + "\\n")
"""
# Runs the command for each of the tasks.
SRUN = """#!/usr/bin/env bash
shift
for SLURM_PROCID in 0 1 2; do export SLURM_PROCID; "$@"; done
"""
FLAGS = ["--config=configs/quickstart.py", "--workdir=/shared/a run", "--config.seed=3"]
PARSE = """
import sys
from experiments import train
from absl import flags
flags.FLAGS(sys.argv)
print(train.COORDINATOR.value, train.NUM_PROCESSES.value, train.PROCESS_ID.value,
      train.CONFIG.value.seed, train.WORKDIR.value, sep="|")
"""


@pytest.fixture
def said(tmp_path):
    """Makes a stand-in at a path in the temporary folder; `said()` is what they said."""
    log = tmp_path / "log"

    def stand_in(path, text=ECHO):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.format(log=log) if text is ECHO else text)
        file.chmod(0o755)

    def lines():
        return [json.loads(line) for line in log.read_text().splitlines()]

    return stand_in, lines


def run(script, cwd, tmp_path, **env):
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"} | env
    argv = ["bash", str(script), *FLAGS]
    done = subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def parsed(repo, argv) -> list[str]:
    """What `experiments.train` makes of its flags."""
    assert argv[1:3] == ["-m", "experiments.train"]
    argv = [sys.executable, "-c", PARSE, *argv[3:]]
    return subprocess.check_output(argv, cwd=repo, text=True).strip().split("|")


def test_slurm_tells_each_task_its_number(repo, tmp_path, said):
    stand_in, lines = said
    stand_in("bin/scontrol", "#!/bin/sh\nprintf 'node7\\nnode8\\n'\n")
    stand_in("bin/srun", SRUN)
    stand_in(".venv/bin/python")
    env = dict(SLURM_JOB_NODELIST="node[7-8]", SLURM_JOB_ID="40123", SLURM_NTASKS="3")
    run(repo / "launch" / "slurm.sh", tmp_path, tmp_path, **env)
    assert len(lines()) == 3
    for index, argv in enumerate(lines()):
        assert argv[3:6] == [
            "--coordinator=node7:20123",
            "--num_processes=3",
            f"--process_id={index}",
        ]
    assert parsed(repo, lines()[2]) == ["node7:20123", "3", "2", "3", "/shared/a run"]


def test_a_pod_gets_the_checkout_and_one_command_for_all_hosts(repo, tmp_path, said):
    if not (repo / ".git").exists():
        pytest.skip("needs the git checkout that is to be copied")
    stand_in, lines = said
    stand_in("bin/gcloud")
    run(repo / "launch" / "tpu_pod.sh", tmp_path, tmp_path, TPU="slice", ZONE="zone")
    copy, install, train = lines()
    assert copy[1:5] == ["compute", "tpus", "tpu-vm", "scp"] and copy[6] == "slice:"
    for argv in (install, train):
        assert argv[1:6] == ["compute", "tpus", "tpu-vm", "ssh", "slice"]
        assert "--worker=all" in argv and "--zone=zone" in argv
    command = train[-1].removeprefix("--command=cd cpgd_jax && ")
    assert parsed(repo, shlex.split(command)) == ["", "0", "-1", "3", "/shared/a run"]
    subprocess.run(["bash", "-n", "-c", install[-1].removeprefix("--command=")], check=True)


def test_the_manifest_asks_for_every_host_of_its_slice(repo):
    manifest = yaml.safe_load((repo / "launch" / "gke_tpu.yaml").read_text())
    (job,) = manifest["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    sides = pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x")
    chips = int(sides[0]) * int(sides[1]) * int(sides[2])
    hosts = chips // container["resources"]["limits"]["google.com/tpu"]
    assert spec["parallelism"] == spec["completions"] == hosts
    *_, workdir = parsed(repo, container["command"])
    mount = container["volumeMounts"][0]
    assert workdir.startswith(mount["mountPath"]) and mount["name"] == pod["volumes"][0]["name"]
