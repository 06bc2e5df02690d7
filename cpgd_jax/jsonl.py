"""JSON lines: one object a line, written whole, always valid JSON, read with tolerance."""

import json
import math
import os
from pathlib import Path


class Appender:
    """A JSON-lines file that is only ever appended to, a whole line at a time."""

    def __init__(self, path, key, first):
        drop_lines(path, key, first)
        self._file = open(path, "ab")  # noqa: SIM115

    def append(self, row: dict):
        self._file.write(encode(row))
        self._file.flush()

    def close(self):
        self._file.close()


def plain(value):
    """A NumPy or JAX scalar or array as Python's own; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_bad(value) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def finite(value):
    """JSON has no NaN or infinity: null stands for them, at any depth."""
    if isinstance(value, dict):
        return {str(k): finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [finite(v) for v in value]
    return None if is_bad(value) else value


def encode(row: dict) -> bytes:
    """One line of UTF-8; a lone surrogate becomes its JSON escape, an unknown type its string."""
    text = json.dumps(finite(row), ensure_ascii=False, allow_nan=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def decode(line: bytes) -> dict | None:
    """None for a line that is not a JSON object."""
    try:
        row = json.loads(line, parse_constant=lambda _: None)  # NaN of a foreign file
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def read_lines(path):
    """Yields the rows of a JSON-lines file; what is not a JSON object is passed over."""
    path = Path(path)
    if path.exists():
        with open(path, "rb") as file:
            yield from (row for row in map(decode, file) if row is not None)


def drop_lines(path, key, first):
    """Atomically drops a torn last line and, unless `first` is None, what a run resumed there will
    write again: rows whose `key` is `first` or more, and of kind `after`."""
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
    if first is None:
        return True
    position = row.get(key)
    ended = row.get("kind") == "after"  # the resumed run comes to its own end
    return not ended and not (isinstance(position, int | float) and position >= first)
