"""Every gold of the maths data sets is paid against itself and not against another one.

`pytest -m slow -s tests/test_golds_of_datasets.py` prints both rates and each residue.
"""

import ast
import json
import random
import re

import pytest

from cpgd_jax.rewards import Verifier

OTHERS = 10  # golds of the same set that each gold is compared with
BATCH = 5000
NO_MEANING = re.compile(r"\\circ|[$,{}^]|\.\s*$|\s+$")
NUMBER = re.compile(r"(?:[xy]=)?(-?\d+(?:\.\d+)?)\s*(?:°|[a-z]+(?:\s[a-z]+)?)?")


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def mathvision(data):
    """Free-form golds, and letters where there are options."""
    return [row["answer"] for row in rows(data / "mathvision/test.jsonl")]


def mathvista(data):
    return [
        row["answer"] for row in json.loads((data / "mathvista/testmini.json").read_text()).values()
    ]


def olympiad(data):
    found = rows(data / "olympiadbench/OE_TO_maths_en_COMP.jsonl")
    finals = [row["final_answer"] for row in found]
    lists = [ast.literal_eval(f) if isinstance(f, str) else f for f in finals]
    return [", ".join(f) for f in lists]


def gsm8k(data):
    both = rows(data / "gsm8k/train.jsonl") + rows(data / "gsm8k/test.jsonl")
    return [row["answer"].rsplit("####", 1)[-1].strip() for row in both]


SETS = {
    "gsm8k": (gsm8k, 8792),
    "math500": (lambda data: [row["answer"] for row in rows(data / "math500/test.jsonl")], 500),
    "k12": (lambda data: [row["answer"] for row in rows(data / "mmk12_k12_500/k12.jsonl")], 500),
    "mathvision": (mathvision, 3040),
    "mathvista": (mathvista, 1000),
    "olympiadbench": (olympiad, 675),
}


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2, timeout_s=5.0) as pool:
        pool.warm_up()
        yield pool


def accuracies(verifier, pairs):
    texts = [rf"<think>a</think><answer>\boxed{{{a}}}</answer>" for a, _ in pairs]
    golds = [gold for _, gold in pairs]
    return [
        score.accuracy
        for at in range(0, len(pairs), BATCH)
        for score in verifier.score_batch(texts[at : at + BATCH], golds[at : at + BATCH])
    ]


def same_beyond_doubt(a, b):
    """The same word, or one number, perhaps with a unit."""
    if a.casefold() == b.casefold():
        return True
    left, right = (NUMBER.fullmatch(NO_MEANING.sub("", text)) for text in (a, b))
    return bool(left and right) and float(left.group(1)) == float(right.group(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_every_gold_is_paid_against_itself(verifier, shared, name):
    read, count = SETS[name]
    golds = read(shared / "data")
    assert len(golds) == count
    paid = accuracies(verifier, [(gold, gold) for gold in golds])
    missed = [gold for gold, a in zip(golds, paid, strict=True) if not a]
    print(f"\n{name}: {sum(paid)} of {len(golds)} golds are paid against themselves; not: {missed}")
    assert sum(paid) >= 0.995 * len(golds), missed


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
def test_no_gold_is_paid_against_another(verifier, shared, name):
    golds = SETS[name][0](shared / "data")
    source = random.Random(0)
    pairs = [
        (other, gold)
        for gold in golds
        for other in source.sample(golds, OTHERS)
        if other != gold and not same_beyond_doubt(other, gold)
    ]
    paid = [pair for pair, a in zip(pairs, accuracies(verifier, pairs), strict=True) if a]
    print(f"\n{name}: {len(paid)} of {len(pairs)} other golds are paid: {sorted(set(paid))}")
    assert len(paid) <= 0.001 * len(pairs), paid
