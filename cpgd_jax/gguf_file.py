"""GGUF files: metadata and tensors, every length checked against the file's before it is used.

The `gguf` package knows the types and undoes the quantisation. The header is read here: for a
vocabulary of 150,000 the package's own reader takes seconds and half a gigabyte, and on some broken
lengths it does not end.
"""

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Quantisation
from gguf import GGUFValueType as ValueType

from cpgd_jax.errors import UserError

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
SCALARS = {  # of metadata -> NumPy's name, little-endian
    ValueType.UINT8: "<u1",
    ValueType.INT8: "<i1",
    ValueType.UINT16: "<u2",
    ValueType.INT16: "<i2",
    ValueType.UINT32: "<u4",
    ValueType.INT32: "<i4",
    ValueType.FLOAT32: "<f4",
    ValueType.BOOL: "<u1",
    ValueType.UINT64: "<u8",
    ValueType.INT64: "<i8",
    ValueType.FLOAT64: "<f8",
}


class GgufTensor(NamedTuple):
    """One tensor: `shape` in NumPy's order, its type, and its bytes, row by row."""

    shape: tuple[int, ...]
    type: Quantisation
    bytes_RB: np.ndarray

    def read(self, rows: slice) -> np.ndarray:
        """Rows along the first axis, float32."""
        data = np.ascontiguousarray(self.bytes_RB[rows] if len(self.shape) > 1 else self.bytes_RB)
        if self.type == Quantisation.F32:
            values = data.view("<f4")
        elif self.type == Quantisation.F16:
            values = data.view("<f2").astype(np.float32)
        else:
            values = gguf.dequantize(data, self.type)
        return values if len(self.shape) > 1 else values[0, rows]


class Gguf(NamedTuple):
    path: Path
    fields: dict[str, Any]  # metadata; a number, a text, or a list of either
    tensors: dict[str, GgufTensor]


def is_gguf(path) -> bool:
    return Path(path).suffix.lower() == ".gguf"


def read(path) -> Gguf:
    """The metadata, and tensors that stay in the file until they are read.

    UserError, one line: no such file, truncated or broken, or a type of tensor not in `TYPES`.
    """
    path = Path(path)
    try:
        data = np.memmap(path, np.uint8, mode="r")
        fields, tensors = _parse(_Cursor(data))
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is truncated or no GGUF file: {error}") from None
    return Gguf(path, fields, tensors)


class _Cursor:
    """Reads on from `at`; never beyond the end."""

    def __init__(self, data: np.ndarray):
        self.data, self.at = memoryview(data), 0

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise ValueError(f"it ends at byte {len(self.data)}, {size} are wanted at {self.at}")
        self.at += size
        return self.data[self.at - size : self.at]

    def scalars(self, kind: str, count: int) -> list:
        return np.frombuffer(self.take(count * np.dtype(kind).itemsize), kind).tolist()

    def u32(self) -> int:
        return struct.unpack("<I", self.take(4))[0]

    def u64(self) -> int:
        return struct.unpack("<Q", self.take(8))[0]

    def text(self) -> str:
        return str(self.take(self.u64()), "utf-8")

    def value(self):
        kind = ValueType(self.u32())
        if kind == ValueType.STRING:
            return self.text()
        if kind != ValueType.ARRAY:
            return self.scalars(SCALARS[kind], 1)[0]
        kind, count = ValueType(self.u32()), self.u64()
        if kind == ValueType.ARRAY:
            raise ValueError("a list of lists in its metadata")
        if kind == ValueType.STRING:
            return [self.text() for _ in range(count)]
        return self.scalars(SCALARS[kind], count)


def _parse(cursor: _Cursor):
    if cursor.take(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    if (version := cursor.u32()) not in (2, 3):
        raise ValueError(f"version {version} is not supported, only 2 and 3, little-endian")
    num_tensors, num_fields = cursor.u64(), cursor.u64()
    fields = {}
    for _ in range(num_fields):
        key = cursor.text()
        fields[key] = cursor.value()
    headers = [_header(cursor) for _ in range(num_tensors)]
    alignment = fields.get("general.alignment", gguf.GGUF_DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"general.alignment is {alignment!r}")
    start = math.ceil(cursor.at / alignment) * alignment
    return fields, {name: _tensor(cursor, start, name, *rest) for name, *rest in headers}


def _header(cursor: _Cursor):
    name, dims = cursor.text(), cursor.u32()
    if not 1 <= dims <= 4:
        raise ValueError(f"tensor {name} has {dims} dimensions")
    shape = tuple(reversed(cursor.scalars("<u8", dims)))
    return name, shape, cursor.u32(), cursor.u64()


def _tensor(cursor: _Cursor, start, name, shape, number, offset) -> GgufTensor:
    kind = Quantisation(number)
    if kind.name not in TYPES:
        known = ", ".join(TYPES)
        raise UserError(f"tensor {name} is stored as {kind.name}, which is not one of {known}")
    block, size = gguf.GGML_QUANT_SIZES[kind]
    if shape[-1] % block:
        raise ValueError(f"tensor {name}: rows of {shape[-1]} are no whole blocks of {block}")
    row_bytes, rows = shape[-1] // block * size, math.prod(shape[:-1])
    cursor.at = start + offset
    bytes_R = np.frombuffer(cursor.take(rows * row_bytes), np.uint8)
    return GgufTensor(shape, kind, bytes_R.reshape(rows, row_bytes))
