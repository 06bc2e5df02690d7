"""Metrics of a run: metrics.jsonl, rollouts.jsonl, TensorBoard events, and loud warnings.

One JSON object a line, flushed at once, always valid JSON: a value that is not finite is written
as null and warned about. A file that cannot be written stops nothing: its lines wait. Opening the
files for a resumed run first drops the lines that the run will write again, and the half line that
a killed process may have left.
"""

import time
from collections import Counter
from pathlib import Path

from cpgd_jax import jsonl, progress
from cpgd_jax.errors import UserError
from cpgd_jax.progress import Progress, table  # noqa: F401  (the trainer's one import)

# Every optimiser step of reinforcement learning reports at least these.
REQUIRED_METRICS = (
    "step",  # optimiser steps done
    "rollout",  # index of the rollout that the step trained on, from 0
    "reward/mean",
    "reward/accuracy",  # share of right answers
    "reward/format",  # share of well-formed responses
    "reward/timeouts",  # verifications that ran out of time
    "reward/errors",  # verifications that raised, or whose process died
    "loss/policy",
    "loss/drift",
    "kl/old",  # nats a token
    "ratio/max",  # pi / pi_old
    "ratio/clip_frac_low",  # share of tokens
    "ratio/clip_frac_high",
    "response/length_mean",  # tokens
    "response/truncated_frac",  # share of responses
    "group/zero_std_frac",  # share of prompts whose rewards are all equal
    "entropy",  # nats a token
    "grad_norm",  # before clipping
    "guard/skipped",  # 1: loss or gradient was not finite, and nothing was updated
    "guard/spikes",  # of gradient norm and ratio; their responses are in spikes.jsonl
    "lr",
    "old/rescored",  # 1: `old` is the trainer's, 0: the sampler's own
    "rollout/logp_gap_mean",  # |sampler - trainer|, nats a token
    "rollout/logp_gap_max",
    "time/rollout_s",
    "time/train_s",
    "rollout/tokens_per_s",
    "train/tokens_per_s",
    "train/mfu",  # model FLOPs a second over those of matrix products of the model's sizes
)
# A supervised step reports at least these.
REQUIRED_SUPERVISED = (
    "step",
    "loss/nll",
    "grad_norm",
    "lr",
    "guard/skipped",
    "guard/spikes",
)

METRICS_FILE, ROLLOUTS_FILE = "metrics.jsonl", "rollouts.jsonl"


class MetricsWriter:
    """Appends to DIR/metrics.jsonl, DIR/rollouts.jsonl and, if asked, DIR/tensorboard/."""

    def __init__(self, workdir, tensorboard=True, kept=None):
        """kept(row) False: a line that an earlier process wrote and this one will write again; it
        is dropped first. None keeps all. UserError: the folder cannot be written."""
        workdir = Path(workdir)
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            self._metrics = jsonl.Appender(workdir / METRICS_FILE, kept)
            self._rollouts = jsonl.Appender(workdir / ROLLOUTS_FILE, kept)
            self._events = _Events(workdir / "tensorboard") if tensorboard else None
        except OSError as error:
            raise UserError(f"cannot write in {workdir}: {error.strerror}") from error
        if self._events and kept is not None:
            steps = [row.get("step") for row in jsonl.read_lines(workdir / METRICS_FILE)]
            self._events.forget_from(1 + max((s for s in steps if s is not None), default=-1))
        self._alarms = Alarms()
        self._failures = Counter()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for name, part in ((METRICS_FILE, self._metrics), (ROLLOUTS_FILE, self._rollouts)):
            if lost := part.close():
                progress.warn(f"{name}: {lost} lines could not be written")
        if self._events:
            self._guarded("tensorboard", self._events.close)

    def write(self, row: dict):
        """One line of numbers, an optimiser step or an evaluation; a None is left out."""
        row = {k: jsonl.plain(v) for k, v in row.items() if v is not None}
        self._alarms.check(row)
        self._guarded(METRICS_FILE, self._metrics.append, row)
        if self._events and not self._guarded("tensorboard", self._events.add, row):
            self._events = None

    def write_rollouts(self, rows: list[dict]):
        """Sampled responses, one line each: {rollout, kind: train, before or after, prompt,
        response, gold, accuracy, format, reward, advantage, truncated}."""
        for row in rows:
            row = {k: jsonl.plain(v) for k, v in row.items()}
            self._guarded(ROLLOUTS_FILE, self._rollouts.append, row)

    def _guarded(self, name: str, write, *args) -> bool:
        """False if the file cannot be written: that is told, and training goes on."""
        try:
            write(*args)
        except OSError as error:
            self._failures[name] += 1
            if str(self._failures[name]).strip("0") == "1":  # the 1st, 10th, 100th...
                progress.warn(f"{name} cannot be written ({error.strerror}): training goes on")
            return False
        return True


class NoWriter:
    """A `MetricsWriter` of a process that writes nothing: with several, the first one does."""

    def write(self, row: dict):
        pass

    def write_rollouts(self, rows: list[dict]):
        pass

    def close(self):
        pass


def alarms_of(row: dict) -> list[tuple[str, str]]:
    """(name, sentence) for everything in a row of metrics that a person should know at once.

    Holds for a live row, with NaN, and for one read back, where null stands for it.
    """
    where = " ".join(f"{k} {row[k]}" for k in ("rollout", "step") if row.get(k) is not None)
    found = [
        (k, f"{where}: {k} is {'not finite' if v is None else v}")
        for k, v in row.items()
        if v is None or jsonl.is_bad(v)
    ]
    if row.get("response/truncated_frac") == 1:
        found.append(("truncated", f"{where}: every response is truncated"))
    if row.get("guard/skipped"):
        found.append(("skipped", f"{where}: not finite: the update was skipped, see bad_batches"))
    if row.get("guard/spikes"):
        found.append(
            ("spike", f"{where}: gradient norm or ratio far above the usual: see spikes.jsonl")
        )
    if row.get("kind") == "rollback":
        found.append((f"rollback {where}", str(row.get("told"))))
    if row.get("group/zero_std_frac") == 1:
        found.append(("no signal", f"{where}: every group has equal rewards: no signal"))
    return found


class Alarms:
    """Prints an alarm once a name; a loss or gradient norm again at its 10th, 100th… time."""

    def __init__(self):
        self._count = Counter()

    def check(self, row: dict):
        for name, sentence in alarms_of(row):
            self._count[name] += 1
            count = self._count[name]
            if count == 1:
                progress.warn(sentence)
            elif name.startswith(("loss/", "grad_norm")) and str(count).strip("0") == "1":
                progress.warn(f"{sentence}, {count} times so far")


class _Events:
    """Scalar events through the `tensorboard` package alone (no TensorFlow)."""

    def __init__(self, folder):
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._writer = EventFileWriter(str(folder), flush_secs=10)

    def forget_from(self, step: int):
        """Has TensorBoard drop what an earlier process wrote at `step` and after."""
        start = self._event.SessionLog(status=self._event.SessionLog.START)
        self._emit(step, session_log=start)

    def add(self, row: dict):
        values = [
            self._summary.Summary.Value(tag=name, simple_value=value)
            for name, value in row.items()
            if isinstance(value, int | float) and name != "step"
        ]
        self._emit(row.get("step", 0), summary=self._summary.Summary(value=values))

    def _emit(self, step, **what):
        self._writer.add_event(self._event.Event(wall_time=time.time(), step=int(step), **what))

    def close(self):
        self._writer.close()
