"""Checks reference answers when data is loaded: how each will be compared."""

from collections import Counter
from collections.abc import Iterable

from cpgd_jax.rewards import choices, comparison, equality, leaves, numbers, parser, structure
from cpgd_jax.rewards.normalise import normalise, tokens

SHOWN, SHOWN_CHARS = 5, 40  # golds listed in a warning, and characters of each


def compared_as(gold: str) -> str:
    """How a gold is compared: "value" (by meaning), "text" (as written), "nothing" (never)."""
    gold = equality.clean_gold(gold)
    if len(gold) > equality.MAX_CHARS:
        return "text"
    text = normalise(gold)
    if not tokens(text):
        return "nothing"
    if choices.gold_letters(text) is not None or numbers.read(text) is not None:
        return "value"
    if equality.is_words(text) or equality.refused(text):
        return "text"
    return "value" if _readable(text) else "text"


def count(golds: Iterable[str]) -> Counter:
    """How many golds are compared in which way; what is not "value" deserves a look."""
    return Counter(map(compared_as, golds))


def warning(golds: Iterable[str]) -> str:
    """A sentence on the golds that are not compared by value; "" if there are none."""
    golds = list(golds)
    ways = [(gold, compared_as(gold)) for gold in golds]
    text, nothing = ([g for g, way in ways if way == kind] for kind in ("text", "nothing"))
    parts = [
        f"{len(found)} {what} ({_shown(found)})"
        for found, what in ((text, "compared as text"), (nothing, "empty, never paid"))
        if found
    ]
    return f"of {len(golds)} golds {' and '.join(parts)}" if parts else ""


def _shown(golds: list[str]) -> str:
    shown = [f"{' '.join(gold.split()):.{SHOWN_CHARS}}" for gold in dict.fromkeys(golds)]
    more = f", {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
    return ", ".join(map(repr, shown[:SHOWN])) + more


def _readable(text: str, depth: int = 0) -> bool:
    """Every leaf of the text is a formula."""
    if depth > comparison.MAX_NESTING:
        return False
    values = structure.items(text)
    if len(values) > 1:
        return all(_readable(value, depth + 1) for value in values)
    return bool(values) and all(
        _is_formula(part) if part == values[0] else _readable(part, depth + 1)
        for part in _parts(structure.read(values[0]))
    )


def _parts(node: tuple) -> list[str]:
    if node[0] == "leaf":
        return [node[1]]
    if node[0] == "matrix":
        return [cell for row in node[2] for cell in row]
    return list(node[-1])


def _is_formula(text: str) -> bool:
    body = leaves.unit_of(text)[0].removeprefix("+")
    if body.lstrip("-") == r"\infty":
        return True
    try:
        parser.parse(body)
    except parser.Unreadable:
        return leaves.is_calculus(body)
    return True
