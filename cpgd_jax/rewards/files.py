"""Scored files: JSON lines in, the same rows with verdicts out, written whole or not at all."""

import codecs
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from cpgd_jax import jsonl
from cpgd_jax.errors import UserError
from cpgd_jax.rewards.rules import Score

_FIELDS = ("response", "gold")


def read_rows(path: str) -> list[dict]:
    """The rows of a JSON-lines file, each with text in `response` and `gold`. Raises UserError."""
    try:
        with open(path, "rb") as file:
            lines = file.read().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise UserError(f"cannot read --input={path}: {error.strerror}") from error
    rows = [_row(line, f"{path}:{n}") for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UserError(f"{path} has no rows; each line is to be {{response, gold}}")
    return rows


def _row(line: bytes, place: str) -> dict:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is not JSON: {error}; each line is one object") from error
    if not isinstance(row, dict):
        raise UserError(f"{place} is {type(row).__name__}, not an object with response and gold")
    for field in _FIELDS:
        if field not in row:
            raise UserError(f"{place} has no field {field!r}; it has {', '.join(sorted(row))}")
        if not isinstance(row[field], str):
            raise UserError(f"{place}: field {field!r} is {row[field]!r:.60}; write it as a string")
    return row


def verdict(score: Score) -> dict:
    """The fields that a verdict adds to its row."""
    return {
        "accuracy": score.accuracy,
        "format": score.format,
        "total": score.total,
        "extracted": score.extracted,
        "reason": score.reason,
        "seconds": round(score.seconds, 6),
        **({"extra": dict(score.extra)} if score.extra else {}),
    }


def check_output(path: str) -> None:
    """Raises UserError if no file can be written there; touches nothing that exists."""
    target = Path(path)
    if target.is_dir():
        raise UserError(f"--output={path} is a folder; name a file")
    if not target.parent.is_dir():
        raise UserError(
            f"--output={path}: the folder {target.parent} does not exist; make it first"
        )
    if not os.access(target.parent, os.W_OK):
        raise UserError(f"--output={path}: the folder {target.parent} cannot be written to")


def write_rows(path: str, rows: list[dict], scores: Iterable[Score]) -> Iterator[Score]:
    """Writes each row with its verdict, yielding it; the file appears when all rows are in it."""
    temporary = Path(f"{path}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            for row, score in zip(rows, scores, strict=True):
                file.write(jsonl.encode({**row, **verdict(score)}))
                yield score
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"cannot write --output={path}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
