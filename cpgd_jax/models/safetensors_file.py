"""safetensors files written a tensor at a time; the package's own `save_file` wants all at once."""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path

import ml_dtypes
import numpy as np

from cpgd_jax.errors import UserError

DTYPES = {  # the name in the file, NumPy's type
    "float32": ("F32", np.float32),
    "bfloat16": ("BF16", ml_dtypes.bfloat16),
    "float16": ("F16", np.float16),
}


def nbytes(shape: tuple[int, ...], dtype: str) -> int:
    return np.dtype(DTYPES[dtype][1]).itemsize * math.prod(shape)


def cast(name: str, array: np.ndarray, dtype: str) -> np.ndarray:
    """Rounded to nearest. UserError if a finite value is beyond what the dtype holds."""
    with np.errstate(over="ignore"):
        rounded = array.astype(DTYPES[dtype][1], copy=False)
    lost = np.isfinite(array) & ~np.isfinite(rounded) if dtype != "float32" else np.False_
    if lost.any():
        value = array[lost][0]
        raise UserError(f"{name} holds {value:.4g}, which {dtype} can't: choose another dtype")
    return rounded


def write(path: Path, shapes: dict[str, tuple], dtype: str, tensors: Iterable[np.ndarray]) -> None:
    """The header's length in 8 bytes, the header in JSON, then the tensors, in the order of shapes.

    tensors: of `dtype`; taken one by one. OSError when the disk is full.
    """
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, shape in shapes.items():
        start, end = end, end + nbytes(shape, dtype)
        header[name] = {"dtype": DTYPES[dtype][0], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the data is aligned
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for (name, shape), array in zip(shapes.items(), tensors, strict=True):
            assert (array.shape, array.dtype) == (shape, DTYPES[dtype][1]), name
            file.write(array.reshape(-1).view(np.uint8))
        file.flush()
        os.fsync(file.fileno())  # a full disk behind a network may say so only now
