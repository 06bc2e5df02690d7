r"""Conditions on one real variable as intervals: `x < 3`, `|x| \ge 1`, `x \ne 2`, `x > 1, x < 2`.

The nodes are those of `structure`: ("seq", opening, closing, [low, high]) and ("union", texts).
"""

from fractions import Fraction

import mpmath

from cpgd_jax.rewards import arithmetic, evaluate, expression, identities, parser, relations
from cpgd_jax.rewards.split import enclosed, split

_STRICT = frozenset("<>")


def read(operators: list[str], sides: list[str]) -> tuple | None:
    """The node of a condition on a variable; None for any other relation."""
    if interval := _interval(operators, sides):
        return ("seq", *interval)
    if len(sides) != 2 or operators[0] not in relations.FLIPPED:
        return None
    sign, (left, right) = operators[0], sides
    if sign == r"\ne" and relations.is_variable(left) != relations.is_variable(right):
        return without(right if relations.is_variable(left) else left)
    if right.startswith("|"):
        sign, left, right = relations.FLIPPED[sign], right, left
    return _absolute(sign, left, right)


def without(value: str) -> tuple:
    """All real numbers but one."""
    return ("union", [rf"(-\infty,{value})", rf"({value},\infty)"])


def _interval(operators: list[str], sides: list[str]) -> tuple[str, str, list[str]] | None:
    r"""`x < 3`, `1 \le x < 2` as (opening, closing, [low, high]); None for any other relation."""
    if not all(sign in ("<", ">", r"\le", r"\ge") for sign in operators):
        return None
    if all(sign in (">", r"\ge") for sign in operators):
        operators = [relations.FLIPPED[sign] for sign in reversed(operators)]
        sides = sides[::-1]
    if not all(sign in ("<", r"\le") for sign in operators):
        return None
    variable = [relations.is_variable(side) for side in sides]
    if len(sides) == 2 and variable == [True, False]:
        return "(", ")" if operators[0] == "<" else "]", [r"-\infty", sides[1]]
    if len(sides) == 2 and variable == [False, True]:
        return "(" if operators[0] == "<" else "[", ")", [sides[0], r"\infty"]
    if len(sides) == 3 and variable[1]:
        opening = "(" if operators[0] == "<" else "["
        return opening, ")" if operators[1] == "<" else "]", [sides[0], sides[2]]
    return None


def _absolute(sign: str, left: str, bound: str) -> tuple | None:
    """`|ax + b| < c` as an interval, `> c` as the union of two."""
    inner = left[1:-1]
    if sign in ("=", r"\ne") or not left.startswith("|") or not left.endswith("|") or "|" in inner:
        return None
    line = _line(inner)
    if line is None:
        return None
    slope, offset = line
    low, high = (f"({minus}({bound})-({offset}))/({slope})" for minus in "-+")
    opening, closing = "()" if sign in _STRICT else "[]"
    if sign in ("<", r"\le"):
        return ("seq", opening, closing, [low, high])
    return ("union", [rf"(-\infty,{low}{closing}", rf"{opening}{high},\infty)"])


def _line(text: str):
    """(slope > 0, offset) of a formula linear in its only symbol, up to its sign; else None."""
    try:
        node = parser.parse(text)
    except parser.Unreadable:
        return None
    names = sorted(expression.symbols(node))
    if len(names) != 1:
        return None
    symbol, zero = ("sym", names[0]), ("num", Fraction(0))
    slope = evaluate.exactly(expression.linear_slope(node, names[0]))
    offset = evaluate.exactly(expression.substitute(node, names[0], zero))
    if not slope or offset is None:
        return None
    line = ("add", ("mul", ("num", slope), symbol), ("num", offset))
    if not identities.equal(node, line):
        return None
    return (slope, offset) if slope > 0 else (-slope, -offset)


def merged(conditions: list[str]) -> str | None:
    """`x > 1` and `x < 2` as the text of one interval; None if they are not two such bounds."""
    if len(conditions) != 2 or len({variable(text) for text in conditions} | {""}) != 2:
        return None
    pair = [_interval(*relations.split_sides(text)) for text in conditions]
    lower = next((i for i in pair if i and i[2][1] == r"\infty"), None)
    upper = next((i for i in pair if i and i[2][0] == r"-\infty"), None)
    if not lower or not upper or not _below(lower[2][0], upper[2][1]):
        return None
    return f"{lower[0]}{lower[2][0]},{upper[2][1]}{upper[1]}"


def united(parts: list[str]) -> list[str]:
    """Intervals of a union, those that overlap or touch made one: (1, 2] and [2, 3) are (1, 3)."""
    spans = [_span(part) for part in parts]
    if None in spans:
        return parts
    merged: list[list] = []
    for low, high, text in sorted(spans, key=lambda span: span[0]):
        if not merged or not _joined(merged[-1], low, text):
            merged.append([high, text])
        elif high > merged[-1][0]:
            merged[-1] = [high, (*merged[-1][1][:2], *text[2:])]
    return [f"{opening}{low},{high}{closing}" for _, (opening, low, high, closing) in merged]


def _joined(last: list, low, text: tuple) -> bool:
    end, (_, _, _, closing) = last
    return low < end or (low == end and (closing == "]" or text[0] == "["))


def _span(part: str) -> tuple | None:
    """(low, high, its pieces of text) of an interval with bounds that are numbers."""
    brackets = enclosed(part)
    ends = split(part[1:-1], frozenset(",")) if brackets and set(brackets) <= set("()[]") else []
    if len(ends) != 2:
        return None
    low, high = map(_bound, ends)
    if low is None or high is None or not low < high:
        return None
    return low, high, (brackets[0], *ends, brackets[1])


def _bound(text: str):
    if text.replace(" ", "").lstrip("+-") == r"\infty":
        return -mpmath.inf if text.startswith("-") else mpmath.inf
    try:
        with mpmath.workdps(arithmetic.DIGITS):
            return +arithmetic.inexact(evaluate.at(parser.parse(text), {}, real=True))
    except (parser.Unreadable, ArithmeticError, KeyError):
        return None


def _below(low: str, high: str) -> bool:
    try:
        gap = evaluate.at(("sub", parser.parse(high), parser.parse(low)), {}, real=True)
    except (parser.Unreadable, ArithmeticError, KeyError):
        return False
    return gap > 0


def variable(text: str) -> str:
    """The variable that a condition bounds; "" if the text is no such condition."""
    signs, sides = relations.split_sides(text)
    if not signs or not set(signs) <= {"<", ">", r"\le", r"\ge", r"\ne"}:
        return ""
    names = [side for side in sides if relations.is_variable(side)]
    return names[0] if len(names) == 1 else ""
