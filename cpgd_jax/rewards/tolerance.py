"""Numbers that may differ by a stated absolute error, as in OlympiadBench. Runs in a worker."""

from collections.abc import Sequence
from fractions import Fraction

from cpgd_jax.rewards import arithmetic, evaluate, leaves, parser
from cpgd_jax.rewards.structure import items


def within(answer: str, gold: str, errors: Sequence[float]) -> bool:
    """Each number of a normalised gold has one of the answer's within its error, in any order.

    `errors`: one for each number of the gold, in its order, or one for all.
    """
    golds, rest = items(gold), items(answer)
    if len(errors) == 1:
        errors = list(errors) * len(golds)
    if not len(golds) == len(rest) == len(errors):
        return False
    for text, error in zip(golds, errors, strict=True):
        found = next((each for each in rest if _near(each, text, Fraction(str(error)))), None)
        if found is None:
            return False
        rest.remove(found)
    return True


def _near(a: str, g: str, error: Fraction) -> bool:
    try:
        nodes = [parser.parse(leaves.unit_of(text)[0]) for text in (a, g)]
        gap = evaluate.at(("sub", *nodes), {})
    except (parser.Unreadable, arithmetic.Undefined, arithmetic.TooLarge, KeyError):
        return False
    if isinstance(gap, Fraction):
        return abs(gap) <= error
    return bool(abs(gap) <= arithmetic.inexact(error))
