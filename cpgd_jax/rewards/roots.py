"""Places where a formula vanishes, found by Newton's method in one symbol at a time."""

import functools
from collections.abc import Callable

import mpmath

from cpgd_jax.rewards import arithmetic, evaluate, expression, identities

STEPS = 40
MAX_ROOTS = 4  # in one symbol from one point
_H = mpmath.mpf(10) ** -15  # step of the numeric derivatives
_NEAR = mpmath.mpf(10) ** -25  # last step of a search that has arrived
_ZERO = mpmath.mpf(10) ** -15  # relative: the other formula vanishes there, too


def common(factor: tuple, rest: tuple) -> bool:
    """`factor` vanishes nowhere at the sample points, or somewhere together with `rest`.

    A factor that is never zero has no root to be found; one that is zero everywhere has all.
    """
    names = sorted(expression.symbols(factor))
    if not identities.nonzero(factor):
        return True
    points = identities.points(sorted(set(names) | expression.symbols(rest)))
    size = max((abs(value) for p in points if (value := _at(rest, p)) is not None), default=0)
    for name in names:
        for point in points[::2]:
            function = functools.partial(_with, factor, point, name)
            zero = [mpmath.mpf(0)] if function(mpmath.mpf(0)) == 0 else []  # as of a square root
            for root in zero + _roots(function, point[name]):
                value = _with(rest, point, name, root)
                if value is not None and abs(value) <= _ZERO * size:
                    return True
    return False


def _with(node: tuple, point: dict, name: str, value):
    return _at(node, {**point, name: value})


def _at(node: tuple, point: dict):
    try:
        return arithmetic.inexact(evaluate.at(node, point))
    except (arithmetic.Undefined, arithmetic.TooLarge):
        return None


def _roots(function: Callable, start) -> list:
    """Roots of a function of one number, each sought with those before it divided out."""
    found: list = []
    with mpmath.workdps(arithmetic.DIGITS):
        while len(found) < MAX_ROOTS:
            root = _root(lambda x: _deflated(function, found, x), start)
            if root is None:
                break
            found.append(root)
    return found


def _deflated(function: Callable, found: list, x):
    value = function(x)
    for root in found:
        value = None if value is None or x == root else value / (x - root)
    return value


def _root(function: Callable, x):
    """Newton's method on f/f', which has only single roots; None where it does not arrive."""
    for _ in range(STEPS):
        low, here, high = function(x - _H), function(x), function(x + _H)
        if here == 0:
            return x
        if low is None or here is None or high is None:
            return None
        slope, bend = (high - low) / (2 * _H), (high - 2 * here + low) / _H**2
        below = slope**2 - here * bend
        if abs(below) <= _ZERO * abs(slope) ** 2:  # as of e^x: no root
            return None
        step = here * slope / below
        x -= step
        if abs(step) <= _NEAR * max(1, abs(x)):
            value = function(x)
            return x if value is not None and abs(value) <= abs(here) else None
    return None
