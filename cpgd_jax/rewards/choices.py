"""Multiple choice: the letters an answer chooses, read strictly."""

import re

_GOLD = re.compile(r"[(\[]?([A-H](?:\s*,?\s*[A-H])*)[)\]]?")
_LABEL = re.compile(
    r"^(?:the\s+)?(?:correct\s+)?(?:option|choice|answer|选项|[故应]?选|答案)\s*(?:is\b|[是为])?\s*[:\uff1a]?\s*",
    re.IGNORECASE,
)
_PRAISE = re.compile(r"\s+is\s+(?:the\s+)?(?:correct|right)(?:\s+(?:answer|option|choice))?$", re.I)
_LABELLED = re.compile(
    r"(?:\(([A-H])\)|([A-H])[.)])\s+(?=\w|\\(?:text|frac|sqrt))"
)  # a gold such as "A. 5"
_LETTERS = re.compile(
    r"[(\[]?([A-Ha-h])[)\]]?(?:(?:\s*[,;&]\s*|\s+and\s+|\s*和\s*|\s*)[(\[]?([A-H])[)\]]?)*"
)
_WITH_TEXT = re.compile(r"(?:\(([A-H])\)|([A-H])\s*[.:)])\s*(\S.*)", re.DOTALL)
_LONE_LETTER = re.compile(r"(?<![A-Za-z\\{])[A-H](?![A-Za-z}])")


def gold_letters(gold: str) -> frozenset[str] | None:
    """The letters of a gold such as "B", "(B)", "AC" or "A, C" (ascending, each once), or None."""
    match = _GOLD.fullmatch(gold)
    if not match:
        return None
    letters = [c for c in match.group(1) if c.isalpha()]
    return frozenset(letters) if letters == sorted(set(letters)) else None


def label(gold: str) -> frozenset[str]:
    """The letter before the text of a choice as the gold ("A. 5"); none for any other gold."""
    match = _LABELLED.match(gold)
    return frozenset(match.group(1) or match.group(2)) if match else frozenset()


def chosen(answer: str) -> frozenset[str]:
    r"""The letters that a normalised answer chooses: "D", "(d)", "A, C", "B. 15 cm"; else none."""
    text = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", answer).replace(r"\&", "&").strip()
    text = _LABEL.sub("", text).removesuffix("选项").removesuffix("项").strip(" .")
    text = _PRAISE.sub("", text)
    if _LETTERS.fullmatch(text):
        plain = re.sub(r"\band\b|和", ",", text)
        letters = [c for c in plain if c.isalpha()]
        return (
            frozenset(c.upper() for c in letters)
            if len(set(letters)) == len(letters)
            else frozenset()
        )
    if (match := _WITH_TEXT.fullmatch(text)) and not _LONE_LETTER.search(match.group(3)):
        return frozenset(match.group(1) or match.group(2))
    return frozenset()
