"""Do two formulas have the same value everywhere? They are compared at sample points.

A difference that is not zero everywhere is not zero at random points of 190 bits, either.
"""

import contextlib
import math
import random
from fractions import Fraction

import mpmath

from cpgd_jax.rewards import arithmetic, evaluate, expression, probes

WIDTHS = (3, 10, 50)  # of the ranges of positive sample points, so that steps (floor n) are seen


def equal(a: tuple, b: tuple) -> bool:
    """The two formulas have the same value wherever both have one. Raises TooLarge."""
    names = sorted(expression.symbols(a) | expression.symbols(b))
    if not names:
        return _same_at(a, b, {}) is True and _confirmed(a, b, {})
    agreed = 0
    for point in _points(names, positive=True):
        if (same := _same_at(a, b, point)) is False:
            return False
        if same and not agreed and not _confirmed(a, b, point):
            return False
        agreed += same is True
    others = _points(names, positive=False) + probes.points(a, b)
    return agreed >= 2 and not any(
        _same_at(a, b, point, real_only=True) is False for point in others
    )


def equal_powers(a: tuple, b: tuple) -> bool:
    """Powers too large to compute: 2^{100000} is 4^{50000}. Raises TooLarge where it cannot say."""
    if a[0] != "pow" or b[0] != "pow":
        raise arithmetic.TooLarge("a number of too many digits")
    exponents = [evaluate.exactly(node[2]) for node in (a, b)]
    if any(e is None or e.denominator != 1 for e in exponents):
        raise arithmetic.TooLarge("an exponent too large")
    common = math.gcd(*(e.numerator for e in exponents)) or 1
    left, right = (
        ("pow", node[1], ("num", e / common)) for node, e in zip((a, b), exponents, strict=True)
    )
    return equal(left, right)


def nonzero(node: tuple) -> bool:
    """The formula is not zero at any sample point where it has a value."""
    values = []
    for point in _points(sorted(expression.symbols(node)), positive=True):
        with contextlib.suppress(arithmetic.Undefined):
            values.append(evaluate.at(node, point))
    return bool(values) and not any(evaluate.close(value, Fraction(0)) for value in values)


def ratio(a: tuple, b: tuple) -> arithmetic.Value | None:
    """The constant q with a = q * b at all sample points, or None."""
    names = sorted(expression.symbols(a) | expression.symbols(b))
    first = None
    for point in points(names) + probes.points(a, b):
        try:
            top, bottom = evaluate.at(a, point), evaluate.at(b, point)
            with mpmath.workdps(arithmetic.DIGITS):
                here = arithmetic.divide(top, bottom)
        except (arithmetic.Undefined, arithmetic.TooLarge):
            continue
        if first is None:
            first = here
        elif not evaluate.close(first, here):
            return None
    return None if first is None or evaluate.close(first, Fraction(0)) else first


def points(names: list[str]) -> list[dict[str, mpmath.mpf]]:
    """Sample points of positive numbers, then of numbers of both signs."""
    return _points(names, positive=True) + _points(names, positive=False)


def _points(names: list[str], positive: bool) -> list[dict[str, mpmath.mpf]]:
    """Sample points, the same for the same names."""
    source = random.Random(20250517 + positive)
    with mpmath.workdps(arithmetic.DIGITS):
        low, widths = (mpmath.mpf(0.3), WIDTHS) if positive else (mpmath.mpf(-3), (3, 3, 3))
        return [
            {name: low + mpmath.mpf(source.getrandbits(190)) / 2**190 * width for name in names}
            for width in widths
        ]


def _same_at(a: tuple, b: tuple, point: dict, real_only: bool = False) -> bool | None:
    """Equal at a point; None if one has no value there (with real_only: no real one)."""
    try:
        left, right = (evaluate.at(node, point, real=real_only) for node in (a, b))
    except arithmetic.Undefined:
        return None
    except arithmetic.TooLarge:
        if point:  # a smaller point may do
            return None
        raise
    if evaluate.close(left, right):
        return True
    size = abs(arithmetic.inexact(left)) + abs(arithmetic.inexact(right))
    return size < 1e-20 and _vanishes(("sub", a, b), point)


def _confirmed(a: tuple, b: tuple, point: dict) -> bool:
    """Close values stay close as the precision grows: no long decimal passes for pi."""
    digits = 4 * arithmetic.DIGITS
    left, right = (evaluate.at(node, point, dps=digits) for node in (a, b))
    return evaluate.close(left, right, digits) or _vanishes(("sub", a, b), point)


def _vanishes(node: tuple, point: dict) -> bool:
    """The difference is rounding error: it is zero, or shrinks as the precision grows."""
    if isinstance(evaluate.at(node, point), Fraction):
        return False
    sizes = []
    for digits in (4 * arithmetic.DIGITS, 8 * arithmetic.DIGITS):
        with mpmath.workdps(digits):
            sizes.append(abs(arithmetic.inexact(evaluate.at(node, point, dps=digits))))
    rounding = mpmath.mpf(10) ** (-3 * arithmetic.DIGITS)
    shrunk = rounding * (sizes[0] * mpmath.mpf(10) ** arithmetic.DIGITS or rounding)
    return sizes[0] < rounding and sizes[1] <= shrunk
