r"""MATH-Vision test (arXiv 2402.14804): a letter or a free answer; a rule without a model.

The answer is the last box, else what follows "the answer is", cleaned; it is right if it is the
gold or the gold option's text, or if both are formulas with the same value at two decimals.
"""

import re

from cpgd_jax.benchmarks.records import Benchmark, Item, Verdict, choice_lines, groups, shown
from cpgd_jax.rewards import answers, evaluate, parser
from cpgd_jax.rewards.normalise import normalise

LETTERS = "ABCDE"
_SAID = re.compile(r"(?:the (?:final |correct )?answer is|the answer should be)", re.IGNORECASE)
_DROPPED = re.compile(
    r"\\text|\\mbox|\\left|\\right|\\!|\\,|\\?\$|\\%|\^\{\\circ\}|\^\\circ|\{\}|\s|\{?m\}?\^3"
    r"|\{?units\}?|\{?km\}?"
)
_LETTER = re.compile(r"\{?\(([a-e])\)\}?|\{([a-e])\}")
_WHOLE = re.compile(r"\{([^{}]*)\}")
_PLACE = re.compile(r"\n?<image\d+>")


def item(row: dict) -> Item:
    """The picture shows all of a question's images; their places in the text are left out."""
    options = list(row.get("options") or ())
    gold = str(row["answer"]).strip()
    gold = answers.last_box(gold) or gold
    value = options[LETTERS.index(gold)] if options else ""
    listed = choice_lines(options) if options and options != list(LETTERS) else ""
    hint = "\nAnswer with one letter in \\boxed{}." if options else ""
    picture = row.get("decoded_image") or row["image"]
    return Item(
        str(row["id"]),
        _PLACE.sub("", row["question"]).strip() + listed + hint,
        gold,
        shown(picture),
        groups(row, "subject", "level"),
        {"value": value},
    )


def answer_of(response: str) -> str:
    """The cleaned answer of a response; "" = none."""
    block, tagged = answers.answer_block(response)
    text = (block if tagged else answers.until_stop(response)).strip()
    for letter in LETTERS:
        ends = (f" {letter}.", f" ({letter}).")
        starts = (f"{letter}\n", f"({letter})\n", f"({letter}) {letter}\n")
        if text.endswith(ends) or text.startswith(starts):
            text = letter
    last = text.rsplit("is ", 1)[-1].rstrip(".")
    text = last if _number(last) is not None else text
    box = answers.last_box(text)
    if box is not None:
        return clean(box)
    said = _SAID.split(text)
    return clean(said[-1].strip().split("\n")[0].split(". ")[0] if len(said) > 1 else text)


def clean(text: str) -> str:
    """In lower case, without spaces, TeX dress, degree and per cent signs; an equation's end."""
    text = re.split(r"=|\\approx", text.lower())[-1].replace("\\\\", "\\").replace("∞", r"\infty")
    text = _DROPPED.sub("", text).replace("tfrac", "frac").replace("dfrac", "frac")
    text = _LETTER.sub(lambda match: match[1] or match[2], text).strip(":").rstrip(".")
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


def rule(item: Item, response: str, verifier) -> Verdict:
    answer = answer_of(response)
    for gold in (item.gold, item.row["value"]):
        reason = _same(answer, gold, verifier) if gold and answer else ""
        if reason:
            return Verdict(True, answer, reason)
    return Verdict(False, answer, "another answer" if answer else "no answer found")


def _same(answer: str, gold: str, verifier) -> str:
    """Why they are the same; "" = they are not."""
    if answer in (gold.lower().strip(), clean(gold)):
        return "same text"
    numbers = _number(answer), _number(clean(gold))
    if None not in numbers:
        return "same at two decimals" if round(numbers[0], 2) == round(numbers[1], 2) else ""
    if not any(char.isdigit() for char in answer + gold):
        return ""
    score = verifier.score(answer, gold)
    return "same at two decimals" if score.extra["at_two_decimals"] else ""


def at_two_decimals(answer: str, gold: str) -> float:
    """1.0 if both are numbers, or tuples of numbers, that agree at two decimals. In a worker."""
    values = _values(answer), _values(clean(gold))
    return float(None not in values and values[0] == values[1])


def _values(text: str):
    """A number rounded to two decimals; of a tuple or list its brackets and numbers; else None."""
    inner = text[1:-1].split(",")
    try:
        if len(inner) > 1 and text[0] + text[-1] in ("()", "[]"):
            return text[0], *(_rounded(part) for part in inner)
        return _rounded(text)
    except (ArithmeticError, KeyError, ValueError, TypeError, parser.Unreadable):
        return None


def _rounded(text: str) -> float:
    if "%" in text or "**" in text:
        raise ValueError("officially no formula")
    return round(float(evaluate.at(parser.parse(normalise(text)), {})), 2)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


BENCHMARK = Benchmark(
    title="MATH-Vision test",
    files=("test.jsonl", "test*.parquet", "*.parquet", "*.jsonl"),
    count=3040,
    fields="id,question,options,answer,solution,level,subject,image,decoded_image",
    item=item,
    rule=rule,
    rule_name="the official rule; variant in that formulas are read by our parser, golds and texts"
    " of options are cleaned as answers are, and <answer> tags are known",
    functions=("cpgd_jax.benchmarks.mathvision:at_two_decimals",),
)
