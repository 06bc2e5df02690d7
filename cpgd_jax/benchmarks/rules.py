"""Pieces of rules: the answer of a response in any format, the verifier's word on it."""

from cpgd_jax.benchmarks.records import Item, Verdict
from cpgd_jax.rewards import answers

MAX_EXTRACTED = 2000  # characters kept of an extracted answer

VERIFIER = "the maths verifier on the last box, else on what follows 'the answer is'"


def readable(response: str) -> str:
    """The response as the verifier reads it: where neither box nor tag is, all of it answers."""
    if answers.extract(response):
        return response
    block, tagged = answers.answer_block(response)
    return response if tagged or not block.strip() else f"<answer>{block}</answer>"


def found(response: str) -> str:
    """The answer of a response, as written; "" = none."""
    return answers.extract(readable(response))


def verified(item: Item, response: str, verifier, errors=()) -> Verdict:
    """The verifier's verdict: letters, numbers, formulas, words by the kind of the gold."""
    score = verifier.score(readable(response), item.gold, errors=errors)
    return Verdict(bool(score.accuracy), score.extracted, score.reason)
