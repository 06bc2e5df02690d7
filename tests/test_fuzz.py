r"""Random text, TeX and tags: the caller never crashes, nothing hangs, no exception is hidden.

The slow test takes FUZZ_SECONDS (60 if unset):
`FUZZ_SECONDS=600 pytest -m slow tests/test_fuzz.py`.
"""

import os
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cpgd_jax.rewards import Verifier, golds

PIECES = [
    *"0123456789abcxyznABCDe+-*/^_=<>!|%$&~.,;:'\"()[]{}\\ \n\t",
    *[r"\frac", r"\sqrt", r"\pi", r"\infty", r"\text{", r"\pm", r"\cup", r"\le", r"\ne", r"\in"],
    *[r"\boxed{", r"\left(", r"\right)", r"\{", r"\}", r"\binom", r"\log", r"\sin", r"\degree"],
    *[r"\begin{pmatrix}", r"\end{pmatrix}", r"\begin{cases}", r"\end{cases}", r"\\", "&", "!!"],
    *[r"\sum_{k=1}^{", r"\int_0^1", r"\lim_{x\to0}", r"\mathbb{R}", r"\setminus", r"\overline{3}"],
    *[
        "10^",
        "^{9^{9}}",
        "99999",
        "1e9",
        "1,000",
        " or ",
        r"\text{ cm}",
        "(1,2)",
        "{1,2}",
        "x=",
        "|x|<",
    ],
    *[
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<|im_end|>",
        "answer is ",
        "not ",
        "A.",
        "(B)",
    ],
    *[
        "½",
        "√",
        "π",
        "²",
        "①",
        "，",
        "）",
        "度",
        "或",
        "三角形",
        "\u200b",
        "\ud800",
        "\0",
        "\u202e",
        "🙂",
    ],
]
LIMIT_S = 1.0
texts = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=40).map("".join),
    st.text(max_size=60),
    st.builds(lambda piece, n: piece * n, st.sampled_from(PIECES), st.integers(1, 4000)),
)
responses = st.one_of(
    texts, st.builds(lambda t: rf"<think>a</think><answer>\boxed{{{t}}}</answer>", texts)
)


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2, timeout_s=LIMIT_S) as pool:
        pool.warm_up()
        yield pool


def check(verifier, pairs):
    start = time.perf_counter()
    scores = verifier.score_batch([r for r, _ in pairs], [g for _, g in pairs])
    for (response, gold), score in zip(pairs, scores, strict=True):
        assert score.accuracy in (0, 1) and score.format in (0, 1), (response, gold)
        assert not score.failed and score.reason, (response, gold, score.reason)
        assert score.seconds < LIMIT_S + 1, (response, gold, score.seconds)
    assert time.perf_counter() - start < (LIMIT_S + 1) * len(pairs)
    for _, gold in pairs:
        assert golds.compared_as(gold) in ("value", "text", "nothing")


def fuzz(verifier, examples):
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        derandomize=False,
    )
    @given(st.lists(st.tuples(responses, texts), min_size=4, max_size=8))
    def run(pairs):
        check(verifier, pairs)

    run()


def test_fuzz(verifier):
    fuzz(verifier, 60)


@pytest.mark.slow
def test_fuzz_for_long(verifier):
    end = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", 60))
    while time.monotonic() < end:
        fuzz(verifier, 500)
    assert verifier.errors == 0
