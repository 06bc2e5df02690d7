"""The frame that both stages of training share: resume, log, evaluate, save, report.

A stage gives `advance(state, index, position) -> Advanced`: one rollout with its optimiser steps,
or one supervised step. Everything random in it follows from (seed, index, position).
"""

import json
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from cpgd_jax import evaluate, workdir
from cpgd_jax.checkpoint import Checkpointer
from cpgd_jax.errors import UserError
from cpgd_jax.metrics import MetricsWriter, Progress
from cpgd_jax.report import write_facts, write_report
from cpgd_jax.run import Run
from cpgd_jax.types import TrainState

SHOWN_ROLLOUTS = 16  # held-out responses written before and after


class Advanced(NamedTuple):
    state: TrainState
    rows: list[dict]  # metrics, one an optimiser step
    samples: list[dict]  # responses for rollouts.jsonl
    position: int  # of the data stream, after what was read


def run_loop(run: Run, state: TrainState, verifier, unit: str, units: int, advance: Callable):
    """Trains for `units` rollouts or steps, from the newest checkpoint if there is one.

    Returns the summary that `train` prints: {held_out: {before, after}, steps, seconds}. A run that
    is complete is left as it is.
    """
    started, config = time.monotonic(), run.config
    with Checkpointer(run.workdir, config.checkpoint.keep) as checkpoints:
        restored = checkpoints.restore(state)
        state, progress = restored or (state, {"done": 0, "position": 0, "seconds": 0.0})
        first, position, before = progress["done"], progress["position"], progress.get("before")
        if first == units and (run.workdir / "summary.json").exists():
            return _finish(run, workdir.read(run.workdir / "summary.json"))
        # Rows of steps are numbered from 1, those of rollouts from 0; the first `first` are kept.
        keep = first + 1 if first and unit == "step" else first
        write_facts(run.workdir, parameters=_size(state.params), devices=_devices(run))
        with (
            MetricsWriter(run.workdir, config.log.tensorboard, keep, key=unit) as writer,
            Progress(units, unit, start=first) as bar,
        ):

            def measure(kind, index, done):
                bar.note("evaluating")
                found, rows = evaluate.held_out(run, state.params, verifier)
                row = {unit: index, "step": int(state.step), "kind": kind, **found}
                writer.write(row)
                if kind != "during":
                    shown = rows[:SHOWN_ROLLOUTS]
                    writer.write_rollouts([{unit: index, "kind": kind, **r} for r in shown])
                bar.update(done, row)
                return found

            before = before or measure("before", 0, 0)
            for index in range(first, units):
                bar.note("training")
                state, rows, samples, position = advance(state, index, position)
                done = index + 1
                for row in rows:
                    writer.write({unit: index, **row})
                    _stop_unless_finite(unit, index, row)
                writer.write_rollouts([{unit: index, "kind": "train", **s} for s in samples])
                bar.update(done, rows[-1])
                if _due(config.eval.every, done, units):
                    measure("during", index, done)
                if _due(config.checkpoint.every, done, units) or done == units:
                    seconds = progress["seconds"] + time.monotonic() - started
                    here = {"done": done, "position": position, "seconds": seconds}
                    checkpoints.save(done, state, here | {"before": before})
            after = measure("after", units, units)
    summary = {
        "held_out": _both("eval/greedy_accuracy", before, after),
        "held_out_mean": _both("eval/mean_accuracy", before, after),
        "steps": int(state.step),
        "seconds": round(progress["seconds"] + time.monotonic() - started, 1),
    }
    evaluate.show(f"held-out, {unit} {units}", {"before": before, "after": after})
    workdir.write_json(run.workdir / "summary.json", summary)
    write_report(run.workdir)
    return _finish(run, summary)


def _stop_unless_finite(unit: str, index: int, row: dict) -> None:
    """A step whose gradient is not finite has spoilt the parameters: they are not saved."""
    if not math.isfinite(row["grad_norm"]):
        raise UserError(
            f"{unit} {index}, step {row['step']}: the gradient norm is {row['grad_norm']}, training"
            " stops and keeps the last checkpoint: lower config.optim.lr, or look at the last rows"
            " of metrics.jsonl"
        )


def _due(every: int, done: int, units: int) -> bool:
    """True after every `every` units but the last; 0 = never."""
    return bool(every) and done % every == 0 and done < units


def _both(name, before, after) -> dict:
    return {"before": before[name], "after": after[name]}


def _finish(run: Run, summary: dict) -> dict:
    print(f"report: {run.workdir / 'report.html'}")
    print(json.dumps(summary))
    return summary


def _size(params) -> int:
    return sum(x.size for x in jax.tree.leaves(params))


def _devices(run: Run) -> str:
    return f"{run.mesh.size} x {run.mesh.devices.flat[0].device_kind}"
