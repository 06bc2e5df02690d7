"""Sample points that the two formulas call for: beyond their kinks, and where powers balance."""

import random
from fractions import Fraction
from itertools import product

import mpmath

from cpgd_jax.rewards import arithmetic, expression

MAX_PLACES = 8  # about which kinks are looked for
MAX_SCALE = 10**15
HIGH_POWER = 16  # from which on x^n drowns what it is added to, or drowns in it

_KINKED = frozenset(["abs", "floor", "ceiling", "root"])


def points(a: tuple, b: tuple) -> list[dict[str, arithmetic.Value]]:
    """Points of both signs: about the constants of formulas with kinks (|x - 100|, floors, roots)
    and far beyond them; about -1 and 1 for formulas with high powers.

    The first is of fractions, where rational formulas are compared exactly.
    """
    names = sorted(expression.symbols(a) | expression.symbols(b))
    places: list = []
    if not names:
        return []
    with mpmath.workdps(arithmetic.DIGITS):
        if _kinked(a) or _kinked(b):
            kinks = _kinks(_constants(a) | _constants(b))
            places += [(place, width) for place in kinks for width in {1, max(place, 1)}]
        if (power := max(_degree(a), _degree(b))) >= HIGH_POWER:
            places.append((1 - mpmath.mpf(1) / power, mpmath.mpf(2) / power))
        source = random.Random(20250518)
        exact = {name: Fraction(source.getrandbits(16), 2**13) for name in names}
        found = [exact] + [
            {name: sign * (place + width * _random(source)) for name in names}
            for place, width in places
            for sign in (1, -1)
        ]
        if len(names) > 1 and places:  # |x - y|: each symbol at a place and of a sign of its own
            found += [
                {name: source.choice((1, -1)) * p[source.randrange(len(p))] for name in names}
                for p in [[place + width * _random(source) for place, width in places]] * 4
            ]
    return found


def _random(source: random.Random):
    return mpmath.mpf(source.getrandbits(190)) / 2**190


def _kinked(node: tuple) -> bool:
    if node[0] == "call" and node[1] in _KINKED:
        return True
    if node[0] == "pow" and node[2][0] != "num" and not expression.symbols(node[2]):
        return True  # x^{1/2}
    return any(_kinked(part) for part in node[1:] if isinstance(part, tuple))


def _constants(node: tuple) -> set[Fraction]:
    if node[0] == "num":
        return {abs(node[1])} - {Fraction(0)}
    return set().union(*(_constants(part) for part in node[1:] if isinstance(part, tuple)))


def _kinks(constants: set[Fraction]) -> list:
    """Where kinks may lie, ascending: constants, their roots and quotients, far beyond them all."""
    small = sorted(c for c in constants if 1 / Fraction(MAX_SCALE) <= c <= MAX_SCALE)
    far = Fraction(1)
    for constant in small:
        far *= max(constant, 1 / constant)
    near = set(small) | {x / y for x, y in product(small[:6], repeat=2)} | {Fraction(0)}
    roots = [mpmath.sqrt(arithmetic.inexact(c)) for c in small if c > 1]
    places = sorted({*map(arithmetic.inexact, near), *roots}, reverse=True)[:MAX_PLACES]
    return [*places, 3 * arithmetic.inexact(max(map(Fraction, [1, *small]))), *_far(far)]


def _far(scale: Fraction) -> list:
    return [arithmetic.inexact(min(10 * scale, Fraction(MAX_SCALE)))]


def _degree(node: tuple) -> int:
    """The highest power that a formula raises a symbol to, powers of powers multiplied."""
    parts = [part for part in node[1:] if isinstance(part, tuple)]
    if node[0] == "pow" and expression.symbols(node[1]) and node[2][0] == "num":
        return int(abs(node[2][1]) * _degree(node[1]))
    if node[0] == "mul":
        return sum(map(_degree, parts))
    return max(map(_degree, parts), default=int(node[0] == "sym"))
