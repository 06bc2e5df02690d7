"""Pieces of rules: the answer of a response in any format, the verifier's word on it."""

from cpgd_jax.benchmarks.records import Item, Verdict
from cpgd_jax.rewards import answers

VERIFIER = "the maths verifier on the last box, what follows 'the answer is', or the last line"


def readable(response: str) -> str:
    """The response as the verifier reads it: where neither box nor tag is, all of it answers, or,
    where no words lead to an answer, its last line."""
    if answers.extract(response):
        return response
    block, tagged = answers.answer_block(response)
    if tagged or not block.strip():
        return response
    said = answers.unboxed(block)
    if "\n" in said or len(said) > answers.MAX_SENTENCE:  # it is all there is
        lines = [line for line in block.splitlines() if any(map(str.isalnum, line))]
        block = lines[-1] if lines else ""
    return f"<answer>{block}</answer>"


def found(response: str) -> str:
    """The answer of a response, as written; "" = none."""
    return answers.extract(readable(response))


def verified(item: Item, response: str, verifier, errors=()) -> Verdict:
    """The verifier's verdict: letters, numbers, formulas, words by the kind of the gold."""
    score = verifier.score(readable(response), item.gold, errors=errors)
    return Verdict(bool(score.accuracy), score.extracted, score.reason)
