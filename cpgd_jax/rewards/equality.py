r"""Is the answer equal to the gold? Bounds and the paths that are exact and cheap.

`quick` decides in the caller's process what text, letters and plain numbers can decide, and refuses
what is too long or too deep to parse. Only the rest goes to a worker process (`comparison`).
"""

import re
from dataclasses import dataclass

from cpgd_jax.rewards import answers, choices, numbers
from cpgd_jax.rewards.normalise import currency, normalise, tokens

MAX_CHARS = 3000  # of an answer or gold that is parsed; longer ones are compared as text
MAX_DEPTH = 40  # nested brackets
MAX_COMMANDS = 400  # TeX commands

_OPEN, _CLOSE = frozenset("([{"), frozenset(")]}")
_WORDS = re.compile(r"(?:\\text\{[^{}]*\}|[^\W\d_]|[\s'’.,-])+")
_NOTHING = re.compile(
    r"\\emptyset|(?:there (?:is|are) )?no (?:real )?solutions?|无解|空集|方程无解", re.I
)
_LATIN_WORD = re.compile(r"[A-Za-z]{4,}")


@dataclass(frozen=True)
class Verdict:
    """Whether the answer equals the gold, and why in a few words."""

    equal: bool
    reason: str


def clean_gold(gold: str) -> str:
    """The gold without a box round it."""
    box = answers.last_box(gold) if len(gold) <= MAX_CHARS else None
    return gold if box is None else box


def quick(answer: str, gold: str) -> Verdict | None:
    """The verdict where text, letters or plain numbers decide it; None: ask `comparison`."""
    gold = clean_gold(gold)
    if not answer.strip():
        return Verdict(False, "no answer found")
    if not gold.strip():
        return Verdict(False, "gold is empty")
    if max(len(answer), len(gold)) > MAX_CHARS:
        same = "".join(answer.split()) == "".join(gold.split())
        return Verdict(same, "same text" if same else "too long to compare but as text")
    if other_currency(answer, gold):
        return Verdict(False, "another currency")
    return _quick(normalise(answer), normalise(gold))


def other_currency(answer: str, gold: str) -> bool:
    """Both raw texts name a currency, not the same one."""
    named = currency(answer), currency(gold)
    return all(named) and named[0] != named[1]


def parsable(answer: str, gold: str) -> bool:
    """Both texts are within the bounds of a parser."""
    texts = (answer, clean_gold(gold))
    return all(len(text) <= MAX_CHARS and not refused(normalise(text)) for text in texts)


def _quick(answer: str, gold: str) -> Verdict | None:
    answer_tokens, gold_tokens = tokens(answer), tokens(gold)
    if not answer_tokens or not gold_tokens:
        return Verdict(False, "gold is empty" if answer_tokens else "no answer found")
    if answer_tokens == gold_tokens:
        return Verdict(True, "same text")
    if (letters := choices.gold_letters(gold)) is not None:
        chosen = choices.chosen(answer)
        if chosen:
            same = chosen == letters
            return Verdict(same, "same choice" if same else "another choice")
        return Verdict(False, "not a choice")
    if (letters := choices.label(gold)) and (chosen := choices.chosen(answer)):
        return Verdict(chosen == letters, "same choice" if chosen == letters else "another choice")
    if _is_nothing(answer) and _is_nothing(gold):
        return Verdict(True, "no solution")
    if (decided := _by_number(answer, gold)) is not None:
        return decided
    if is_words(gold):
        same = _words(answer) == _words(gold)
        return Verdict(same, "same words" if same else "other words")
    if refusal := refused(answer) or refused(gold):
        return Verdict(False, refusal)
    return None


def _by_number(answer: str, gold: str) -> Verdict | None:
    a, g = numbers.read(answer), numbers.read(gold)
    if a is None or g is None:
        return None
    if numbers.equal(a, g):
        return Verdict(True, "same number")
    if "," in answer and "," in gold:  # 100,200 may be a list
        return None
    return Verdict(False, "another number")


def _is_nothing(text: str) -> bool:
    r"""The text says that there is no solution: `\emptyset`, 无解, "no real solutions"."""
    return bool(_NOTHING.fullmatch(re.sub(r"\\text|[{}]", "", text).strip(" .")))


def is_words(gold: str) -> bool:
    r"""The gold is language, no formula: only letters, some in `\text` or a long word."""
    if gold.casefold() in ("yes", "no"):
        return True
    if not _WORDS.fullmatch(gold):
        return False
    plain = re.sub(r"\\text", "", gold)
    return r"\text" in gold or bool(_LATIN_WORD.search(plain)) or not plain.isascii()


def _words(text: str) -> str:
    text = re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text)
    return "".join(c for c in text.casefold() if c.isalnum() or c in "\\^_+*/<>=-")


def refused(text: str) -> str:
    """Why a normalised text must not reach a parser ("" = it may)."""
    depth = deepest = 0
    for char in text:
        depth += (char in _OPEN) - (char in _CLOSE)
        deepest = max(deepest, depth)
    if deepest > MAX_DEPTH:
        return "nested too deeply to compare but as text"
    if text.count("\\") > MAX_COMMANDS:
        return "too many commands to compare but as text"
    return ""
