r"""Equations and inequalities: `x = 5` for 5, `x < 3` for (-\infty, 3), one line in two forms."""

import re
from collections.abc import Callable
from fractions import Fraction

from cpgd_jax.rewards import arithmetic, expression, identities, parser, roots
from cpgd_jax.rewards.normalise import tokens
from cpgd_jax.rewards.split import split

_OPERATORS = frozenset(
    ["=", "<", ">", r"\le", r"\ge", r"\ne", r"\in", r"\equiv", r"\approx", r"\sim", r"\cong"]
)
FLIPPED = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", "=": "=", r"\ne": r"\ne"}
_VARIABLE = r"(?:[A-Za-z]|\\(?!frac|sqrt|text|pm|mp)[A-Za-z]+)(?:_(?:\{[^{}]*\}|\w|\\[a-z]+))?'*"
_NAME = re.compile(
    rf"(?:\\(?:angle|triangle|Delta|cos|sin|tan|vec|overline|overrightarrow|hat)\s*)*\{{?"
    rf"(?:{_VARIABLE}(?:\s*\([^()=]*\))?|[A-Z]{{1,4}}|\|[A-Z]{{1,3}}\||\\text\{{[^{{}}]*\}}"
    rf"|[A-Za-z]\s*\^\s*\{{\s*-\s*1\s*\}}\s*\([^()=]*\)|[PE]\s*\([^()]*\)"  # f^{-1}(x), P(X = 1)
    rf"|\\frac\s*\{{\s*d\s*[A-Za-z]?\s*\}}\s*\{{\s*d\s*[A-Za-z]\s*\}}"  # dy/dx
    rf"|\(\s*{_VARIABLE}(?:\s*,\s*{_VARIABLE})*\s*\))\}}?"
)  # fmt: skip
_NUMBERED = re.compile(r"\s*_\s*\{?\s*\d\s*\}?$")
_SYMBOL = re.compile(_VARIABLE)
_RESERVED = frozenset([r"\pi", r"\frac", r"\sqrt", "e", "i", r"\infty"])


def split_sides(text: str) -> tuple[list[str], list[str]]:
    """The relation signs at depth 0 and the texts between them."""
    sides = split(text, _OPERATORS)
    if len(sides) < 2 or len(sides) > 6 or not all(sides):
        return [], [text]
    signs, rest = [], text
    for side in sides[:-1]:
        rest = rest[rest.index(side) + len(side) :].lstrip()
        sign = next(op for op in sorted(_OPERATORS, key=len, reverse=True) if rest.startswith(op))
        signs.append("=" if sign == r"\approx" else sign)
        rest = rest[len(sign) :]
    return signs, sides


def is_name(text: str) -> bool:
    """The text names a quantity: `x`, `a_n`, `f(x)`, `AB`, `S_{ABC}`, `\\angle A`, `(x, y)`."""
    return bool(_NAME.fullmatch(text)) and text not in _RESERVED


def is_variable(text: str) -> bool:
    r"""A single symbol: `x`, `a_n`, `\theta`."""
    return bool(_SYMBOL.fullmatch(text)) and text not in _RESERVED


def name_and_value(text: str) -> tuple[tuple[str, ...], str]:
    """`x = 1` as its name and "1"; ((), text) for anything else."""
    name = _name_of(text)
    return name, split_sides(text)[1][-1] if name else text


def named_on_one_side(left: list[str], right: list[str]) -> bool:
    """One list names two or more different quantities (x=1, y=2), the other lists bare values."""
    names = [[_name_of(text) for text in side] for side in (left, right)]
    distinct = [len({name for name in side if name}) for side in names]
    return max(distinct) > 1 and min(distinct) == 0


def _name_of(text: str) -> tuple[str, ...]:
    signs, sides = split_sides(text)
    return tokens(sides[0]) if signs == ["="] and is_name(sides[0]) else ()


def same(a: tuple, g: tuple, same_text: Callable[[str, str], bool]) -> bool:
    """Nodes of `structure`, at least one of them a relation, mean the same."""
    if a[0] == g[0] == "relation":
        return _same_relations(a[1:], g[1:], same_text)
    relation, other = (a, g) if a[0] == "relation" else (g, a)
    signs, sides = relation[1:]
    if set(signs) != {"="} or other[0] not in ("leaf", "seq", "matrix", "ratio"):
        return False
    if not is_name(sides[0]) and not (relation is a and _all_equal(sides, same_text)):
        if not (len(sides) == 2 and is_name(sides[1])):
            return False
        sides = sides[::-1]
    if not _all_equal(sides[1:], same_text):  # x = 5 = 6
        return False
    value = sides[-1]
    return same_text(value, _text(other)) if relation is a else same_text(_text(other), value)


def _all_equal(sides: list[str], same_text: Callable[[str, str], bool]) -> bool:
    return all(same_text(side, sides[-1]) for side in sides[:-1])


def _text(node: tuple) -> str:
    if node[0] == "leaf":
        return node[1]
    if node[0] == "ratio":
        return ":".join(node[1])
    if node[0] == "seq":
        return node[1] + ",".join(node[3]) + node[2]
    rows = r"\\".join("&".join(row) for row in node[2])
    kind = "pmatrix" if node[1] == "matrix" else node[1]
    return rf"\begin{{{kind}}}{rows}\end{{{kind}}}"


def _same_relations(a: tuple, g: tuple, same_text: Callable[[str, str], bool]) -> bool:
    (a_signs, a_sides), (g_signs, g_sides) = _name_first(*a), _name_first(*g)
    if set(a_signs) == set(g_signs) == {"="}:
        named = is_name(a_sides[0]) and is_name(g_sides[0])
        if named and _same_name(a_sides[0], g_sides[0]):
            return _all_equal(a_sides[1:], same_text) and same_text(a_sides[-1], g_sides[-1])
        return len(a_sides) == len(g_sides) == 2 and _same_zeros(a_sides, g_sides)
    if len(a_signs) == len(g_signs) == 1:
        return _same_single(a_signs[0], a_sides, g_signs[0], g_sides)
    return a_signs == g_signs and all(map(same_text, a_sides, g_sides))


def _name_first(signs: list[str], sides: list[str]) -> tuple[list[str], list[str]]:
    if len(sides) == 2 and is_name(sides[1]) and not is_name(sides[0]) and signs[0] in FLIPPED:
        return [FLIPPED[signs[0]]], sides[::-1]
    return signs, sides


def _same_name(a: str, g: str) -> bool:
    if tokens(a) == tokens(g) or {a.replace(" ", ""), g.replace(" ", "")} == {"y", "f(x)"}:
        return True
    bare = [_NUMBERED.sub("", text) for text in (a, g)]  # x_1 = 1, x_2 = 3 are values of x
    return bare[0] == bare[1] and bare != [a, g] and (a in bare or g in bare)


def _difference(sides: list[str]) -> tuple:
    """Left side less right side. Raises Unreadable, also where no symbol is in it."""
    difference = ("sub", parser.parse(sides[0]), parser.parse(sides[1]))
    if not expression.symbols(difference):
        raise parser.Unreadable("a relation of constants")
    return difference


def _same_zeros(a: list[str], g: list[str]) -> bool:
    """The two equations are multiples of each other, or one solves the other for a symbol."""
    try:
        left, right = _difference(a), _difference(g)
    except parser.Unreadable:
        return False
    if identities.ratio(left, right) is not None:
        return True
    return _solves(a, right, left) or _solves(g, left, right)


def _solves(solved: list[str], other: tuple, own: tuple) -> bool:
    """`solved` is y = f, and `other` is linear in y and vanishes there and only there: x y = 1 and
    y = 1/x, but not x y = 0 and y = 0, which leaves out x = 0."""
    if not _SYMBOL.fullmatch(solved[0]):
        return False
    symbol = parser.parse(solved[0])
    if symbol[0] != "sym" or symbol[1] in expression.symbols(parser.parse(solved[1])):
        return False
    slope = expression.linear_slope(other, symbol[1])
    rest = expression.substitute(other, symbol[1], ("num", Fraction(0)))
    return identities.equal(("mul", slope, own), other) and not roots.common(slope, rest)


def _same_single(a_sign: str, a: list[str], g_sign: str, g: list[str]) -> bool:
    """One inequality, written in two ways: a positive multiple, or a negative one turned round."""
    try:
        quotient = identities.ratio(_difference(a), _difference(g))
    except parser.Unreadable:
        return False
    if quotient is None or not arithmetic.is_real(quotient):
        return False
    return (a_sign if quotient.real > 0 else FLIPPED.get(a_sign)) == g_sign
