"""The frame that both stages of training share: resume, log, evaluate, save, report.

A stage gives `advance(state, index, position) -> Advanced`: one rollout with its optimiser steps, or
one supervised step. Everything random in it follows from (seed, index, position).
"""

import json
import time
from collections.abc import Callable
from typing import NamedTuple

import jax

from cpgd_jax import evaluate
from cpgd_jax.checkpoint import Checkpointer
from cpgd_jax.metrics import MetricsWriter, Progress
from cpgd_jax.report import write_report
from cpgd_jax.run import Run
from cpgd_jax.types import TrainState
from cpgd_jax.workdir import write_json


class Advanced(NamedTuple):
    state: TrainState
    rows: list[dict]  # metrics, one an optimiser step
    samples: list[dict]  # responses for rollouts.jsonl
    position: int  # of the data stream, after what was read


def run_loop(run: Run, state: TrainState, verifier, unit: str, units: int, advance: Callable):
    """Trains for `units` rollouts or steps, from the newest checkpoint if there is one.

    Returns the summary that `train` prints: {held_out: {before, after}, steps, seconds}.
    """
    started = time.monotonic()
    config = run.config
    with Checkpointer(run.workdir, config.checkpoint.keep) as checkpoints:
        restored = checkpoints.restore(state)
        state, progress = restored or (state, {"done": 0, "position": 0, "seconds": 0.0})
        first, position = progress["done"], progress["position"]
        with (
            MetricsWriter(run.workdir, config.log.tensorboard, first, key=unit) as writer,
            Progress(units, unit, start=first) as bar,
        ):

            def measure(kind, index):
                bar.note("evaluating")
                found, rows = evaluate.held_out(
                    run.graphdef, state.params, run.held_out, run.tokenizer, verifier, config
                )
                row = {unit: index, "step": int(state.step), "kind": kind, **found}
                writer.write(row)
                if kind != "during":
                    writer.write_rollouts([{unit: index, "kind": kind, **r} for r in rows[:16]])
                bar.update(index, row)
                return found

            def save(done):
                seconds = progress["seconds"] + time.monotonic() - started
                checkpoints.save(
                    done,
                    state,
                    {"done": done, "position": position, "before": before, "seconds": seconds},
                )

            before = progress.get("before") or measure("before", 0)
            for index in range(first, units):
                bar.note("training")
                state, rows, samples, position = advance(state, index, position)
                for row in rows:
                    writer.write({unit: index, **row})
                writer.write_rollouts([{unit: index, "kind": "train", **s} for s in samples])
                bar.update(index + 1, rows[-1])
                done, every = index + 1, config.eval.every
                if every and done % every == 0 and done < units:
                    measure("during", index)
                if done % config.checkpoint.every == 0 and done < units:
                    save(done)
            after = measure("after", units)
            if first < units:
                save(units)
    evaluate.show(f"held-out, {unit} {units}", {"before": before, "after": after})
    summary = {
        "held_out": {k: m["eval/greedy_accuracy"] for k, m in (("before", before), ("after", after))},
        "held_out_mean": {k: m["eval/mean_accuracy"] for k, m in (("before", before), ("after", after))},
        "steps": int(jax.device_get(state.step)),
        "seconds": round(progress["seconds"] + time.monotonic() - started, 1),
    }
    write_json(run.workdir / "summary.json", summary)
    print(f"report: {write_report(run.workdir)}")
    print(json.dumps(summary))
    return summary
