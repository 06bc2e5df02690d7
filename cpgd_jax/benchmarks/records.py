"""What a benchmark is made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Item(NamedTuple):
    """One question of a benchmark."""

    id: str  # unique in its benchmark
    prompt: str  # question and choices, without chat markup; "" where the image asks
    gold: str  # the official answer
    images: tuple[str | bytes, ...] = ()  # paths below the benchmark's folder, or encoded bytes
    groups: Mapping[str, str] = {}  # breakdowns: "subject" -> "algebra"
    row: Mapping = {}  # the official fields that the rule reads


class Verdict(NamedTuple):
    """What the rule says of one response."""

    correct: bool
    extracted: str  # the answer that the rule found; "" = none
    reason: str


@dataclass(frozen=True)
class Benchmark:
    """One row of the table of benchmarks."""

    title: str
    files: tuple[str, ...]  # names or patterns of its official file, the first that is there
    count: int  # official items; 0 = any number
    fields: str  # official ones, commas between; others are reported
    item: Callable[[dict], Item]  # KeyError, TypeError, ValueError: the row is broken
    rule: Callable  # (item, response, verifier) -> Verdict
    rule_name: str  # what the rule is, and where it is a variant of the official one
    more: Callable[[Sequence[tuple[Item, bool]]], dict] | None = None  # scores of its own
    judged: bool = False  # the official rule asks a language model
    functions: tuple[str, ...] = field(default=())  # what the rule needs of the verifier's workers


def choice_lines(choices: Sequence[str]) -> str:
    """Lettered choices, one a line."""
    return "".join(f"\n({chr(ord('A') + n)}) {choice}" for n, choice in enumerate(choices))


def groups(row: Mapping, *names: str) -> dict[str, str]:
    """The breakdowns that a row has fields for."""
    return {name: str(row[name]) for name in names if row.get(name) not in (None, "")}


def shown(*images) -> tuple[str | bytes, ...]:
    """Images as rows name them: a path, bytes, the hub's {"bytes", "path"}; None is left out."""
    found = [image.get("bytes") or image.get("path") if isinstance(image, dict) else image
             for image in images]  # fmt: skip
    for image in found:
        if image is not None and not isinstance(image, str | bytes):
            raise TypeError(f"an image is {str(image)[:40]!r}, neither a path nor bytes")
    return tuple(image for image in found if image)
