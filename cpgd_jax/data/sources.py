"""Where problems come from. A source is pure: what it gives depends on its arguments only."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol

import numpy as np

from cpgd_jax.config import Data
from cpgd_jax.data.arithmetic import ArithmeticSource
from cpgd_jax.errors import UserError
from cpgd_jax.types import Example

WORKED = "\n####"  # between a worked solution and its result, as in GSM8K


class Source(Protocol):
    def train(self, position: int) -> Example: ...

    def held_out(self, count: int) -> list[Example]: ...

    def longest(self) -> Iterable[Example]:
        """Training examples among which are the longest prompt and the longest demonstration."""


def load(config: Data, seed: int) -> Source:
    """The source that `config.data` names."""
    if config.source == "arithmetic":
        return ArithmeticSource(config.arithmetic, seed)
    return JsonlSource(
        read_jsonl(config.path, "config.data.path"),
        read_jsonl(config.held_out_path, "config.data.held_out_path"),
        seed,
    )


@dataclass(frozen=True)
class JsonlSource:
    """Rows {question, answer}; the training stream is a new permutation every epoch."""

    rows: tuple[Example, ...]
    held_out_rows: tuple[Example, ...]
    seed: int

    def train(self, position: int) -> Example:
        epoch, offset = divmod(position, len(self.rows))
        return self.rows[_permutation(len(self.rows), self.seed, epoch)[offset]]

    def held_out(self, count: int) -> list[Example]:
        """The first `count` rows, or all of them if there are fewer."""
        return list(self.held_out_rows[:count])

    def longest(self) -> tuple[Example, ...]:
        return self.rows


@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)


def read_jsonl(path: str, name: str, fields=("question", "answer")) -> tuple[Example, ...]:
    """Examples of a JSONL file; `name` is the key or flag to blame. UserError: the line.

    fields: text that each row must have; without "answer" the gold is "".
    """
    if not path or not Path(path).is_file():
        raise UserError(f"{name} is {path!r}: no such file")
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name} {path!r} cannot be read: {error}") from error
    rows = tuple(
        _row(line, f"{path}:{n}", fields) for n, line in enumerate(lines, 1) if line.strip()
    )
    if not rows:
        raise UserError(f"{name} {path!r} holds no rows")
    return rows


def _row(line: str, where: str, fields) -> Example:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error.msg})") from error
    for field in fields:
        if not isinstance(row, dict) or not isinstance(row.get(field), str):
            raise UserError(f"{where}: needs a text field {field!r}")
    gold = row["answer"].rsplit(WORKED, 1)[-1].strip() if "answer" in fields else ""
    return Example(id=str(row.get("id", where)), prompt=row["question"], gold=gold)
