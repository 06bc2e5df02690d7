"""Faults laid on purpose into tiny runs, and what must come of them. The table of README is made by

    FAULTS=20 KILLS=100 python -m pytest -m slow tests/test_faults.py -s

What is bit for bit: parameters, optimiser state, metrics, sampled responses, evaluations.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import faults_runs
import numpy as np
import processes
import pytest
import tiny
from faults_runs import Server, outcome

pytestmark = pytest.mark.slow
FAULTS = int(os.environ.get("FAULTS", "4"))
KILLS = int(os.environ.get("KILLS", "10"))
KILLS_A_RUN = 8
MOUNT = ("unshare", "--mount", "--map-root-user")


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def straight(server, tmp_path_factory):
    """A run that nothing happens to."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    done = server.run(folder)
    assert done["status"] == 0, done["log"]
    return folder


def report(fault: str, found: str, good: int, of: int):
    """A row of the table."""
    print(f"\n| {fault} | {found} | {good} of {of} |")


def test_kills(server, straight, tmp_path):
    """SIGKILL: at any time, after any optimiser step, within a save; each run is killed again and
    again until it has come to its end."""
    dice, kills, runs, in_saves, begun = random.Random(0), 0, 0, 0, 0
    whole_s = json.loads((straight / "summary.json").read_text())["seconds"]
    limits = {"kill": whole_s, "kill_at_step": 0.15, "kill_in_save": 0.15}
    while kills < KILLS:
        folder, runs, row = tmp_path / f"run{runs}", runs + 1, 0
        while True:
            kind = dice.choice(list(limits))
            fault = {"kind": kind, "after_s": dice.uniform(0, limits[kind])}
            fault["step"] = dice.randrange(12)
            row += 1
            done = server.run(folder, fault if kills < KILLS and row <= KILLS_A_RUN else None)
            if done["status"] == 0:
                break
            assert done["status"] == -9, done["log"]
            kills += 1
            held = [p.name for p in (folder / "checkpoints").iterdir()]
            in_saves += any("tmp" in name for name in held)
            begun += any(name.isdecimal() for name in held)
            print(f"kill {kills}: {fault}, {held}", flush=True)
        assert outcome(folder) == outcome(straight), folder
        shutil.rmtree(folder)
    found = (
        f"resumed ({begun} from a checkpoint, {in_saves} with a save cut short), at the end bit for"
        f" bit the uninterrupted run ({runs} runs)"
    )
    report("SIGKILL at a random time", found, kills, kills)


def test_sigterm(server, straight, tmp_path):
    """Anywhere: in a rollout, between its optimiser steps, in an evaluation, in a save."""
    dice, told, runs, slowest, between = random.Random(1), 0, 0, 0.0, 0
    while told < FAULTS:
        folder, runs = tmp_path / f"run{runs}", runs + 1
        while True:
            fault = {"kind": "term", "after_s": dice.uniform(0.3, 1.2)}
            done = server.run(folder, fault if told < FAULTS else None)
            if done["status"] == 0:
                break
            assert done["status"] == 143, done["log"]
            assert done["seconds"] < 25
            steps = int(re.search(r"saved after (\d+) optimiser steps", done["log"])[1])
            told, slowest, between = told + 1, max(slowest, done["seconds"]), between + steps % 2
        assert outcome(folder) == outcome(straight), folder
    found = f"saved and ended in {slowest:.1f} s at most ({between} within a rollout's steps)"
    report("SIGTERM at a random time", f"{found}, goes on bit for bit", told, told)


def test_another_number_of_devices(server, straight, tmp_path):
    folder = tmp_path / "run"
    done = server.run(folder, {"kind": "term", "after_s": 1.0})
    assert done["status"] == 143, done["log"]
    done = server.run(folder, {"devices": 4})
    assert done["status"] == 0, done["log"]
    ours, theirs = (
        [row["grad_norm"] for row in tiny.lines(f) if "kind" not in row] for f in (folder, straight)
    )
    np.testing.assert_allclose(ours[:4], theirs[:4], rtol=1e-3)
    report("restored onto 4 devices instead of 1", "goes on, the same to rounding", 1, 1)


def test_batches_that_are_not_finite(server, tmp_path):
    """Every other step from the second on; and then more in a row than config.guard allows."""
    steps, folder = list(range(2, 2 + 2 * FAULTS, 2)), tmp_path / "run"
    rollouts = dict(num_rollouts=FAULTS + 2, guard__keep_batches=FAULTS)
    done = server.run(folder, {"kind": "nan", "steps": steps}, **rollouts)
    assert done["status"] == 0, done["log"]
    rows = {row["step"]: row for row in tiny.lines(folder) if "kind" not in row}
    assert [step for step, row in rows.items() if row["guard/skipped"]] == steps
    kept = sorted((folder / "bad_batches").glob("*.npz"))
    for file in kept:
        with np.load(file, allow_pickle=False) as arrays:
            assert np.isnan(arrays["advantage_BT"]).all() and arrays["response_BT"].shape[0] == 8
    assert len(kept) == len(steps)
    assert all(np.isfinite(x).all() for x in tiny.params_of(folder))
    report("batch of NaN", "update skipped, batch kept, run ends well", len(kept), len(steps))
    folder = tmp_path / "stopped"
    done = server.run(folder, {"kind": "nan", "steps": list(range(5, 30))})
    assert done["status"] == 2 and "step 9: 5 updates in a row were not finite" in done["log"]
    again = server.run(folder, None, guard__max_skips=6)  # the cause is gone
    assert again["status"] == 0 and all(np.isfinite(x).all() for x in tiny.params_of(folder))


@pytest.fixture(scope="module")
def begun(server, tmp_path_factory):
    """A run that was killed in its last rollout, with checkpoints 4 and 8."""
    folder = tmp_path_factory.mktemp("begun") / "run"
    done = server.run(folder, {"kind": "at_rollouts", "commands": {"5": "kill -9 $PPID"}})
    assert done["status"] == -9, done["log"]
    return folder


@pytest.mark.parametrize("kind", ["truncated", "flipped byte", "missing file", "missing metadata"])
def test_damaged_checkpoints(server, straight, begun, tmp_path, kind):
    """The newest of two, within a run that is to go on."""
    dice, good = random.Random(kind), 0
    count = -(-FAULTS // 4)
    for n in range(count):
        copy = tmp_path / f"run{n}"
        shutil.copytree(begun, copy)
        name = damage(copy / "checkpoints" / "8", kind, dice)
        done = server.run(copy)
        assert done["status"] == 0, done["log"]
        assert "checkpoint 8 of" in done["log"] and "is damaged" in done["log"], name
        assert (copy / "damaged_checkpoints" / "8").is_dir()
        good += outcome(copy) == outcome(straight)
    report(f"checkpoint damaged: {kind}", "named, set aside, the one before used", good, count)
    assert good == count


def damage(checkpoint: Path, kind: str, dice) -> str:
    files = [p for p in sorted(checkpoint.rglob("*")) if p.is_file() and p.stat().st_size > 1]
    if kind == "missing metadata":
        named = ("_METADATA", "manifest.ocdbt", "metadata", "checksums.json", "_sharding")
        files = [p for p in files if p.name in named]
    else:
        files = [p for p in files if p.parent.parent != checkpoint.parent]
        files = [p for p in files if p.name not in ("commit_success.txt",)]
    file = dice.choice(files)
    content = bytearray(file.read_bytes())
    if kind == "truncated":
        file.write_bytes(content[: dice.randrange(len(content))])
    elif kind == "flipped byte":
        content[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
        file.write_bytes(content)
    else:
        file.unlink()
    return str(file.relative_to(checkpoint))


@pytest.fixture
def small_disk(tmp_path):
    """A command prefix that gives its process 8 MB at the folder, and the folder."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = f"mount -t tmpfs -o size=8m none {folder}"
    if subprocess.run([*MOUNT, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    copy = f"cp -r {folder}/. {tmp_path}/copy"
    return (*MOUNT, "sh", "-c", f'{mount} && "$@"; s=$?; {copy}; exit $s', "sh"), folder


def test_a_full_disk(small_disk, straight, tmp_path):
    """From the third rollout to the fifth there is no byte left; the checkpoints meant for then are
    missing, those before and after are there."""
    before, folder = small_disk
    fill = "dd if=/dev/zero of=../filler bs=4k 2>/dev/null; ls ../filler"
    commands = {"2": fill, "5": "rm ../filler"}
    with Server(*before) as server:
        done = server.run(folder / "run", {"kind": "at_rollouts", "commands": commands})
    assert done["status"] == 0, done["log"]
    assert "cannot be written (No space left on device): training goes on" in done["log"]
    assert re.search(r"checkpoint \d+ could not be saved: .*No space left", done["log"])
    copy = tmp_path / "copy" / "run"
    assert outcome(copy) == outcome(straight)
    assert sorted(p.name for p in (copy / "checkpoints").iterdir()) == ["12", "4"]
    report("disk full for three rollouts", "goes on, says so, no line and no checkpoint lost", 1, 1)


def test_a_folder_that_becomes_read_only(small_disk, straight, tmp_path):
    """Files that are open stay so; none can be made."""
    before, folder = small_disk
    run = folder / "run"
    lock = f"mount --bind {run} {run} && mount -o remount,bind,ro {run}"
    commands = {"2": lock, "5": f"umount -l {run}"}
    with Server(*before) as server:
        done = server.run(folder / "run", {"kind": "at_rollouts", "commands": commands})
    assert done["status"] == 0, done["log"]
    assert "cannot be written (Read-only file system): training goes on" in done["log"]
    assert re.search(r"checkpoint \d+ could not be saved: .*Read-only file system", done["log"])
    assert outcome(tmp_path / "copy" / "run") == outcome(straight)
    report("workdir read-only for three rollouts", "goes on, says so, nothing lost", 1, 1)


def test_unreadable_rows(server, tmp_path):
    """1% of a file."""
    good = [json.dumps({"question": f"{n}+1=?", "answer": str(n + 1)}) for n in range(9)] * 11
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_text(
            "\n".join(good[:50] + ['{"question": 3'] + good[50:])
        )
    paths = dict(
        data__path=f"{tmp_path}/train.jsonl", data__held_out_path=f"{tmp_path}/held_out.jsonl"
    )
    done = server.run(tmp_path / "run", None, data__source="jsonl", **paths)
    assert done["status"] == 0, done["log"]
    assert "1 of 100 rows left out: 1 not JSON" in done["log"]
    report("1% of the rows unreadable", "left out, counted and named, run ends well", 1, 1)


def test_workers_that_are_killed(server, tmp_path):
    """Each response asks a worker; those that a kill hits count 0 and are counted."""
    reward = dict(reward__functions=("faults_reward:slow_digits",), reward__workers=2)
    done = server.run(tmp_path / "run", {"kind": "kill_workers"}, num_rollouts=10, **reward)
    assert done["status"] == 0, done["log"]
    rows = [row for row in tiny.lines(tmp_path / "run") if "kind" not in row]
    lost = sum(row["reward/errors"] for row in rows)
    assert len(rows) == 20 and lost > 0
    report("verifier workers killed all the time", f"{lost:g} verdicts 0 and counted", 1, 1)


def test_one_of_two_processes(tmp_path):
    """SIGTERM to one: both save and end. Then SIGKILL to one: the other ends. Then to the end."""
    reward = dict(reward__functions=("faults_reward:digits",))
    changes = dict(num_rollouts=6, checkpoint__every=2, eval__every=3, **reward)
    processes.finish(processes.start(tmp_path / "straight", 2, 2, **changes), timeout=600)
    folder = tmp_path / "run"
    metrics, fourth = folder / "metrics.jsonl", folder / "checkpoints" / "4"

    def interrupted(number, when):
        """(seconds until both have ended, statuses, what they said)."""
        two = processes.start(folder, 2, 2, **changes)
        while not when():
            assert all(p.poll() is None for p in two)
            time.sleep(0.01)
        began = time.monotonic()
        two[1].send_signal(number)
        told = [p.communicate(timeout=100)[0] for p in two]
        return time.monotonic() - began, [p.returncode for p in two], "".join(told)

    seconds, statuses, told = interrupted(
        signal.SIGTERM, lambda: metrics.exists() and '"step": 1,' in metrics.read_text()
    )
    steps = [int(n) for n in re.findall(r"SIGTERM: saved after (\d+) optimiser steps", told)]
    assert statuses == [143, 143] and len(steps) == 2 and steps[0] == steps[1], told[-3000:]
    assert seconds < 25
    report("SIGTERM to one of two processes", f"both saved and ended in {seconds:.1f} s", 1, 1)
    seconds, statuses, told = interrupted(signal.SIGKILL, fourth.is_dir)
    assert statuses == [3, -9] and "error: process 0 ends, since another has ended" in told
    processes.finish(processes.start(folder, 2, 2, **changes), timeout=600)
    straight = tmp_path / "straight"
    assert tiny.untimed(folder) == tiny.untimed(straight)
    assert tiny.lines(folder, "rollouts.jsonl") == tiny.lines(straight, "rollouts.jsonl")
    tiny.assert_equal(tiny.params_of(folder), tiny.params_of(straight))
    found = f"the other said so and ended in {seconds:.1f} s; both go on bit for bit"
    report("SIGKILL to one of two processes", found, 1, 1)


def test_the_digest_sees_a_difference(server, straight, tmp_path):
    done = server.run(tmp_path / "run", None, optim__lr=1.0001e-3)
    assert done["status"] == 0
    other = outcome(tmp_path / "run")
    assert all(other[k] != outcome(straight)[k] for k in ("state", "metrics"))
    assert faults_runs.SIX["num_rollouts"] == 6
