"""A JSONL file with images -> a TFDS builder stored as ArrayRecord, and a report of its faults."""

import hashlib
import itertools
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cpgd_jax import atomic, progress, workdir
from cpgd_jax.data import array_record, image_files, rows
from cpgd_jax.data.rows import SHOWN, Broken
from cpgd_jax.errors import UserError
from cpgd_jax.rewards import golds
from cpgd_jax.types import Example

BATCH = 64  # lines in work at a time: bounds the memory that images take
SPLITS = ("train", "held_out")
REPORT = "report.json"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class Plan:
    """What is asked for; the fields are the flags of experiments.prepare_data."""

    input: str
    output: str
    name: str
    images: str  # root folder of the images; "" = rows have none
    held_out: int
    max_broken: float
    fields: rows.Fields


class Row(NamedTuple):
    """A sound row of the input."""

    line: int
    example: Example
    answer: str  # as given: a worked solution keeps its working
    digests: tuple[str, ...]  # of the images' bytes

    @property
    def text(self) -> str:
        """The question, however it is spaced."""
        return " ".join(self.example.prompt.split())

    @property
    def content(self) -> bytes:
        """Equal for equal questions: those that differ in their images alone are different."""
        return hashlib.blake2b(repr((self.text, self.digests)).encode()).digest()


def build(plan: Plan) -> dict:
    """Writes the set with its report.json to `plan.output` and returns the report.

    UserError, with nothing left behind: bad arguments, or more broken rows than allowed.
    """
    _check(plan)
    sound, faults = _survey(plan)
    total = len(sound) + len(faults)
    if total == 0:
        raise UserError(f"--input={plan.input} holds no rows")
    broken = f"{len(faults)} of {total} rows of {plan.input}"
    if len(faults) > plan.max_broken * total or not sound:
        raise UserError(
            f"{broken} are broken, above --max_broken={plan.max_broken}: {rows.summary(faults)};"
            f" the first, line {faults[0][0]}: {faults[0][1]}"
        )
    if faults:
        progress.warn(f"{broken} left out: {rows.summary(faults)}")
    kept = _hold_out(sound, plan.held_out)
    report = _report(plan, sound, faults, kept)
    with atomic.folder(plan.output) as folder, progress.Progress(len(sound), "row written") as bar:
        done = itertools.count(1)
        splits = {split: _records(plan, kept[split], bar, done) for split in kept}
        array_record.write(folder, plan.name, splits, bool(plan.images))
        workdir.write_json(folder / REPORT, report)
    return report


def _check(plan: Plan) -> None:
    output = Path(plan.output)
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise UserError(f"--output={plan.output} is not empty: remove it, or name a new folder")
    if not _NAME.fullmatch(plan.name):
        raise UserError(f"--name={plan.name}: give small letters, digits and _, a letter first")
    if not 0 <= plan.max_broken <= 1:
        raise UserError(f"--max_broken={plan.max_broken}: give a share between 0 and 1")
    if plan.images and not Path(plan.images).is_dir():
        raise UserError(f"--images={plan.images}: no such folder")


def _survey(plan: Plan) -> tuple[list[Row], list[tuple[int, Broken]]]:
    """Every row read and its images decoded, in the order of the lines."""
    total = sum(1 for _ in rows.lines(plan.input, "--input"))
    sound, faults, ids = [], [], {}
    with ThreadPoolExecutor() as pool, progress.Progress(total, "row read") as bar:
        numbered = rows.lines(plan.input, "--input")
        while batch := list(itertools.islice(numbered, BATCH)):
            for (line, _), found in zip(batch, pool.map(partial(_read, plan), batch), strict=True):
                if isinstance(found, Row) and found.example.id in ids:
                    first = ids[found.example.id]
                    found = Broken("duplicate id", f"its id is that of line {first}")
                if isinstance(found, Row):
                    ids[found.example.id] = line
                    sound.append(found)
                else:
                    faults.append((line, found))
            bar.update(len(sound) + len(faults))
    return sound, faults


def _read(plan: Plan, numbered: tuple[int, bytes]) -> Row | Broken:
    line, content = numbered
    try:
        row = rows.parse(content)
        name = f"{Path(plan.input).stem}:{line}"
        example = rows.example(row, name, plan.fields, images=True)
        if example.images and not plan.images:
            raise Broken("image", "has an image: give the folder of the images, --images")
        digests = tuple(hashlib.blake2b(data).hexdigest() for data in _images(plan, example))
        return Row(line, example, rows.text(row, plan.fields.answer), digests)
    except Broken as fault:
        return fault


def _images(plan: Plan, example: Example) -> list[bytes]:
    root = Path(plan.images).resolve()
    return [image_files.read(reference, root) for reference in example.images]


def _hold_out(sound: list[Row], count: int) -> dict[str, list[Row]]:
    """Rows by split, in the order of the input.

    The held-out rows are drawn by a hash of what they ask, and a question that occurs twice is on
    one side only.
    """
    if not count:
        return {"train": sound}
    groups: dict[bytes, list[Row]] = {}
    for row in sound:
        groups.setdefault(row.content, []).append(row)
    chosen: set[int] = set()
    for content in sorted(groups):
        if len(chosen) + len(groups[content]) <= count:
            chosen |= {row.line for row in groups[content]}
    if len(chosen) < count or len(chosen) == len(sound):
        raise UserError(f"--held_out={count}: {len(sound)} rows leave too few to train on")
    sides = [row for row in sound if row.line not in chosen], [r for r in sound if r.line in chosen]
    return dict(zip(SPLITS, sides, strict=True))


def _records(plan: Plan, split: list[Row], bar, done) -> Iterator[dict]:
    for row in split:
        record = {"id": row.example.id, "question": row.example.prompt, "answer": row.answer}
        if plan.images:
            record["images"] = _unchanged(plan, row)
        yield record
        bar.update(next(done))


def _unchanged(plan: Plan, row: Row) -> list[bytes]:
    """The row's images, read again: a large set does not fit into memory."""
    try:
        images = _images(plan, row.example)
    except Broken as fault:
        raise UserError(f"line {row.line} was sound and no longer is: {fault}") from fault
    if tuple(hashlib.blake2b(data).hexdigest() for data in images) != row.digests:
        raise UserError(f"line {row.line}: an image changed while it was read; start again")
    return images


def _report(plan: Plan, sound: list[Row], faults, kept: dict[str, list[Row]]) -> dict:
    return {
        "input": plan.input,
        "name": plan.name,
        "rows": len(sound) + len(faults),
        "splits": {split: len(of_split) for split, of_split in kept.items()},
        "images": sum(len(row.digests) for row in sound),
        "broken": {"rows": len(faults), "kinds": _kinds(faults)},
        "golds": _golds(sound),
        "repeated_questions": _lines(_repeated(sound)),
        # held-out questions whose text is trained on too, with another image
        "texts_in_both": _lines(_in_both(**kept)),
    }


def _golds(sound: list[Row]) -> dict[str, dict]:
    """How answers are compared: "value"; "text": not understood as a formula; "nothing": empty."""
    ways: dict[str, list[Row]] = {"value": [], "text": [], "nothing": []}
    for row in sound:
        ways[golds.compared_as(row.example.gold)].append(row)
    del ways["value"]
    return {way: {"rows": len(found), "first": _shown(found)} for way, found in ways.items()}


def _shown(found: list[Row]) -> list[dict]:
    return [{"line": row.line, "gold": row.example.gold} for row in found[:SHOWN]]


def _repeated(sound: list[Row]) -> list[int]:
    """Lines of questions that an earlier line asks."""
    seen: set[bytes] = set()
    return [row.line for row in sound if row.content in seen or seen.add(row.content)]


def _in_both(train: list[Row], held_out: tuple[Row, ...] | list[Row] = ()) -> list[int]:
    texts = {row.text for row in train}
    return [row.line for row in held_out if row.text in texts]


def _lines(found: list[int]) -> dict:
    return {"rows": len(found), "lines": found[:SHOWN]}


def _kinds(faults: list[tuple[int, Broken]]) -> dict[str, dict]:
    kinds: dict[str, dict] = {}
    for line, fault in faults:
        entry = kinds.setdefault(fault.kind, {"rows": 0, "first": []})
        entry["rows"] += 1
        if len(entry["first"]) < SHOWN:
            entry["first"].append({"line": line, "why": str(fault)})
    return kinds
