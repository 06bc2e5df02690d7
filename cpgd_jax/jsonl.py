"""JSON lines: one object a line, written whole, always valid JSON, read with tolerance."""

import errno
import json
import math
import os
from collections import deque
from pathlib import Path

MAX_WAITING = 100_000  # lines


class Appender:
    """A JSON-lines file that is only ever appended to, a whole line at a time."""

    def __init__(self, path, kept):
        """kept: see `drop_lines`."""
        drop_lines(path, kept)
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        self._waiting = deque(maxlen=MAX_WAITING)

    def append(self, row: dict):
        """OSError while the file cannot be written: the line waits and goes with the next one."""
        self._waiting.append(encode(row))
        while self._waiting:
            write_whole(self._file, self._waiting[0])
            self._waiting.popleft()

    def close(self) -> int:
        """How many lines have never been written."""
        self._file.close()
        return len(self._waiting)


def append(path, row: dict) -> None:
    """Appends one line. OSError."""
    with open(path, "ab", buffering=0) as file:
        write_whole(file, encode(row))


def write_whole(file, line: bytes) -> None:
    """Appends all of the line to an unbuffered file or, OSError, none of it."""
    end = os.fstat(file.fileno()).st_size
    written = file.write(line)
    if written < len(line):
        os.ftruncate(file.fileno(), end)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file.name)


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


def drop_lines(path, kept=None):
    """Atomically drops a torn last line and the rows that a resumed run will write again: those of
    which `kept(row)` is False; None keeps all. OSError."""
    path = Path(path)
    if not path.exists():
        return
    temp = path.with_name(path.name + ".tmp")
    with open(path, "rb") as source, open(temp, "wb") as target:
        for line in source:
            if _kept(line, kept):
                target.write(line.removesuffix(b"\n") + b"\n")
        target.flush()
        os.fsync(target.fileno())
    os.replace(temp, path)


def _kept(line: bytes, kept) -> bool:
    row = decode(line)
    if row is None:
        return line.endswith(b"\n")  # without its newline it is the torn last line
    return kept is None or bool(kept(row))
