"""Plain numbers, exactly: integers, decimals, fractions, mixed numbers, powers of ten, per cent."""

import re
from dataclasses import dataclass
from fractions import Fraction

MAX_DIGITS = 2000  # longer digit strings are compared as text
MAX_POWER_OF_TEN = 1000

_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PLAIN = re.compile(rf"({_DECIMAL})(?:e([+-]?\d{{1,4}}))?", re.IGNORECASE)
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{1,3}(?: \d{3})+(?:\.\d+)?")
_RATIO = re.compile(rf"([+-]?{_DECIMAL})/([+-]?{_DECIMAL})")
_FRAC = re.compile(rf"\\frac\{{([+-]?{_DECIMAL})\}}\{{([+-]?{_DECIMAL})\}}", re.IGNORECASE)
_MIXED = re.compile(r"(\d+)(?:\\frac\{(\d+)\}\{(\d+)\}|[ +](\d+)/(\d+))")
_SCIENTIFIC = re.compile(rf"(?:({_DECIMAL})(?:\\times|\\cdot|\*|x))?10\^\{{?([+-]?\d{{1,5}})\}}?")
_REPEATING = re.compile(
    r"(\d+)\.(\d*)(?:\\(?:overline|bar|dot)\{(\d+)\}|\\dot\{(\d)\}(\d*)\\dot\{(\d)\})"
)
_BLANKS = re.compile(r"(?<![0-9]) | (?![0-9])")


@dataclass(frozen=True)
class Number:
    """An exact value and how it was written."""

    value: Fraction
    percent: bool = False  # the value is already divided by 100
    decimal_digits: int = 0  # significant digits if written as a decimal with a point, else 0


def read(text: str) -> Number | None:
    """The number that a normalised text is, or None. Never more than MAX_DIGITS digits."""
    if re.search(r",\s", text):  # a list, not a thousands separator
        return None
    text = _BLANKS.sub("", text)
    if len(text) > MAX_DIGITS or not any(c.isdigit() for c in text):
        return None
    percent = text.endswith("%")
    body = text[:-1].strip() if percent else text
    sign = -1 if body.startswith("-") else 1
    body = body[1:] if body[:1] in ("+", "-") else body
    value = _unsigned(body)
    if value is None:
        return None
    digits = _decimal_digits(body)
    return Number(sign * value / (100 if percent else 1), percent, digits)


def _unsigned(body: str) -> Fraction | None:
    if match := _PLAIN.fullmatch(body):
        return _scaled(match.group(1), match.group(2) or "0")
    if _GROUPED.fullmatch(body):
        return Fraction(body.replace(",", "").replace(" ", ""))
    if match := _RATIO.fullmatch(body) or _FRAC.fullmatch(body):
        top, bottom = (Fraction(part) for part in match.groups())
        return top / bottom if bottom else None
    if match := _MIXED.fullmatch(body):
        whole, top, bottom = (int(part) for part in match.groups() if part is not None)
        return whole + Fraction(top, bottom) if top < bottom else None
    if match := _SCIENTIFIC.fullmatch(body):
        return _scaled(match.group(1) or "1", match.group(2))
    if match := _REPEATING.fullmatch(body):
        return _repeating(*match.group(1, 2), "".join(filter(None, match.groups()[2:])))
    return None


def _repeating(whole: str, fixed: str, period: str) -> Fraction:
    r"""`0.1\overline{6}` is 1/6."""
    start = Fraction(f"{whole}.{fixed}0")
    return start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))


def _scaled(digits: str, exponent: str) -> Fraction | None:
    power = int(exponent)
    if abs(power) > MAX_POWER_OF_TEN:
        return None
    return Fraction(digits) * (Fraction(10) ** power)


def _decimal_digits(body: str) -> int:
    if not re.fullmatch(r"\d*\.\d+", body):
        return 0
    return len(body.replace(".", "").lstrip("0"))


def equal(answer: Number, gold: Number) -> bool:
    """The same value; "50" for "50%" (sign left out); a repeating fraction to 6 digits or more."""
    if answer.value == gold.value:
        return True
    if answer.percent != gold.percent:
        scale = 100 if gold.percent else Fraction(1, 100)
        return answer.value == gold.value * scale and gold.value != 0
    return _rounds_to(answer, gold) or _rounds_to(gold, answer)


def _rounds_to(decimal: Number, exact: Number) -> bool:
    """`decimal` is `exact`, a repeating one, cut or rounded to 6 or more significant digits."""
    if decimal.decimal_digits < 6 or exact.decimal_digits or _terminates(exact.value):
        return False
    places = _places(decimal.value)
    return abs(decimal.value - exact.value) < Fraction(1, 10**places)


def _places(value: Fraction) -> int:
    places = 0
    while (value * 10**places).denominator != 1:
        places += 1
    return places


def _terminates(value: Fraction) -> bool:
    rest = value.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return rest == 1
