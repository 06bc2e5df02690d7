"""Tiny runs with one fault each, in processes that can be killed.

`python tests/faults_runs.py` imports everything once and then, for each JSON line on its standard
input, forks a process that trains: {workdir, changes, log, fault: {kind, ...}}. It answers with the
exit status and how long the process lived after it was told to end.
"""
# ruff: noqa: E402  (the path comes first)

import contextlib
import functools
import hashlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import conftest  # noqa: F401  (before jax: devices, cache)
import jax
import numpy as np
import tiny

from cpgd_jax import checkpoint, experience, loop, sharding, train
from cpgd_jax.rewards import Verifier, workers

SCORE_BATCH = Verifier.score_batch
# Six rollouts of two steps; an odd number between saves, so that all meet one another.
SIX = dict(num_rollouts=6, checkpoint__every=2, eval__every=3, log__tensorboard=True)


class Server:
    """Runs one after the other. A context manager."""

    def __init__(self, *before: str):
        """before: a command that the server is started by."""
        argv = [*before, sys.executable, str(HERE / "faults_runs.py")]
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            argv, cwd=HERE.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()
        self._process.wait()

    def run(self, workdir, fault=None, **changes) -> dict:
        """{status, seconds, log}: status -9 = killed, 143 = saved after SIGTERM, 0 = done."""
        order = {"workdir": str(workdir), "changes": SIX | changes, "log": self._log.name}
        self._process.stdin.write(json.dumps(order | {"fault": fault or {}}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return answer | {"log": Path(self._log.name).read_text()}


def outcome(workdir) -> dict:
    """What must be equal bit for bit: the state, the metrics, the responses."""
    workdir = Path(workdir)
    return {
        "state": (workdir / "digest").read_text(),
        "metrics": tiny.untimed(workdir),
        "rollouts": tiny.lines(workdir, "rollouts.jsonl"),
        "before, after": json.loads((workdir / "summary.json").read_text())["held_out_mean"],
    }


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if child == 0:
            _child(order)
        status = os.waitpid(child, 0)[1]
        answer = {"status": os.waitstatus_to_exitcode(status), "seconds": _seconds(order)}
        print(json.dumps(answer), flush=True)


def _seconds(order) -> float | None:
    """From the signal to the end of the process."""
    told = Path(order["workdir"] + ".told")
    if not told.exists():
        return None
    began = float(told.read_text())
    told.unlink()
    return time.time() - began


def _child(order) -> None:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        _run(order)
        status = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        status = 2
    os._exit(status)


def _run(order) -> None:
    workdir, fault = order["workdir"], order["fault"]
    devices = jax.devices()[: fault.get("devices", 1)]
    sharding.make_mesh = functools.partial(sharding.make_mesh, devices=devices)
    Verifier.score_batch = _graded
    loop._Loop.__enter__ = _before(loop._Loop.__enter__, _FAULTS[fault.get("kind", "none")], order)
    digest = _keep_digest()
    train.train(tiny.config(**order["changes"]), workdir)
    (Path(workdir) / "digest").write_text(digest[-1])


def _before(enter, plan, order):
    """The fault is laid when the loop begins, after everything has been read."""

    def entered(self):
        plan(self, order, order["fault"])
        return enter(self)

    return entered


def _graded(self, texts, golds, **weights):
    """Rewards that a random policy can get: more for more digits."""
    scores = SCORE_BATCH(self, texts, golds, **weights)
    shares = [sum(c.isdigit() for c in t) / 8 for t in texts]
    return [type(s)(**{**vars(s), "total": x}) for s, x in zip(scores, shares, strict=True)]


def _keep_digest() -> list[str]:
    """The digest of the newest state that was saved or restored, last."""
    found, save, restore = [], checkpoint.Checkpointer.save, checkpoint.Checkpointer.restore

    def saved(self, index, state, progress):
        found.append(_digest(state))
        return save(self, index, state, progress)

    def restored(self, *args, **kwargs):
        result = restore(self, *args, **kwargs)
        if result:
            found.append(_digest(result[0]))
        return result

    checkpoint.Checkpointer.save, checkpoint.Checkpointer.restore = saved, restored
    return found


def _digest(state) -> str:
    total = hashlib.sha256()
    for leaf in jax.device_get(jax.tree.leaves(state)):
        total.update(np.asarray(leaf).tobytes())
    return total.hexdigest()


# ---- the faults


def _none(loop_, order, fault) -> None:
    pass


def _kill(loop_, order, fault) -> None:
    """SIGKILL after so many seconds of training."""
    _later(fault["after_s"], lambda: os.kill(os.getpid(), signal.SIGKILL))


def _kill_in_save(loop_, order, fault) -> None:
    """SIGKILL so many seconds into a save."""
    save = checkpoint.ocp.CheckpointManager.save

    def saved(*args, **kwargs):
        _later(fault["after_s"], lambda: os.kill(os.getpid(), signal.SIGKILL))
        return save(*args, **kwargs)

    checkpoint.ocp.CheckpointManager.save = saved


def _kill_at_step(loop_, order, fault) -> None:
    """SIGKILL so many seconds after this optimiser step, or the first one after it, has begun."""
    step, told = loop_._step, []

    def stepped(index, k):
        if loop_.steps >= fault["step"] and not told:
            told.append(1)
            _later(fault["after_s"], lambda: os.kill(os.getpid(), signal.SIGKILL))
        return step(index, k)

    loop_._step = stepped


def _term(loop_, order, fault) -> None:
    """SIGTERM after so many seconds of training."""

    def tell():
        Path(order["workdir"] + ".told").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGTERM)

    _later(fault["after_s"], tell)


def _nan(loop_, order, fault) -> None:
    """NaN advantages in these optimiser steps."""
    minibatch, steps = experience.minibatch, loop_.stage.steps

    def spoilt(config, batch, index, k):
        found = minibatch(config, batch, index, k)
        if index * steps + k + 1 in fault["steps"]:
            found = found.replace(advantage_BT=np.full_like(found.advantage_BT, np.nan))
        return found

    experience.minibatch = spoilt


def _at_rollouts(loop_, order, fault) -> None:
    """Shell commands before these rollouts: {index: command}."""
    collect = loop_.stage.collect

    def collected(state, index, position):
        if command := fault["commands"].get(str(index)):
            loop_.checkpoints.wait()
            subprocess.run(command, shell=True, cwd=order["workdir"], check=False)
        return collect(state, index, position)

    loop_.stage = loop_.stage._replace(collect=collected)


def _kill_workers(loop_, order, fault) -> None:
    """SIGKILL to a worker, with the child that compares, soon after every twentieth question."""
    count, ask = itertools.count(1), workers.Worker.ask

    def asked(self, *args, **kwargs):
        if next(count) % 20 == 0 and self.wait_ready():
            process, soon = self._process.pid, random.random() / 50
            _later(soon, functools.partial(_kill_group, process))
        return ask(self, *args, **kwargs)

    workers.Worker.ask = asked


def _kill_group(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


def _later(seconds: float, act) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()


_FAULTS = {
    "none": _none,
    "kill": _kill,
    "kill_at_step": _kill_at_step,
    "kill_in_save": _kill_in_save,
    "term": _term,
    "nan": _nan,
    "at_rollouts": _at_rollouts,
    "kill_workers": _kill_workers,
}

if __name__ == "__main__":
    serve()
