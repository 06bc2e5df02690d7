"""What an optimiser works on, between the rollout that made it and the last step that uses it."""

import base64
import io
from typing import NamedTuple

import numpy as np

from cpgd_jax.types import TrainBatch


class Work(NamedTuple):
    """A rollout, or the demonstrations of a supervised step, on the host."""

    batch: TrainBatch
    shared: dict  # metrics that each of its optimiser steps reports
    samples: list[dict]  # responses for rollouts.jsonl
    position: int  # of the data stream, after what was read


def encode(work: Work | None) -> dict | None:
    """As JSON, for a checkpoint between two optimiser steps of one rollout."""
    if work is None:
        return None
    stream = io.BytesIO()
    np.savez(stream, **{k: v for k, v in vars(work.batch).items() if v is not None})
    arrays = base64.b64encode(stream.getvalue()).decode("ascii")
    return work._replace(batch=arrays)._asdict()


def decode(value: dict | None) -> Work | None:
    """`encode` undone. ValueError: it holds anything but plain arrays."""
    if value is None:
        return None
    stream = io.BytesIO(base64.b64decode(value["batch"]))
    with np.load(stream, allow_pickle=False) as arrays:
        return Work(**value | {"batch": TrainBatch(**arrays)})
