"""What an optimiser works on, between the rollout that made it and the last step that uses it."""

import base64
import dataclasses
import io
from typing import NamedTuple

import numpy as np

from cpgd_jax import types
from cpgd_jax.types import Example, TrainBatch

RECORDS = {  # by name: the records that a batch may hold
    name: kind
    for name, kind in vars(types).items()
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"))
}


class Work(NamedTuple):
    """A rollout, or the demonstrations of a supervised step, on the host."""

    batch: TrainBatch
    shared: dict  # metrics that each of its optimiser steps reports
    samples: list[dict]  # responses for rollouts.jsonl
    position: int  # of the data stream, after what was read
    examples: tuple[Example, ...] = ()  # Q, where their prompts have images
    seen: tuple = ()  # Q, of `types.Seen` or None; not kept in a checkpoint


def encode(work: Work | None) -> dict | None:
    """As JSON, for a checkpoint between two optimiser steps of one rollout."""
    if work is None:
        return None
    arrays, stream = {}, io.BytesIO()
    shape = _take_apart(work.batch, arrays)
    np.savez(stream, **{str(i): x for i, x in arrays.values()})
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return work._replace(batch={"shape": shape, "arrays": data}, seen=())._asdict()


def decode(value: dict | None) -> Work | None:
    """`encode` undone. ValueError: it holds anything but plain arrays and our own records."""
    if value is None:
        return None
    stream = io.BytesIO(base64.b64decode(value["batch"]["arrays"]))
    with np.load(stream, allow_pickle=False) as file:
        arrays = dict(file)
    examples = (Example(*rest, images=tuple(images)) for *rest, images in value["examples"])
    batch = _put_together(value["batch"]["shape"], arrays)
    return Work(**value | {"batch": batch, "examples": tuple(examples), "seen": ()})


def _take_apart(x, arrays: dict):
    """JSON in which a number stands for an array; `arrays`: id -> (number, array), each once."""
    if x is None:
        return None
    if isinstance(x, np.ndarray):
        return arrays.setdefault(id(x), (len(arrays), x))[0]
    if isinstance(x, int | float | str | np.generic):
        return {"value": getattr(x, "tolist", lambda: x)()}
    if type(x).__name__ in RECORDS:
        names = getattr(x, "_fields", None) or [f.name for f in dataclasses.fields(x)]
        fields = {name: _take_apart(getattr(x, name), arrays) for name in names}
        return {"record": type(x).__name__, "fields": fields}
    return [_take_apart(item, arrays) for item in x]


def _put_together(shape, arrays: dict):
    if shape is None:
        return None
    if isinstance(shape, int):
        return arrays[str(shape)]
    if isinstance(shape, dict):
        if "value" in shape:
            return shape["value"]
        if shape["record"] not in RECORDS:
            raise ValueError(f"{shape['record']!r} is no record of a batch")
        fields = {name: _put_together(x, arrays) for name, x in shape["fields"].items()}
        return RECORDS[shape["record"]](**fields)
    return tuple(_put_together(item, arrays) for item in shape)
