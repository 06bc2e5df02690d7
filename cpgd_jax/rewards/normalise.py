r"""One spelling for one formula: TeX, Unicode and markdown variants brought to common TeX.

Input is bounded by the caller (`equality.MAX_CHARS`). Meaning is never changed: thousands
separators, units and structure are read later, by `numbers`, `leaves` and `structure`.
"""

import re
import unicodedata

from cpgd_jax.rewards import spelling

_TEXT_COMMANDS = (
    "text|textrm|textbf|textit|textnormal|texttt|textsf|textup|mbox|hbox|mathrm|mathbf|mathit"
    "|mathsf|mathtt|mathnormal|operatorname|bold|bm|pmb|emph|unit|rm"
)
_TEXT = re.compile(rf"\\(?:{_TEXT_COMMANDS})\*?\s*\{{([^{{}}]*)\}}")
_NUMBER_FIRST = re.compile(r"([+-]?\d[\d.,/]*(?=\s))?\s*(.*)", re.DOTALL)
_POWER_THEN_INDEX = re.compile(r"\^\s*(\{[^{}]*\}|\w)\s*_\s*(\{[^{}]*\}|\w)")
_LEADING_SIGN = re.compile(r"^(?:=|\\approx|\\Rightarrow|\\therefore|∴)\s*(?=\S)")
_UNIT_LETTERS = "mgshLNJWVAK"
_COMMAND = re.compile(r"\\([a-zA-Z]+)\s*")
_DELIMITER = re.compile(r"\\\\|\\[()\[\]]")
_SPACING = re.compile(
    r"\\\\|\\[,;:!> ]|\\(?:hspace|vspace|phantom|tag)\*?\{[^{}]*\}|~|\\?\$|[€£¥₹]|\\\*"
)
_CURRENCY = re.compile(
    r"[€£¥₹]|\\\$|\\(?:euro|pounds)(?![a-zA-Z])|(?<![a-z])(?:dollar|euro)s?\b", re.I
)
_CURRENCIES = {r"\$": "dollar", "dollars": "dollar", "€": "euro", r"\euro": "euro", "euros": "euro",
               r"\pounds": "£"}  # fmt: skip
_BOLD = re.compile(r"(?<![\w)}\]])\*\*([^*]*)\*\*")
_GROUP_SPACE = re.compile(r",\s*\\!\s*")
_OVERESCAPED = re.compile(r"\\\\(?=[a-zA-Z])")
_NUMBER_COMMAND = re.compile(r"\\(?:number|num|quantity)\s*\{([^{}]*)\}")
_TWO_FORMULAS = re.compile(r"\$\s+\$|(?<=\S)\$\$\$\$(?=\S)")  # $5$ $7$ are two values
_INFIX = re.compile(r"\{([^{}]*)\\(over|choose)(?![a-zA-Z])([^{}]*)\}")  # {1 \over 2}
_INFIX_NAMES = {"over": r"\frac", "choose": r"\binom"}
_ANSWER_IS = re.compile(r"^\\text\{\s*(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*[:=]?\s*\}", re.I)
_QUOTED = re.compile(r"([\"'`*])([^\"'`*]+)\1")
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
_LAST_BREAK = re.compile(r"(?:\\\s*)+\$*\s*$")
_ROW_GAP = re.compile(r"(?<=\\\\)\s*\[\s*-?[\d.]+\s*[a-z]{2}\s*\]")  # of \\[4pt]
_EMPTY_SET = re.compile(r"\\\{\s*\\\}")
_SPACES = {r"\\": r"\\", r"\,": "", r"\!": ""}
_DEGREE = re.compile(
    r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z])|\\degree(?![a-zA-Z])|\{\s*\\degree\s*\})"
)
_RUN = re.compile(
    "([" + "".join(spelling.SUPERSCRIPTS) + "]+)|([" + "".join(spelling.SUBSCRIPTS) + "]+)"
)
_TOKEN = re.compile(r"\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\S", re.DOTALL)
_SHORT_FRAC = re.compile(r"\\frac\s*(\{[^{}]*\}|[0-9a-zA-Z])\s*(\{|[0-9a-zA-Z]|\\[a-zA-Z]+)")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\[[^\[\]]*\])?\s*(\d+(?:\.\d+)?|[a-zA-Z]|\\[a-zA-Z]+)")


_CHARACTERS = spelling.SYMBOLS | spelling.VULGAR | spelling.CIRCLED


def _runs(match: re.Match) -> str:
    if match.group(1):
        return "^{" + "".join(spelling.SUPERSCRIPTS[c] for c in match.group(1)) + "}"
    return "_{" + "".join(spelling.SUBSCRIPTS[c] for c in match.group(2)) + "}"


def _from_unicode(text: str) -> str:
    if text.isascii():
        return text
    text = _RUN.sub(_runs, text)
    text = "".join(_CHARACTERS.get(c, c) for c in text)
    text = unicodedata.normalize("NFKC", text)
    return "".join(spelling.SYMBOLS.get(c, c) for c in text)


def _text_command(match: re.Match) -> str:
    r"""`\text{...}`: single letters, numbers and symbols leave text mode, words stay marked."""
    inner = " ".join(match.group(1).split())
    letters = sum(c.isalpha() for c in inner)
    if letters == 0 or "\\" in inner:
        return f" {inner} "
    if letters == 1 and not (inner in _UNIT_LETTERS and _after_number(match)):
        return f" {inner} "
    number, words = _NUMBER_FIRST.fullmatch(inner).groups()
    return rf"{number or ''}\text{{{words}}}"


def _after_number(match: re.Match) -> bool:
    return match.string[: match.start()].rstrip(" {}")[-1:].isdigit()


def _command(match: re.Match) -> str:
    name = match.group(1)
    if name in spelling.DROPPED:
        return " "
    if name in ("text", "begin", "end"):
        return "\\" + name
    return spelling.RENAMED.get(name, "\\" + name) + " "


def _short_frac(match: re.Match) -> str:
    top, bottom = match.groups()
    top = top if top.startswith("{") else f"{{{top}}}"
    return rf"\frac{top}" + ("{" if bottom == "{" else f"{{{bottom}}}")


def currency(text: str) -> str:
    """The currency that a raw text names ("" = none, or several)."""
    names = {_CURRENCIES.get(m.group().casefold(), m.group()) for m in _CURRENCY.finditer(text)}
    return names.pop() if len(names) == 1 else ""


def normalise(text: str) -> str:
    """The common spelling of `text`; blanks are single and carry no meaning but between words."""
    text = _from_unicode(text)
    text = _TWO_FORMULAS.sub(" , ", text)
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace(":=", "=")
    text = _LAST_BREAK.sub("", _ROW_GAP.sub("", _COLOUR.sub("", text)))
    text = _DELIMITER.sub(lambda m: m.group() if m.group() == r"\\" else " ", text)
    text = text.replace("{,}", ",").replace("{}^", "^").replace(r"\%", "%")
    text = _GROUP_SPACE.sub(",", _NUMBER_COMMAND.sub(r"{\1}", text))
    text = text if r"\begin" in text else _OVERESCAPED.sub(r"\\", text)
    text = _BOLD.sub(r" \1 ", text)
    text = _SPACING.sub(lambda m: _SPACES.get(m.group(), " "), text)
    text = _INFIX.sub(lambda m: f"{_INFIX_NAMES[m[2]]}{{{m[1]}}}{{{m[3]}}}", text)
    text = _TEXT.sub(_text_command, text)
    text = _COMMAND.sub(_command, text)
    text = _DEGREE.sub(r"\\degree ", text)
    text = _SHORT_FRAC.sub(_short_frac, text)
    text = _SHORT_ROOT.sub(lambda m: rf"\sqrt{m.group(1) or ''}{{{m.group(2)}}}", text)
    text = _POWER_THEN_INDEX.sub(r"_\2^\1", _EMPTY_SET.sub(r"\\emptyset ", text))
    text = _ANSWER_IS.sub("", strip_ends(" ".join(text.split())))
    text = match.group(2) if (match := _QUOTED.fullmatch(text)) else text
    return _LEADING_SIGN.sub("", text.strip())


def strip_ends(text: str) -> str:
    """Without closing punctuation and without one pair of braces round the whole."""
    text = text.strip().rstrip(".,;:。").strip()
    while len(text) > 1 and text[0] == "{" and matching(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    return text


def matching(text: str, start: int) -> int:
    """Index of the brace that closes the one at `start`; -1 if none does."""
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0 and match.group() == "}":
            return match.start()
    return -1


def tokens(text: str) -> tuple[str, ...]:
    """Symbols of a normalised text, without blanks and without braces round single symbols."""
    out: list[str] = []
    opened: list[int] = []
    for token in _TOKEN.findall(text):
        if token == "{":
            opened.append(len(out))
        if token == "}" and opened and len(out) - opened[-1] == 2:
            out.pop(opened.pop())
            continue
        if token == "}" and opened:
            opened.pop()
        out.append(token)
    return tuple(out)
