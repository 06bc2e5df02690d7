"""Where problems come from. A source is pure: what it gives depends on its arguments only."""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from cpgd_jax import progress
from cpgd_jax.config import Data
from cpgd_jax.data import array_record, rows
from cpgd_jax.data.arithmetic import ArithmeticSource
from cpgd_jax.types import Example


class Source(Protocol):
    def train(self, position: int) -> Example: ...

    def held_out(self, count: int) -> list[Example]: ...

    def longest(self) -> Iterable[Example]:
        """Training examples among which are the longest prompt and the longest demonstration."""


def load(config: Data, seed: int, process_index: int = 0, process_count: int = 1) -> Source:
    """The source that `config.data` names, or the share of one of several processes of it.

    Files are read and checked whole here, so that no row can fail in the middle of a run.
    """
    if config.source == "arithmetic":
        source = ArithmeticSource(config.arithmetic, seed)
    else:
        train, held_out = (_read(config, key) for key in ("path", "held_out_path"))
        _warn_of_overlap(train, held_out)
        source = FileSource(train, held_out, seed)
    return source if process_count == 1 else Share(source, process_index, process_count)


@dataclass(frozen=True)
class FileSource:
    """Rows of a file; Grain orders the training stream, a new permutation every epoch."""

    rows: tuple[Example, ...]
    held_out_rows: tuple[Example, ...]
    seed: int

    def train(self, position: int) -> Example:
        """The training stream's example number `position`."""
        return self._stream[position]

    def held_out(self, count: int) -> list[Example]:
        """The first `count` rows, or all of them if there are fewer."""
        return list(self.held_out_rows[:count])

    def longest(self) -> tuple[Example, ...]:
        return self.rows

    @functools.cached_property
    def _stream(self):
        import grain  # a second; a generated source does without

        return grain.MapDataset.source(self.rows).seed(self.seed).shuffle().repeat()


@dataclass(frozen=True)
class Share:
    """One process's part of a training stream: every `count`-th example, from `index` on.

    The shares are disjoint and together are the stream, so what is trained on does not depend on
    how many processes read it. Held-out examples are not shared out.
    """

    source: Source
    index: int
    count: int

    def train(self, position: int) -> Example:
        return self.source.train(position * self.count + self.index)

    def held_out(self, count: int) -> list[Example]:
        return self.source.held_out(count)

    def longest(self) -> Iterable[Example]:
        return self.source.longest()


def read_jsonl(
    path: str, name: str, fields: rows.Fields = rows.FIELDS, max_broken: float | None = None
) -> tuple[Example, ...]:
    """Examples of a JSONL file; `name` is the key or flag to blame. UserError: the line.

    max_broken: share of broken rows that may be left out with a warning; None: none may.
    """

    def attempts():
        for number, line in rows.lines(path, name):
            where = f"{path}:{number}"
            try:
                yield where, rows.example(rows.parse(line), where, fields)
            except rows.Broken as fault:
                yield where, fault

    return rows.sound(attempts(), f"{name} {path!r}", max_broken)


def _read(config: Data, key: str) -> tuple[Example, ...]:
    read = array_record.read if config.source == "tfds" else read_jsonl
    fields = rows.Fields(config.question_field, config.answer_field)
    return read(getattr(config, key), f"config.data.{key}", fields, config.max_broken)


def _warn_of_overlap(train: tuple[Example, ...], held_out: tuple[Example, ...]) -> None:
    """Says how many held-out questions are trained on."""
    seen = {" ".join(example.prompt.split()) for example in train}
    both = [example.id for example in held_out if " ".join(example.prompt.split()) in seen]
    if both:
        progress.warn(
            f"config.data.held_out_path: {len(both)} of {len(held_out)} questions are also in"
            f" config.data.path, such as {both[0]!r}"
        )
