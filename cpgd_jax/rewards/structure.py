r"""Reads a normalised text to a small node by its outermost structure.

    ("set" | "union", items)      order-free      ("seq", open, close, items)   tuple or interval
    ("matrix", kind, rows)                        ("ratio", parts)
    ("relation", operators, sides)                ("leaf", text)

`comparison` compares the nodes, `leaves` the leaves.
"""

import re

from cpgd_jax.rewards import intervals, numbers, relations
from cpgd_jax.rewards.normalise import strip_ends, tokens
from cpgd_jax.rewards.split import BRACKETS, enclosed, split

_OR = frozenset([r"\text{or}", "or", "或", "或者"])
_LIST = _OR | frozenset([",", ";", r"\text{and}", "and", "和", "与", "且", "及"])
_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\{(\w*matrix|array|cases)\*?\}(.*)\\end\{\1\*?\}\s*[)\]]?", re.DOTALL
)
_R = r"(?:\\mathbb\s*)?\{?\s*R\s*\}?"
_REALS = re.compile(_R)
_PUNCTURED = re.compile(rf"{_R}\s*(?:\\setminus|-)\s*\\\{{([^,]*)\\\}}")  # R \ {1}
_IS_REAL = re.compile(rf"[A-Za-z]\s*\\in\s*{_R}")
_BUILDER = re.compile(rf"[A-Za-z]\s*(?:\\in\s*{_R})?\s*[|:]\s*(.*)", re.DOTALL)
_POINT = re.compile(r"[A-Z]\s*(\([^()]*,[^()]*\))")  # P(1, 2)
_LABELS = re.compile(r"(?:\(\d\)\s*){2,}")  # (1)(3): numbered statements, no product


def items(text: str) -> list[str]:
    r"""The values that a text lists: by commas, "or", `\pm`; those of a set or of a union."""
    if numbers.read(text) is not None:
        return [text]
    if _LABELS.fullmatch(text):
        return re.findall(r"\d", text)
    parts = [strip_ends(part) for part in split(text, _LIST)]
    if not parts[0] and text:  # ",5" lists nothing and 5
        return [text]
    if len(parts) == 2 and len(split(text, _OR)) == 1 and (one := intervals.merged(parts)):
        return [one]
    listed = [value for part in parts if part for value in _plus_minus(part)]
    if len(listed) == 1 and (node := read(listed[0]))[0] in ("set", "union"):
        return [value for part in node[1] for value in _plus_minus(part)]
    return listed


def _plus_minus(text: str) -> list[str]:
    if r"\pm" not in text and r"\mp" not in text:
        return [text]
    return [
        text.replace(r"\pm", first).replace(r"\mp", second)
        for first, second in (("+", "-"), ("-", "+"))
    ]


def bare_list(text: str) -> bool:
    """A list with commas or "and", or a system of equations, without brackets of its own."""
    if text.startswith(r"\begin{cases}"):
        return True
    return 1 < len(split(text, _LIST)) == len(split(text, _LIST - _OR)) == len(items(text))


def read(text: str) -> tuple:
    """The outermost structure of one value."""
    text = strip_ends(text)
    if match := _MATRIX.fullmatch(text):
        return _matrix(match.group(1), match.group(2))
    if match := _POINT.fullmatch(text):
        return read(match.group(1))
    operators, sides = relations.split_sides(text)
    if operators and not (len(parts := _cups(text)) > 1 and all(map(intervals.variable, parts))):
        return _relation(operators, sides)
    if len(parts := _cups(text)) > 1:
        parts = intervals.united(parts)
        return ("union", parts) if len(parts) > 1 else read(parts[0])
    if brackets := enclosed(text):
        return _bracketed(text, *brackets)
    if 2 <= len(parts := split(text, frozenset([":", r"\text{to}"]))) <= 4:
        return ("ratio", parts)
    if _REALS.fullmatch(text):
        return ("seq", "(", ")", [r"-\infty", r"\infty"])
    if match := _PUNCTURED.fullmatch(text):
        return intervals.without(match.group(1))
    return ("leaf", text)


def _cups(text: str) -> list[str]:
    return split(text, frozenset([r"\cup"]))


def _bracketed(text: str, opening: str, closing: str) -> tuple:
    inside = text[len(opening) : -len(closing)].strip()
    parts = split(inside, frozenset([",", ";"]))
    if opening == r"\{":
        if match := _BUILDER.fullmatch(inside):
            return _built(match.group(1))
        return ("set", list({tokens(part): part for part in split(inside, _LIST)}.values()))
    if len(parts) < 2:
        return ("leaf", text)
    return ("seq", BRACKETS.get(opening, opening), BRACKETS.get(closing, closing), parts)


def _built(condition: str) -> tuple:
    r"""The set that a condition describes: `x > 1, x < 2`, `x \in \mathbb{R}, x \ne 1`."""
    parts = [part for part in split(condition, _LIST) if not _IS_REAL.fullmatch(part)]
    if len(split(condition, _OR)) == 1 and (one := intervals.merged(parts)):
        return read(one)
    return read(parts[0]) if len(parts) == 1 else ("union", parts)


def _matrix(kind: str, body: str) -> tuple:
    body = re.sub(r"^\s*\{[lcr|\s]*\}", "", body) if kind == "array" else body
    rows = [split(row, frozenset("&")) for row in split(body, frozenset([r"\\"])) if row.strip()]
    if kind == "cases":
        return ("set", [" ".join(row) for row in rows])
    return ("matrix", kind if kind in ("vmatrix", "Vmatrix") else "matrix", rows)


def _relation(operators: list[str], sides: list[str]) -> tuple:
    if operators == [r"\in"] and relations.is_name(sides[0]):
        return read(sides[1])
    return intervals.read(operators, sides) or ("relation", operators, sides)
