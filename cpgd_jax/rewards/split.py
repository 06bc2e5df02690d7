r"""Splits formulas at separators outside of brackets."""

import re
from functools import lru_cache

BRACKETS = {r"\langle": "(", r"\rangle": ")"}  # brackets that mean the same as another
_OPENERS = frozenset(["(", "[", "{", r"\{", r"\langle", r"\lfloor", r"\lceil"])
_CLOSERS = frozenset([")", "]", "}", r"\}", r"\rangle", r"\rfloor", r"\rceil"])
_PAIRS = {"(": (")", "]"), "[": ("]", ")"), r"\{": (r"\}",), r"\langle": (r"\rangle",)}
_PIECE = re.compile(
    r"\\text\{[^{}]*\}|\\(?:begin|end)\s*\{[^{}]*\}|\\[a-zA-Z]+|\\.|(?<![a-zA-Z\\])(?:or|and)(?![a-zA-Z])|."
    r"|\n",
    re.DOTALL,
)


@lru_cache(maxsize=256)
def pieces(text: str) -> tuple[tuple[str, int, int], ...]:
    """(piece, its start, bracket depth before it) for every symbol of the text."""
    found, depth = [], 0
    for match in _PIECE.finditer(text):
        piece = match.group()
        closes = piece in _CLOSERS or piece.startswith(r"\end")
        depth -= closes and depth > 0
        found.append((piece, match.start(), depth))
        depth += piece in _OPENERS or piece.startswith(r"\begin")
    return tuple(found)


def split(text: str, separators: frozenset[str]) -> list[str]:
    """The parts between separators at depth 0, stripped; the whole text if there is none."""
    parts, start = [], 0
    for piece, at, depth in pieces(text):
        if depth == 0 and piece in separators:
            parts.append(text[start:at].strip())
            start = at + len(piece)
    return [*parts, text[start:].strip()]


def enclosed(text: str) -> tuple[str, str] | None:
    """The pair of brackets round the whole text, or None. Half-open pairs count."""
    found = pieces(text)
    if len(found) < 2 or found[0][0] not in _PAIRS or found[-1][0] not in _PAIRS[found[0][0]]:
        return None
    if any(depth == 0 for _, _, depth in found[1:-1]) or found[-1][2] != 0:
        return None
    return found[0][0], found[-1][0]
