r"""Single values: numbers with their units, formulas, words."""

import re

from cpgd_jax.rewards import arithmetic, expression, identities, numbers, parser, symbolic
from cpgd_jax.rewards.normalise import strip_ends, tokens

_UNITS = (
    "(?:km|cm|mm|m|miles?)/(?:h|hr|hour|s|sec|second|min|minute)|per cent"
    "|cm|mm|km|dm|nm|kg|mg|ml|mL|Hz|kHz|mph|ft|feet|foot|inches|inch|in|yards|yard|miles|mile|meters|meter|metres"
    "|metre|centimeters|kilometers|seconds|second|sec|minutes|minute|min|hours|hour|hr|days|day|weeks|week|years"
    "|year|degrees|degree|dollars|dollar|cents|cent|grams|gram|pounds|liters|litres|units|unit|people|percent"
    "|squareunits|squareinches|radians"
)
_POWER = r"(?:\s*\^\s*\{?\s*([23])\s*\}?)?"
_UNIT = re.compile(
    rf"(?:\\text\{{\s*([^{{}}0-9]+?(?:\^[23])?)\s*\}}|(?<![a-zA-Z\\])\{{?\b({_UNITS})\b\}}?){_POWER}\s*$"
    rf"|(?<=[0-9}}])\s+([a-z]{{4,20}}(?:\s[a-z]{{2,20}})?)\s*$|(\\degree(?:\s*C)?|%)\s*$|([\u4e00-\u9fff]+){_POWER}\s*$"
)
_STUCK_UNIT = re.compile(rf"(?<=[0-9}}])({_UNITS}){_POWER}\s*$")
_SAME_UNIT = {
    "degrees": "degree", r"\degree": "degree", "度": "degree", "inches": "inch", "in": "inch",
    "feet": "foot", "ft": "foot", "meters": "m", "meter": "m", "metres": "m", "metre": "m",
    "米": "m", "centimeters": "cm", "厘米": "cm", "千米": "km", "kilometers": "km", "毫米": "mm",
    "分米": "dm", "seconds": "s", "second": "s", "sec": "s", "秒": "s", "minutes": "min",
    "minute": "min", "分钟": "min", "hours": "h", "hour": "h", "hr": "h", "小时": "h",
    "deg": "degree", r"\degree C": "celsius", "centimetre": "cm", "kilometre": "km",
    "grams": "g", "gram": "g", "克": "g", "千克": "kg", "percent": "%", "per cent": "%",
    "平方厘米": "cm^2", "平方米": "m^2", "立方厘米": "cm^3", "立方米": "m^3",
}  # fmt: skip
_LETTER_UNIT = re.compile(r"(.*\d)\s*([mgshL])")  # read as a unit beside a value that has one
_SIZES = {
    "length": {"mm": "1/1000", "cm": "1/100", "dm": "1/10", "m": "1", "km": "1000"},
    "mass": {"mg": "1/1000", "g": "1", "kg": "1000"},
    "time": {"s": "1", "min": "60", "h": "3600", "day": "86400"},
}
_NO_UNIT = re.compile(  # text after a number that takes it back, or hedges
    r"\b(?:not|no|never|isn't|wrong|false|except|or|unless|but|if|may|maybe|might|could|perhaps"
    r"|possibly|either|else|than|least|most|approximately|approx|about|around|roughly|nearly|almost"
    r"|probably|likely|guess?|estimated?)\b|不|非|错|或|约|左右|大概|可能",
    re.IGNORECASE,
)
MAX_UNIT_WORDS = 4
_GROUPS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?![\d,])")
_CALCULUS = re.compile(r"\\(?:int|sum|prod|lim|det|gcd|max|min|iint|oint)(?![a-zA-Z])")


def unit_of(text: str) -> tuple[str, str]:
    r"""A value and its unit ("" = none): `5\text{ cm}^2` gives ("5", "cm^2")."""
    match = _UNIT.search(text) or _STUCK_UNIT.search(text)
    if not match or not text[: match.start()].strip():
        return text, ""
    groups = [part for part in match.groups() if part]
    name = groups[0].lower() if len(groups[0]) > 2 else groups[0]
    power = groups[1] if len(groups) > 1 else ""
    if name.startswith(("square ", "sq ")):
        name, power = name.split(" ", 1)[1], "2"
    if name.startswith("cubic "):
        name, power = name[6:], "3"
    single = name.removesuffix("s") if len(name) > 3 else name
    name = _SAME_UNIT.get(name) or _SAME_UNIT.get(single, single)
    return text[: match.start()].strip(), f"{name}^{power}" if power else name


def same_leaf(a: str, g: str) -> bool:
    """Two single values are the same; a unit may be left out, never exchanged."""
    if same_words(a, g):
        return True
    (a_body, a_unit), (g_body, g_unit) = unit_of(a), unit_of(g)
    if bool(a_unit) != bool(g_unit) and (letter := _LETTER_UNIT.fullmatch(g if a_unit else a)):
        a_body, a_unit = (a_body, a_unit) if a_unit else letter.groups()
        g_body, g_unit = (g_body, g_unit) if g_unit else letter.groups()
    if a_unit == g_unit:
        return same_value(a_body, g_body)
    if a_unit and g_unit and "%" not in (a_unit, g_unit):
        return _same_measure(a_body, a_unit, g_body, g_unit)
    if "%" in (a_unit, g_unit):
        return same_value(a, g) or (not (a_unit and g_unit) and same_value(a_body, g_body))
    if _NO_UNIT.search(a_unit) or len(a_unit.split()) > MAX_UNIT_WORDS:
        return False
    return same_value(a_body, g_body) or ("degree" in (a_unit, g_unit) and same_value(a, g))


def _same_measure(a: str, a_unit: str, g: str, g_unit: str) -> bool:
    """Values in two units of one kind: 500 cm is 5 m."""
    (a_kind, a_scale), (g_kind, g_scale) = _scale(a_unit), _scale(g_unit)
    if not a_kind or a_kind != g_kind:
        return False
    return same_value(f"({a})*({a_scale})", f"({g})*({g_scale})")


def _scale(unit: str) -> tuple[str, str]:
    """The kind of a metric unit and its size in the base unit; ("", "") if it is not known."""
    name, _, power = unit.partition("^")
    for kind, sizes in _SIZES.items():
        if name in sizes:
            return kind + power, f"({sizes[name]})^{power or 1}"
    return "", ""


def same_words(a: str, g: str) -> bool:
    """The same text but for case, blanks and text mode."""
    if r"\text" not in a + g and (a + g).isascii():
        return False
    left, right = (re.sub(r"\\text|[{}\s]", "", text).casefold() for text in (a, g))
    return left == right != ""


def same_value(a: str, g: str) -> bool:
    """Two texts without units have the same value. Raises arithmetic.TooLarge."""
    a, g = (strip_ends(text).removeprefix("+") for text in (a, g))
    if not a or not g:
        return False
    if tokens(a) == tokens(g):
        return True
    left, right = numbers.read(a), numbers.read(g)
    if left is not None and right is not None:
        return numbers.equal(left, right)
    try:
        return _same_formula(_parse(a), _parse(g))
    except parser.Unreadable:
        if is_calculus(a + g):
            return symbolic.same(a, g)
        return False


def _same_formula(a: tuple, g: tuple) -> bool:
    r"""The same value; `\log` may be the natural or the decimal logarithm, on both sides alike."""
    try:
        if identities.equal(a, g):
            return True
    except arithmetic.TooLarge:
        return identities.equal_powers(a, g)
    decimal = expression.decimal_logs(a), expression.decimal_logs(g)
    return decimal != (a, g) and identities.equal(*decimal)


def is_calculus(text: str) -> bool:
    """The text has a sum, an integral, a limit or the like, which `symbolic` reads."""
    return bool(_CALCULUS.search(text))


def same_ratio(a: list[str], g: list[str]) -> bool:
    """1:2 and 2:4."""
    if len(a) != len(g):
        return False
    try:
        left, right = [_parse(part) for part in a], [_parse(part) for part in g]
    except parser.Unreadable:
        return False
    return all(
        identities.equal(("mul", left[0], y), ("mul", right[0], x))
        for x, y in zip(left[1:], right[1:], strict=True)
    )


def _parse(text: str) -> tuple:
    """The formula of a text, its thousands separators taken out."""
    return parser.parse(_GROUPS.sub(lambda match: match.group().replace(",", ""), text))
