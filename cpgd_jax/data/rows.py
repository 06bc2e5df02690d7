r"""One row of a data file -> an Example, or the reason why it is none.

A row is {question, answer}, with an optional id and the paths of images in one of IMAGE_FIELDS; or,
as MM-EUREKA publishes it, {id, message, answer}: `message` holds chat turns (a list, or its JSON),
whose user turn is text or parts {"type": "text", "text"} and {"type": "image", "image"}. Images
come before the text of their turn. A system turn of the row gives way to the configured prompt.
The answer may be a worked solution: "... #### 5" and "... \boxed{5}" have the gold 5.
"""

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from cpgd_jax import progress
from cpgd_jax.errors import UserError
from cpgd_jax.rewards import answers
from cpgd_jax.types import Example

WORKED = "\n####"  # between a worked solution and its result, as in GSM8K
IMAGE_FIELDS = ("images", "image_path", "image", "image_urls")  # a path or a list of them
SHOWN = 10  # places named of each kind of fault


class Broken(Exception):
    """A row that cannot be used: `kind` is what is counted, the message is what to mend."""

    def __init__(self, kind: str, detail: str):
        super().__init__(detail)
        self.kind = kind


class Fields(NamedTuple):
    """Where a row has its text."""

    question: str = "question"
    answer: str = "answer"  # "": rows need no answer, and their gold is ""


FIELDS = Fields()


def lines(path: str, name: str) -> Iterator[tuple[int, bytes]]:
    """Numbered lines of a file, from 1, blank ones left out; `name` is the key or flag to blame."""
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                if line.strip():
                    yield number, line
    except FileNotFoundError as error:
        raise UserError(f"{name} is {path!r}: no such file") from error
    except OSError as error:
        raise UserError(f"{name} {path!r} cannot be read: {error.strerror}") from error


def parse(line: bytes | str):
    """The JSON value of a line. Raises Broken."""
    try:
        return json.loads(line.decode("utf-8") if isinstance(line, bytes) else line)
    except json.JSONDecodeError as error:
        raise Broken("not JSON", f"not JSON ({error.msg})") from error
    except (ValueError, RecursionError) as error:  # not UTF-8, too many digits, too deep
        raise Broken("not JSON", f"cannot be read as JSON ({error})") from error


def example(row, name: str, fields: Fields = FIELDS, images: bool = False) -> Example:
    """The Example of a row; `name` is its id if it has none. Raises Broken.

    images: False means that a row with images is broken, since the model would not see them.
    """
    if isinstance(row, dict) and "message" in row and fields.question not in row:
        question, references = _chat(row["message"])
    else:
        question, references = text(row, fields.question), _images(row)
    if not question.strip():
        raise Broken("empty question", "its question is empty")
    if references and not images:
        raise Broken("image", "has an image, and only text is read here")
    gold = gold_of(text(row, fields.answer)) if fields.answer else ""
    identity = row.get("id")
    identity = name if identity is None else _encodable(str(identity), "id")
    return Example(identity, question, gold, images=references)


def text(row, field: str) -> str:
    """A field that must be text. Raises Broken."""
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        raise Broken("missing field", f"needs a text field {field!r}")
    return _encodable(row[field], field)


def gold_of(answer: str) -> str:
    """The reference answer in a field that may hold a worked solution."""
    result = answer.rsplit(WORKED, 1)[-1].strip()
    return answers.last_box(result) or result


def sound(
    attempts: Iterable[tuple[str, Example | Broken]], name: str, max_broken: float | None
) -> tuple[Example, ...]:
    """The examples among (place, outcome); what is broken is counted, named and left out.

    max_broken: the share of broken rows above which a UserError names the first; None: no row may
    be broken.
    """
    good, faults = [], []
    for where, outcome in attempts:
        broken = isinstance(outcome, Broken)
        faults.append((where, outcome)) if broken else good.append(outcome)
    total = len(good) + len(faults)
    if total == 0:
        raise UserError(f"{name} holds no rows")
    if faults and (not good or len(faults) > (max_broken or 0) * total):
        first = f"{faults[0][0]}: {faults[0][1]}"
        if max_broken is None:
            raise UserError(first)
        limit = f", above config.data.max_broken {max_broken}" if good else ""
        remedy = "mend them, or raise it" if good else "mend them"
        raise UserError(
            f"{first}; {len(faults)} of {total} rows of {name} are broken{limit}: {remedy}"
        )
    if faults:
        progress.warn(f"{name}: {len(faults)} of {total} rows left out: {summary(faults)}")
    return tuple(good)


def summary(faults: list[tuple[str, Broken]]) -> str:
    """`2 missing field (a:3, a:8), 1 not JSON (a:5)`, the commonest first."""
    kinds: dict[str, list[str]] = {}
    for where, fault in faults:
        kinds.setdefault(fault.kind, []).append(str(where))
    ordered = sorted(kinds.items(), key=lambda item: -len(item[1]))
    return ", ".join(f"{len(places)} {kind} ({_some(places)})" for kind, places in ordered)


def _some(places: list[str]) -> str:
    return ", ".join(places[:SHOWN]) + (", …" if len(places) > SHOWN else "")


def _encodable(value: str, field: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Broken("not text", f"field {field!r} holds half a character ({error})") from error
    return value


def _images(row: dict) -> tuple[str, ...]:
    """Paths of the row's images, in order."""
    value = next((row[field] for field in IMAGE_FIELDS if row.get(field)), [])
    paths = [value] if isinstance(value, str) else value
    if not isinstance(paths, list) or not all(isinstance(path, str) and path for path in paths):
        raise Broken("bad image", f"names its images by {str(value)[:60]!r}, not by paths")
    return tuple(paths)


def _chat(message) -> tuple[str, tuple[str, ...]]:
    """Text and image paths of the one user turn."""
    turns = parse(message) if isinstance(message, str) else message
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise Broken("bad message", "its 'message' is no list of chat turns")
    asked = [turn.get("content") for turn in turns if turn.get("role") == "user"]
    others = [turn.get("role") for turn in turns if turn.get("role") not in ("user", "system")]
    if len(asked) != 1 or others:
        raise Broken("bad message", "its 'message' needs one user turn and none of an assistant")
    parts = [{"type": "text", "text": asked[0]}] if isinstance(asked[0], str) else asked[0]
    if not isinstance(parts, list):
        raise Broken("bad message", "the content of its user turn is no text and no list of parts")
    return "".join(_parts(parts, "text")), tuple(_parts(parts, "image"))


def _parts(parts: list, kind: str) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, dict) or part.get("type") not in ("text", "image"):
            raise Broken("bad message", f"a part of its user turn is {str(part)[:60]!r}")
        if part["type"] == kind:
            yield text(part, kind)
