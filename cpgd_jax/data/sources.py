"""Where problems come from. A source is pure: what it gives depends on its arguments only."""

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from cpgd_jax import progress
from cpgd_jax.config import Data
from cpgd_jax.data import array_record, image_files, images, rows
from cpgd_jax.data.arithmetic import ArithmeticSource
from cpgd_jax.data.pictures import PictureSource
from cpgd_jax.errors import UserError
from cpgd_jax.types import Example

PATHS = ("path", "held_out_path")  # keys of config.data


class Source(Protocol):
    def train(self, position: int) -> Example: ...

    def held_out(self, count: int) -> list[Example]: ...

    def longest(self) -> Iterable[Example]:
        """Training examples among which are the longest prompt and the longest demonstration."""

    def fetch(self, reference: str) -> bytes:
        """An example's image, encoded. Raises rows.Broken."""


def load(config: Data, seed: int, process_index: int = 0, process_count: int = 1) -> Source:
    """The source that `config.data` names, or the share of one of several processes of it.

    Files are read and checked whole here, so that no row can fail in the middle of a run.
    """
    if config.source == "arithmetic":
        source = ArithmeticSource(config.arithmetic, seed)
    elif config.source == "pictures":
        source = PictureSource(config.pictures, seed)
    else:
        fetch = _fetch(config) if config.images else None
        train, held_out = (_read(config, key, fetch) for key in PATHS)
        _warn_of_overlap(train, held_out)
        source = FileSource(train, held_out, seed, fetch)
    return source if process_count == 1 else Share(source, process_index, process_count)


@dataclass(frozen=True)
class FileSource:
    """Rows of a file; Grain orders the training stream, a new permutation every epoch."""

    rows: tuple[Example, ...]
    held_out_rows: tuple[Example, ...]
    seed: int
    fetch: Callable[[str], bytes] | None = None  # None: no row has images

    def train(self, position: int) -> Example:
        """The training stream's example number `position`."""
        return self._stream[position]

    def held_out(self, count: int) -> list[Example]:
        """The first `count` rows, or all of them if there are fewer."""
        return list(self.held_out_rows[:count])

    def longest(self) -> tuple[Example, ...]:
        return self.rows

    def fitting(self, length: Callable[[Example], int], limit: int) -> "FileSource":
        """Without the rows with images whose prompts are over the limit; it says how many."""
        kept = []
        for key, examples in zip(PATHS, (self.rows, self.held_out_rows), strict=True):
            over = [e for e in examples if e.images and length(e) > limit]
            gone = {id(e) for e in over}
            kept.append(tuple(e for e in examples if id(e) not in gone))
            if not kept[-1]:
                raise UserError(
                    f"config.data.{key}: with its images every prompt is over"
                    f" config.rollout.max_prompt_len {limit}: raise it, or lower data.max_pixels"
                )
            if over:
                progress.warn(
                    f"config.data.{key}: {len(over)} of {len(examples)} prompts dropped, with their"
                    f" images over config.rollout.max_prompt_len {limit}, such as {over[0].id!r}"
                )
        return replace(self, rows=kept[0], held_out_rows=kept[1])

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

    def fetch(self, reference: str) -> bytes:
        return self.source.fetch(reference)


def read_jsonl(
    path: str,
    name: str,
    fields: rows.Fields = rows.FIELDS,
    max_broken: float | None = None,
    fetch: Callable[[str], bytes] | None = None,
) -> tuple[Example, ...]:
    """Examples of a JSONL file; `name` is the key or flag to blame. UserError: the line.

    max_broken: share of broken rows that may be left out with a warning; None: none may. fetch: see
    `Source`; each image is decoded once. None: rows with images are broken.
    """

    def attempts():
        for number, line in rows.lines(path, name):
            where = f"{path}:{number}"
            try:
                yield where, rows.example(rows.parse(line), where, fields, fetch is not None)
            except rows.Broken as fault:
                yield where, fault

    return rows.sound(_with_sound_images(attempts(), fetch), f"{name} {path!r}", max_broken)


def _read(config: Data, key: str, fetch) -> tuple[Example, ...]:
    path, name = getattr(config, key), f"config.data.{key}"
    fields = rows.Fields(config.question_field, config.answer_field)
    if config.source == "jsonl":
        return read_jsonl(path, name, fields, config.max_broken, fetch)
    found = array_record.read(path, name, fields, config.max_broken, fetch is not None)
    named = [e._replace(images=tuple(f"{key}:{i}" for i in e.images)) for e in found]
    attempts = _with_sound_images(((e.id, e) for e in named), fetch)
    return rows.sound(attempts, f"{name} {path!r}", config.max_broken)


def _with_sound_images(attempts, fetch) -> Iterator[tuple[str, Example | rows.Broken]]:
    """The attempts, of which those whose images cannot be used are broken."""

    def look(attempt):
        where, example = attempt
        try:
            for name in getattr(example, "images", ()):
                images.resized(images.decode(fetch(name), name).size, images.Settings())
        except rows.Broken as fault:
            return where, fault
        return attempt

    with ThreadPoolExecutor() as pool:
        yield from pool.map(look, attempts)


def _fetch(config: Data) -> Callable[[str], bytes]:
    """References of jsonl are paths below the root; of tfds, KEY:RECORD/NUMBER."""
    if config.source == "jsonl":
        root = Path(config.image_root or Path(config.path).parent).resolve()
        return lambda reference: image_files.fetch(reference, root)
    of_split = {
        key: array_record.images(getattr(config, key), f"config.data.{key}") for key in PATHS
    }

    def fetch(reference: str) -> bytes:
        key, _, place = reference.partition(":")
        return of_split[key](place)

    return fetch


def _warn_of_overlap(train: tuple[Example, ...], held_out: tuple[Example, ...]) -> None:
    """Says how many held-out questions are trained on."""
    seen = {" ".join(example.prompt.split()) for example in train}
    both = [example.id for example in held_out if " ".join(example.prompt.split()) in seen]
    if both:
        progress.warn(
            f"config.data.held_out_path: {len(both)} of {len(held_out)} questions are also in"
            f" config.data.path, such as {both[0]!r}"
        )
