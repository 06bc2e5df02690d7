"""Arithmetic on exact fractions and 60-digit numbers, always bounded.

Exact numbers that would not fit into MAX_BITS are refused, never computed.
"""

import math
from fractions import Fraction

import mpmath

MAX_BITS = 100_000  # of an exact number
MAX_FACTORIAL = 3000
MAX_EXPONENT = 10**12  # of an inexact power
DIGITS = 60
TOLERANCE = mpmath.mpf(10) ** -30  # relative, of an imaginary part that is rounding error

Value = Fraction | mpmath.mpf | mpmath.mpc


class TooLarge(ArithmeticError):
    """A number beyond the bounds: not computed."""


class Undefined(ArithmeticError):
    """No finite value at this point."""


def bounded(value: Value) -> Value:
    if isinstance(value, Fraction) and _bits(value) > MAX_BITS:
        raise TooLarge("an exact number of too many digits")
    return value


def _bits(value: Fraction) -> int:
    return max(value.numerator.bit_length(), value.denominator.bit_length())


def inexact(value: Value):
    """The value as an mpmath number of the current precision."""
    if isinstance(value, Fraction):
        return mpmath.mpf(value.numerator) / value.denominator
    return value


def _pair(a: Value, b: Value) -> tuple:
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a, b
    return inexact(a), inexact(b)


def divide(a: Value, b: Value) -> Value:
    """a / b. Raises Undefined for b = 0."""
    a, b = _pair(a, b)
    if b == 0:
        raise Undefined("division by zero")
    return a / b


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        if exponent.denominator == 1:
            return _whole_power(base, exponent.numerator)
        if base >= 0 and (root := _exact_root(base, exponent.denominator)) is not None:
            return _whole_power(root, exponent.numerator)
    if abs(inexact(exponent)) > MAX_EXPONENT:
        raise TooLarge("an exponent too large")
    return mpmath.power(inexact(base), inexact(exponent))


def _whole_power(base: Fraction, exponent: int) -> Fraction:
    if base in (0, 1, -1):
        if base == 0 and exponent <= 0:
            raise Undefined("a power of zero")
        return base ** (exponent % 2 if base == -1 else 1) if exponent else Fraction(1)
    if _bits(base) * abs(exponent) > 2 * MAX_BITS:
        raise TooLarge("a power of too many digits")
    return base**exponent


def _exact_root(value: Fraction, index: int) -> Fraction | None:
    """The rational index-th root of a fraction >= 0, or None."""
    if index > 64 or _bits(value) > 4000:
        return None
    top, bottom = _whole_root(value.numerator, index), _whole_root(value.denominator, index)
    root = Fraction(top, bottom)
    return root if root**index == value else None


def _whole_root(number: int, index: int) -> int:
    """The index-th root of a whole number, rounded."""
    if index == 2:
        return math.isqrt(number)
    with mpmath.workdps(20 + number.bit_length() // 3):
        return int(mpmath.nint(mpmath.root(number, index)))


def _root(value: Value, index: Value) -> Value:
    whole = isinstance(index, Fraction) and index.denominator == 1 and index > 0
    negative = is_real(value) and inexact(value).real < 0
    if whole and index % 2 == 1 and negative:  # the real root
        return -_power(-value, Fraction(1, int(index)))
    return _power(value, divide(Fraction(1), index))


def is_real(value: Value) -> bool:
    """No imaginary part, up to rounding."""
    return isinstance(value, Fraction) or abs(mpmath.im(value)) <= TOLERANCE * abs(value)


def _factorial(n: Value) -> Value:
    if isinstance(n, Fraction) and n.denominator == 1:
        if n < 0:
            raise Undefined("factorial of a negative number")
        if n > MAX_FACTORIAL:
            raise TooLarge("a factorial too large")
        return Fraction(int(mpmath.fac(int(n)))) if n < 20 else Fraction(_product(int(n)))
    return mpmath.gamma(_small(n) + 1)


def _product(n: int) -> int:
    result = 1
    for factor in range(2, n + 1):
        result *= factor
    return result


def _small(value: Value):
    number = inexact(value)
    if abs(number) > 10**6:
        raise TooLarge("an argument too large")
    return number


def _binomial(n: Value, k: Value) -> Value:
    if not (isinstance(n, Fraction) and isinstance(k, Fraction)):
        return mpmath.binomial(_small(n), _small(k))
    if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n:
        raise Undefined("a binomial coefficient of other than whole numbers")
    if n > MAX_FACTORIAL:
        raise TooLarge("a binomial coefficient too large")
    return Fraction(_product(int(n)), _product(int(k)) * _product(int(n - k)))


def _log(value: Value, base: Value | None = None) -> Value:
    if value == 0:
        raise Undefined("logarithm of zero")
    top = mpmath.log(inexact(value))
    return top if base is None else _snap(divide(top, mpmath.log(inexact(base))))


def _snap(value: Value) -> Value:
    """A logarithm that is a whole number up to rounding, as that number."""
    near = mpmath.nint(mpmath.re(value))
    return Fraction(int(near)) if abs(value - near) < mpmath.mpf(10) ** (10 - DIGITS) else value


def _rounded(value: Value, up: bool) -> Fraction:
    if not isinstance(value, Fraction):
        value = _snap(value)
    if isinstance(value, Fraction):
        return Fraction(-((-value) // 1)) if up else Fraction(value // 1)
    return Fraction(int(mpmath.ceil(value.real) if up else mpmath.floor(value.real)))


OPERATIONS = {
    "neg": lambda a: -a,
    "add": lambda a, b: sum(_pair(a, b)),
    "sub": lambda a, b: _pair(a, b)[0] - _pair(a, b)[1],
    "mul": lambda a, b: _pair(a, b)[0] * _pair(a, b)[1],
    "div": divide,
    "pow": _power,
}
_EXACT_CALLS = {
    "factorial": _factorial,
    "binomial": _binomial,
    "root": _root,
    "abs": abs,
    "floor": lambda value: _rounded(value, up=False),
    "ceiling": lambda value: _rounded(value, up=True),
    "ln": _log,
    "log": _log,
    "pi": lambda: +mpmath.pi,
    "e": lambda: +mpmath.e,
    "i": lambda: mpmath.mpc(0, 1),
    "degree": lambda: +mpmath.degree,
}
_INEXACT_CALLS = {
    "exp": mpmath.exp, "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot,
    "sec": mpmath.sec, "csc": mpmath.csc, "arcsin": mpmath.asin, "arccos": mpmath.acos,
    "arctan": mpmath.atan, "arccot": mpmath.acot, "sinh": mpmath.sinh, "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
}  # fmt: skip


def call(name: str, values: list[Value]) -> Value:
    """The value of a named function. Raises Undefined or TooLarge."""
    if name in _EXACT_CALLS:
        return bounded(_EXACT_CALLS[name](*values))
    if name not in _INEXACT_CALLS or len(values) != 1:
        raise Undefined(f"no function {name}")
    return _INEXACT_CALLS[name](_small(values[0]))
