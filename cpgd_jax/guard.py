"""What went wrong in an optimiser step: updates that were skipped, spikes and who caused them.

The step itself leaves the parameters alone when something is not finite (`train_step`); here the
batch is kept for inspection, and a run of such steps ends the training with the reason.
"""

import json
import os
import statistics
from pathlib import Path

import numpy as np

from cpgd_jax import distributed, jsonl, packing, progress
from cpgd_jax.config import Guard as Settings
from cpgd_jax.errors import UserError
from cpgd_jax.types import TrainBatch

FOLDER, SPIKES_FILE = "bad_batches", "spikes.jsonl"
WINDOW, FEWEST = 50, 10  # gradient norms that a median is taken of
NAMED = 4  # responses of a spike that are written down


class Guard:
    """Looks at each optimiser step. `state` is what a resumed run goes on from; it is JSON."""

    def __init__(self, workdir: Path, settings: Settings, decode, microbatch_size: int):
        """decode: token ids -> text."""
        self.state = {"skips": 0, "grad_norms": []}
        self._workdir, self._settings = workdir, settings
        self._decode, self._size = decode, microbatch_size

    def check(self, row: dict, batch: TrainBatch, rows: dict) -> dict:
        """`row` of metrics with what was found in it; rows: see `train_step`, of the batch."""
        skipped = bool(row["guard/skipped"])
        self.state["skips"] = self.state["skips"] + 1 if skipped else 0
        spikes = {} if skipped else self._spikes(row)
        if distributed.is_first():
            if skipped:
                self._keep(row, batch)
            for kind, usual in spikes.items():
                self._tell(kind, usual, row, batch, rows)
        return row | {"guard/spikes": float(len(spikes))}

    def stop_after_too_many(self, row: dict) -> None:
        """UserError when so many steps in a row were skipped."""
        if self.state["skips"] >= self._settings.max_skips:
            raise UserError(
                f"step {row['step']}: {self.state['skips']} updates in a row were not finite and"
                f" skipped (gradient norm {row['grad_norm']}): look at {self._workdir / FOLDER},"
                " lower config.optim.lr, or raise config.guard.max_skips; the checkpoints are sound"
            )

    def _spikes(self, row: dict) -> dict:
        """{metric: what it usually is} of those that are far above it."""
        norms, s, found = self.state["grad_norms"], self._settings, {}
        usual = statistics.median(norms) if len(norms) >= FEWEST else np.inf
        if s.grad_spike and row["grad_norm"] > s.grad_spike * usual:
            found["grad_norm"] = usual
        if s.ratio_spike and row.get("ratio/max", 0.0) > s.ratio_spike:
            found["ratio/max"] = 1.0
        self.state["grad_norms"] = [*norms, row["grad_norm"]][-WINDOW:]
        return found

    def _tell(self, kind: str, usual: float, row: dict, batch: TrainBatch, rows: dict) -> None:
        """A line of spikes.jsonl: the responses that had the largest part in it."""
        part_B = _in_order(rows, batch, self._size)
        by = "guard/log_ratio" if kind == "ratio/max" else "guard/push"
        worst = np.argsort(-part_B[by], kind="stable")[:NAMED]
        line = {"step": row["step"], "metric": kind, "value": row[kind], "usual": usual}
        line["responses"] = [self._response(batch, b) | _numbers(part_B, b) for b in worst]
        try:
            jsonl.append(self._workdir / SPIKES_FILE, line)
        except OSError as error:
            progress.warn(f"{SPIKES_FILE} cannot be written: {error.strerror}")

    def _response(self, batch: TrainBatch, b: int) -> dict:
        mask_T = batch.mask_BT[b]
        return {
            "row": int(b),
            "prompt": self._decode(batch.prompt_BS[b][batch.prompt_mask_BS[b]]),
            "response": self._decode(batch.response_BT[b][mask_T]),
            "advantage": float(batch.advantage_BT[b, 0]),
        }

    def _keep(self, row: dict, batch: TrainBatch) -> None:
        """bad_batches/step_N.npz, the arrays of the `TrainBatch`, and step_N.json, the metrics."""
        folder, name = self._workdir / FOLDER, f"step_{row['step']}"
        try:
            folder.mkdir(exist_ok=True)
            others = [file for file in folder.glob("step_*.npz") if file.stem != name]
            if len(others) >= self._settings.keep_batches:
                return
            arrays = {k: v for k, v in vars(batch).items() if v is not None}
            _write(folder / f"{name}.npz", lambda file: np.savez(file, **arrays))
            text = json.dumps(jsonl.finite(row), indent=2).encode()
            _write(folder / f"{name}.json", lambda file: file.write(text))
        except OSError as error:
            progress.warn(f"{folder / name}.npz cannot be written: {error.strerror}")


def _in_order(rows: dict, batch: TrainBatch, size: int) -> dict:
    """Numbers in the order of microbatches -> in that of the batch."""
    order_B = np.concatenate(packing.microbatches(batch, size))
    placed = {}
    for name, value_B in rows.items():
        placed[name] = np.empty_like(value_B)
        placed[name][order_B] = value_B
    return placed


def _numbers(part_B: dict, b: int) -> dict:
    return {name.removeprefix("guard/"): float(x[b]) for name, x in part_B.items()}


def _write(file: Path, fill) -> None:
    """Whole or not at all."""
    part = file.with_name(file.name + ".part")
    with open(part, "wb") as stream:
        fill(stream)
    os.replace(part, file)
