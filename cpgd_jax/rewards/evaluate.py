"""Values of formulas at a point: exact fractions as long as possible, else 60-digit numbers."""

from fractions import Fraction

import mpmath

from cpgd_jax.rewards import arithmetic
from cpgd_jax.rewards.arithmetic import DIGITS, Undefined, Value


def close(a: Value, b: Value, dps: int = DIGITS) -> bool:
    """Exactly equal fractions; other numbers to half of `dps` digits, relative."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    with mpmath.workdps(dps):
        x, y = arithmetic.inexact(a), arithmetic.inexact(b)
        return abs(x - y) <= mpmath.mpf(10) ** (-dps // 2) * max(abs(x), abs(y))


def at(node: tuple, point: dict, dps: int = DIGITS, real: bool = False) -> Value:
    """The value of a formula at a point. Raises Undefined or TooLarge.

    With `real` a part that is no real number, as the root of a negative one, is undefined.
    """
    with mpmath.workdps(dps):
        try:
            value = _value(node, point, real)
        except (ZeroDivisionError, OverflowError, ValueError) as error:
            raise Undefined(str(error)) from error
        if not isinstance(value, Fraction) and not mpmath.isfinite(value):
            raise Undefined("not finite")
        return value


def _value(node: tuple, point: dict, real: bool) -> Value:
    kind, *parts = node
    if kind == "num":
        return parts[0]
    if kind == "sym":
        return point[parts[0]]
    if kind == "call":
        value = arithmetic.call(parts[0], [_value(part, point, real) for part in parts[1:]])
    else:
        values = [_value(part, point, real) for part in parts]
        value = arithmetic.bounded(arithmetic.OPERATIONS[kind](*values))
    if real and not arithmetic.is_real(value):
        raise Undefined("not real")
    return value


def exactly(node: tuple) -> Fraction | None:
    """The value of a formula without symbols if it is a fraction, else None."""
    try:
        value = at(node, {})
    except (ArithmeticError, KeyError):
        return None
    return value if isinstance(value, Fraction) else None
