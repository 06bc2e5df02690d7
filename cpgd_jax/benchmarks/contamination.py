"""Which items of a benchmark stand in training data.

An item is found if 13 words in a row of its question, in lower case and without punctuation, stand
in one training question (the rule of arXiv 2005.14165, appendix C), a shorter one if it is equal.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from cpgd_jax.benchmarks.reading import SHOWN, Loaded
from cpgd_jax.benchmarks.records import Item
from cpgd_jax.data import rows
from cpgd_jax.errors import UserError

LENGTH = 13  # words
_WORD = re.compile(r"\w+")


def report(loaded: Mapping[str, Loaded], paths: Sequence[str]) -> None:
    """Adds to each benchmark's report the items that are in the training files. UserError."""
    if not paths:
        return
    known = [question for path in paths for question in questions(path)]
    for found in loaded.values():
        ids = seen(found.items, known)
        found.report["in the training data"] = {"count": len(ids), "examples": ids[:SHOWN]}


def seen(items: Iterable[Item], questions: Iterable[str]) -> list[str]:
    """Ids of the items that are among the training questions."""
    known = {run for question in questions for run in _runs(question)}
    return [item.id for item in items if known.intersection(_runs(item.prompt))]


def _runs(text: str) -> Iterable[Sequence[str]]:
    words = tuple(_WORD.findall(text.lower()))
    if len(words) < LENGTH:
        return [words] if words else []
    return (words[at : at + LENGTH] for at in range(len(words) - LENGTH + 1))


def questions(path: str) -> list[str]:
    """Of a JSON-lines file of training rows, broken ones left out. UserError: there is none."""
    found = []
    for _, line in rows.lines(path, "--training_data"):
        try:
            row = rows.example(rows.parse(line), "", rows.Fields(answer=""), images=True)
        except rows.Broken:
            continue
        found.append(row.prompt)
    if not found:
        raise UserError(f"--training_data={path} has no row with a question")
    return found
