"""Metrics of a run: metrics.jsonl, rollouts.jsonl and TensorBoard events, with warnings that cannot be missed.

One JSON object a line, flushed at once, always valid JSON: a value that is not finite is written as
null and warned about. Opening the files for a resumed run first drops the lines that the run is about
to write again, and the half line that a killed process may have left.
"""

import json
import math
import os
from pathlib import Path

from cpgd_jax import progress
from cpgd_jax.progress import Progress, table  # noqa: F401  (the trainer's one import)

# Every optimiser step of reinforcement learning reports at least these.
REQUIRED_METRICS = (
    "step",  # optimiser steps done
    "rollout",  # index of the rollout that the step trained on, from 0
    "reward/mean",
    "reward/accuracy",  # share of right answers
    "reward/format",  # share of well-formed responses
    "reward/timeouts",  # verifications that ran out of time
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
    "lr",
    "rollout/logp_gap_mean",  # |sampler - trainer|, nats a token
    "rollout/logp_gap_max",
    "time/rollout_s",
    "time/train_s",
    "rollout/tokens_per_s",
    "train/tokens_per_s",
)
# A supervised step reports at least these.
REQUIRED_SUPERVISED = ("step", "loss/nll", "grad_norm", "lr")

METRICS_FILE, ROLLOUTS_FILE = "metrics.jsonl", "rollouts.jsonl"


class MetricsWriter:
    """Appends to DIR/metrics.jsonl, DIR/rollouts.jsonl and, if asked, DIR/tensorboard/."""

    def __init__(self, workdir, tensorboard=True, resume_from=None, key="rollout"):
        """`resume_from` r: the lines whose `key` is r or more are dropped first; None keeps all."""
        self.workdir = Path(workdir)
        self.workdir.mkdir(parents=True, exist_ok=True)
        self._files = {}
        for name in (METRICS_FILE, ROLLOUTS_FILE):
            path = self.workdir / name
            drop_lines(path, key, resume_from)
            self._files[name] = open(path, "ab", buffering=0)
        self._events = _Events(self.workdir / "tensorboard") if tensorboard else None
        self._alarms = Alarms()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for file in self._files.values():
            file.close()
        if self._events:
            self._events.close()

    def write(self, row: dict):
        """One line of numbers: an optimiser step, or an evaluation."""
        row = {k: plain(v) for k, v in row.items()}
        self._alarms.check(row)
        row = finite(row)
        self._files[METRICS_FILE].write(encode(row))
        if self._events:
            self._events.add(row)

    def write_rollouts(self, rows: list[dict]):
        """Sample responses: rollout, kind (train, before, after), prompt, response, gold, rewards…"""
        for row in rows:
            row = finite({k: plain(v) for k, v in row.items()})
            self._files[ROLLOUTS_FILE].write(encode(row))


# ------------------------------------------------------------------------------- lines


def plain(value):
    """NumPy and JAX scalars as Python's own; anything else as it is."""
    return value.item() if hasattr(value, "item") else value


def finite(row: dict) -> dict:
    """JSON has no NaN or infinity: null stands for them."""
    return {k: None if is_bad(v) else v for k, v in row.items()}


def is_bad(value) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def encode(row: dict) -> bytes:
    """One line of UTF-8; a lone surrogate becomes its JSON escape."""
    text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def decode(line: bytes) -> dict | None:
    """None for a line that is not a JSON object."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def read_lines(path) -> list[dict]:
    """The rows of a JSON-lines file; what is not a JSON object is passed over."""
    path = Path(path)
    if not path.exists():
        return []
    with open(path, "rb") as file:
        return [row for row in map(decode, file) if row is not None]


def drop_lines(path, key, first):
    """Removes, atomically, a torn last line and (unless `first` is None) rows whose `key` >= `first`."""
    path = Path(path)
    if not path.exists():
        return
    temp = path.with_name(path.name + ".tmp")
    with open(path, "rb") as source, open(temp, "wb") as target:
        for line in source:
            if _kept(line, key, first):
                target.write(line.removesuffix(b"\n") + b"\n")
        target.flush()
        os.fsync(target.fileno())
    os.replace(temp, path)


def _kept(line: bytes, key, first) -> bool:
    row = decode(line)
    if row is None:
        return line.endswith(b"\n")  # without its newline it is the torn last line
    position = row.get(key)
    return first is None or not isinstance(position, int | float) or position < first


# ------------------------------------------------------------------------------- warnings


def alarms_of(row: dict) -> list[tuple[str, str]]:
    """(name, sentence) for everything in one row of metrics that a person should know at once."""
    where = " ".join(f"{k} {row[k]}" for k in ("rollout", "step") if row.get(k) is not None)
    found = [(k, f"{where}: {k} is not finite ({v})") for k, v in row.items() if is_bad(v)]
    if row.get("response/truncated_frac") == 1:
        found.append(("truncated", f"{where}: every response is truncated"))
    if row.get("group/zero_std_frac") == 1:
        found.append(("no signal", f"{where}: every group has equal rewards: no signal"))
    return found


class Alarms:
    """Prints each alarm once a name; a loss or gradient norm again at its 10th, 100th… time."""

    def __init__(self):
        self._count = {}

    def check(self, row: dict):
        for name, sentence in alarms_of(row):
            count = self._count[name] = self._count.get(name, 0) + 1
            if count == 1 or (name.startswith(("loss", "grad_norm")) and _power_of_ten(count)):
                progress.warn(sentence if count == 1 else f"{sentence}, {count} times so far")


def _power_of_ten(count: int) -> bool:
    return str(count).rstrip("0") == "1"


# ------------------------------------------------------------------------------- TensorBoard


class _Events:
    """Scalar events through the `tensorboard` package alone (no TensorFlow)."""

    def __init__(self, folder):
        from tensorboard.summary import Writer

        self._writer = Writer(str(folder))

    def add(self, row: dict):
        for name, value in row.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(name, value, row.get("step", 0))

    def close(self):
        self._writer.close()
