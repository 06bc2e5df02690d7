"""The frame that both stages of training share: resume, log, watch, evaluate, save, report.

A `Stage` says how a unit of work (a rollout, or a supervised step) is made and how it is trained
on. Everything random in it follows from (seed, unit, position in the data), so that a run goes on
from any optimiser step as if it had never stopped.
"""

import json
import shutil
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from cpgd_jax import config as config_lib
from cpgd_jax import distributed, evaluate, guard, jsonl, progress, work, workdir
from cpgd_jax.checkpoint import Checkpointer
from cpgd_jax.errors import UserError
from cpgd_jax.metrics import MetricsWriter, NoWriter, Progress
from cpgd_jax.report import versions, write_facts, write_report
from cpgd_jax.run import Run
from cpgd_jax.stop import Stop
from cpgd_jax.types import TrainBatch, TrainState
from cpgd_jax.watch import Finding, Watch
from cpgd_jax.work import Work

BEST = "eval/mean_accuracy"  # by which the best checkpoint is kept


class Stepped(NamedTuple):
    """After an optimiser step."""

    state: TrainState
    work: Work  # what the next step of the unit goes on with
    row: dict  # metrics
    batch: TrainBatch  # that the step took
    rows: dict  # metrics of its single responses, see `train_step`


class Stage(NamedTuple):
    unit: str  # "rollout" or "step"
    units: int
    steps: int  # optimiser steps a unit
    collect: Callable  # (state, index, position) -> Work of the unit `index`
    step: Callable  # (state, work, index, k) -> Stepped, the unit's step k


def run_loop(run: Run, state: TrainState, verifier, stage: Stage) -> dict:
    """Trains all units of the stage, from the newest checkpoint if there is one.

    Returns the summary that `train` prints: {held_out: {before, after}, steps, seconds}. A run that
    is complete is left as it is.
    """
    with Checkpointer(run.workdir, run.config.checkpoint.keep) as checkpoints:
        loop = _Loop(run, state, verifier, stage, checkpoints)
        if loop.here["done"] == stage.units and (found := distributed.by_first(_summary, run)):
            return _finish(run, found)
        _try(write_facts, run.workdir, parameters=_size(loop.state.params), devices=_devices(run))
        with loop:
            before, after = loop.train()
    summary = {
        "held_out": _both("eval/greedy_accuracy", before, after),
        "held_out_mean": _both("eval/mean_accuracy", before, after),
        "steps": loop.steps,
        "seconds": round(loop.seconds, 1),
    }
    if distributed.is_first():
        evaluate.show(f"held-out, {stage.unit} {stage.units}", {"before": before, "after": after})
    _try(workdir.write_json, run.workdir / "summary.json", summary)
    _try(write_report, run.workdir)
    return _finish(run, summary)


class _Loop:
    """A run and where it stands. What changes together changes inside `stop.busy()`."""

    def __init__(self, run: Run, state: TrainState, verifier, stage: Stage, checkpoints):
        c = run.config
        self.run, self.verifier, self.stage, self.checkpoints = run, verifier, stage, checkpoints
        self.state, self.work = state, None
        self.here = {
            "done": 0,  # units
            "step": 0,  # optimiser steps of the next unit
            "position": 0,  # of the data stream, before the next unit
            "owed": False,  # the last unit is to be evaluated and saved
            "before": None,  # metrics before the first step
            "best": None,  # {step, accuracy} of the best checkpoint
            "rollbacks": 0,
            "seconds": 0.0,  # of earlier processes
        }
        size = c.train.microbatch_size
        self.guard = guard.Guard(run.workdir, c.guard, run.tokenizer.decode, size)
        self.watch = Watch(c.watch)
        self.stop = Stop(c.checkpoint.grace_s, self._leave)
        self._started = time.monotonic()
        self._new = not self._restore()

    def __enter__(self):
        self._open()
        self.bar = Progress(self.stage.units, self.stage.unit, start=self.here["done"])
        self.bar.__enter__()
        self.stop.__enter__()
        return self

    def __exit__(self, *error):
        distributed.leave_if_lost(error[1])
        self.stop.__exit__(*error)
        self.bar.__exit__(*error)
        self.writer.close()

    @property
    def steps(self) -> int:
        """Optimiser steps done."""
        return self.here["done"] * self.stage.steps + self.here["step"]

    @property
    def seconds(self) -> float:
        return self.here["seconds"] + time.monotonic() - self._started

    def train(self) -> tuple[dict, dict]:
        """Metrics of the held-out problems before and after."""
        if not self.here["before"]:
            self._measure("before", 0)
        while self.here["owed"] or self.here["done"] < self.stage.units:
            if self.here["owed"]:
                self._settle()
            else:
                self._act(self._unit())
        self._insist()
        return self.here["before"], self._measure("after", self.stage.units)

    # ---- a unit

    def _unit(self) -> list[Finding]:
        """Makes the next unit, or goes on with the one that was begun; what the watch has found."""
        index, found = self.here["done"], []
        self.bar.note("training")
        made = self.work or self.stage.collect(self.state, index, self.here["position"])
        with self.stop.busy():
            self.work = made
        for k in range(self.here["step"], self.stage.steps):
            with self.stop.busy():
                row = self._step(index, k)
                if k + 1 == self.stage.steps and self.stage.unit == "rollout":
                    found = self.watch.look(row)
            self.guard.stop_after_too_many(row)
            distributed.pulse()
        self.bar.update(index + 1, row)
        return found

    def _step(self, index: int, k: int) -> dict:
        self.state, made, row, batch, rows = self.stage.step(self.state, self.work, index, k)
        row = {self.stage.unit: index, **self.guard.check(row, batch, rows)}
        self.writer.write(row)
        if k + 1 < self.stage.steps:
            self.work, self.here = made, self.here | {"step": k + 1}
            return row
        shown = [{self.stage.unit: index, "kind": "train", **s} for s in made.samples]
        self.writer.write_rollouts(shown)
        after = {"done": index + 1, "step": 0, "position": made.position, "owed": True}
        self.work, self.here = None, self.here | after
        return row

    def _settle(self) -> None:
        """Evaluates and saves after a unit, where that is due."""
        done, c = self.here["done"], self.run.config
        best = self.here["best"]
        if _due(c.eval.every, done, self.stage.units):
            found = self._measure("during", done - 1)[BEST]
            if c.checkpoint.keep_best and (best is None or found > best["accuracy"]):
                best = {"step": self.steps, "accuracy": found}
        last = done == self.stage.units
        with self.stop.busy():
            save = best != self.here["best"] or last
            self.here = self.here | {"owed": False, "best": best}
            self.checkpoints.best = best and best["step"]
            if save or _due(c.checkpoint.every, done, self.stage.units):
                self._save()

    def _measure(self, kind: str, index: int) -> dict:
        self.bar.note("evaluating")
        found, rows = evaluate.held_out(self.run, self.state.params, self.verifier)
        row = {self.stage.unit: index, "step": self.steps, "kind": kind, **found}
        with self.stop.busy():
            self.writer.write(row)
            if kind != "during":
                shown = [{self.stage.unit: index, "kind": kind, **r} for r in rows]
                self.writer.write_rollouts(shown)
            if kind == "before":
                self.here = self.here | {"before": found}
        self.bar.update(self.here["done"], row)
        return found

    # ---- when learning has collapsed

    def _act(self, found: list[Finding]) -> None:
        """As config.watch.action says."""
        for f in found:
            progress.warn(f"rollout {f.rollout} on, step {f.step}: {f.name}: {f.sentence}")
        settings = self.run.config.watch
        if not found or settings.action == "warn":
            return
        f, many = found[0], self.here["rollbacks"] >= settings.max_rollbacks
        if settings.action == "stop" or many:
            told = f" after {self.here['rollbacks']} rollbacks" if self.here["rollbacks"] else ""
            raise UserError(
                f"step {f.step}: stopped{told} by config.watch: {f.name}, {f.sentence}; see the"
                " curves in report.html; config.watch.action = 'warn' goes on from the checkpoint"
            )
        with self.stop.busy():
            self._roll_back(f)

    def _roll_back(self, f: Finding) -> None:
        """To the newest checkpoint from before the collapse; the data goes on where it was."""
        kept = {k: self.here[k] for k in ("position", "rollbacks", "seconds")}
        self.checkpoints.wait()
        if not self._restore(most=f.rollout * self.stage.steps):
            raise UserError(
                f"step {f.step}: {f.name}, {f.sentence}; config.watch.action is 'rollback', but no"
                " checkpoint from before it is kept: raise config.checkpoint.keep"
            )
        self.checkpoints.forget_after(self.steps)
        self.here = self.here | kept | {"rollbacks": kept["rollbacks"] + 1}
        self.writer.close()
        for name in ("metrics", "rollouts"):
            old = self.run.workdir / f"{name}.jsonl"
            _try(shutil.copy, old, old.with_name(f"{name}.before_rollback_{f.step}.jsonl"))
        self._open()
        told = f"rolled back from step {f.step} to {self.steps}: {f.name}, {f.sentence}"
        progress.warn(told)
        row = {"step": self.steps, "kind": "rollback", "told": told}
        self.writer.write({self.stage.unit: self.here["done"], **row})

    # ---- files

    def _save(self) -> None:
        saved = {
            "here": self.here | {"seconds": self.seconds},
            "guard": dict(self.guard.state),
            "watch": dict(self.watch.state),
            "work": work.encode(self.work),
            "config": config_lib.to_dict(self.run.config),
            "versions": versions(),
        }
        self.checkpoints.save(self.steps, self.state, saved)

    def _restore(self, most: int | None = None) -> bool:
        restored = self.checkpoints.restore(self.state, most)
        if restored is None:
            return False
        self.state, saved = restored
        try:
            self.here, self.work = saved["here"], work.decode(saved["work"])
            self.guard.state, self.watch.state = saved["guard"], saved["watch"]
            self.checkpoints.best = self.here["best"] and self.here["best"]["step"]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"{self.run.workdir / 'checkpoints'} was not written by this version ({error!r}):"
                " go on with the version in its run.json, or start again in another --workdir"
            ) from error
        changed = config_lib.difference(saved["versions"], versions())
        if changed:
            progress.warn(f"the last bits of numbers may differ from before: {'; '.join(changed)}")
        return True

    def _open(self) -> None:
        """The files of metrics, less what is not in the state and will be written again."""
        tensorboard = self.run.config.log.tensorboard
        kept = (lambda row: False) if self._new else self._holds
        if distributed.is_first():
            self.writer = MetricsWriter(self.run.workdir, tensorboard, kept)
        else:
            self.writer = NoWriter()
        self._new = False
        _try(jsonl.drop_lines, self.run.workdir / guard.SPIKES_FILE, kept)

    def _holds(self, row: dict) -> bool:
        """True for a row of metrics or rollouts that the state includes."""
        kind, step = row.get("kind"), row.get("step", 0)
        if kind in ("before", "after"):
            return kind == "before" and self.here["before"] is not None
        if kind == "train":
            return row.get(self.stage.unit, 0) < self.here["done"]
        return step <= self.steps and not (
            kind == "during" and self.here["owed"] and step == self.steps
        )

    def _insist(self) -> None:
        """UserError when the last checkpoint cannot be written."""
        self.checkpoints.wait()
        if self.checkpoints.newest() != self.steps:
            self._save()
            self.checkpoints.wait()
        if self.checkpoints.newest() != self.steps:
            raise UserError(
                f"the checkpoint after the last step could not be saved in {self.run.workdir}: mend"
                f" that; the same command goes on from checkpoint {self.checkpoints.newest()}"
            )

    def _leave(self) -> str:
        """Saves what is done, before the process ends; says what it is."""
        self._save()
        self.checkpoints.wait()
        self.writer.close()
        if self.checkpoints.newest() == self.steps:
            return f"saved after {self.steps} optimiser steps"
        return f"not saved; the last checkpoint is of {self.checkpoints.newest()} optimiser steps"


def _try(write: Callable, *args, **kwargs) -> None:
    """The first process calls it; that a file cannot be written is said, and stops nothing."""
    if not distributed.is_first():
        return
    try:
        write(*args, **kwargs)
    except OSError as error:
        progress.warn(f"{error.filename or args[0]} cannot be written: {error.strerror}")
    except UserError as error:
        progress.warn(str(error))


def _due(every: int, done: int, units: int) -> bool:
    """True after every `every` units but the last; 0 = never."""
    return bool(every) and done % every == 0 and done < units


def _both(name, before, after) -> dict:
    return {"before": before[name], "after": after[name]}


def _summary(run: Run) -> dict | None:
    """Of a run that has ended."""
    file = run.workdir / "summary.json"
    return workdir.read(file) if file.exists() else None


def _finish(run: Run, summary: dict) -> dict:
    if distributed.is_first():
        print(f"report: {run.workdir / 'report.html'}")
        print(json.dumps(summary))
    return summary


def _size(params) -> int:
    return sum(x.size for x in jax.tree.leaves(params))


def _devices(run: Run) -> str:
    return f"{run.mesh.size} x {run.mesh.devices.flat[0].device_kind}"
