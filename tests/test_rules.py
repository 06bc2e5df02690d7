"""The parts of a reward and their weights."""

import dataclasses
import subprocess
import sys

import pytest

from cpgd_jax import rewards
from cpgd_jax.rewards import rules

RIGHT = r"<think>2+3</think><answer>\boxed{5}</answer>"


def test_total_is_the_weighted_sum():
    assert rules.total(1, 1) == 1.5
    assert rules.total(0, 1) == 0.5
    assert rules.total(1, 0, accuracy_weight=2.0, format_weight=0.25) == 2.0
    assert rules.total(1, 1, accuracy_weight=2.0, format_weight=0.25) == 2.25


@pytest.mark.parametrize(
    "response, gold, accuracy, form, total",
    [
        (RIGHT, "5", 1, 1, 1.5),
        (RIGHT, "6", 0, 1, 0.5),
        (r"\boxed{5}", "5", 1, 0, 1.0),
        ("five", "5", 0, 0, 0.0),
        ("", "", 0, 0, 0.0),
    ],
)
def test_score(response, gold, accuracy, form, total):
    score = rewards.score(response, gold)
    assert (score.accuracy, score.format, score.total) == (accuracy, form, total)
    assert score.reason and not score.timed_out and 0 <= score.seconds < 1


def test_score_takes_weights_and_is_frozen():
    score = rewards.score(RIGHT, "5", accuracy_weight=3.0, format_weight=0.0)
    assert score.total == 3.0 and score.extracted == "5"
    with pytest.raises(dataclasses.FrozenInstanceError):
        score.total = 9.0


def test_repetition_is_the_share_of_runs_seen_before():
    words = [f"w{n}" for n in range(40)]
    assert rules.repetition("") == rules.repetition("five words are no run") == 0.0
    assert rules.repetition(" ".join(words)) == 0.0
    assert rules.repetition(" ".join(words + words)) == pytest.approx(33 / 73)
    assert rules.repetition("a " * 1000) == pytest.approx(1 - 1 / 993)
    assert rules.repetition("三角形" * 20) == pytest.approx(1 - 3 / 53)
    assert rules.repetition("a b " * 5 + "<|im_end|>" + "c " * 100) < 1 - 2 / 14


def test_repetition_is_taken_off_the_total_when_asked():
    response = f"<think>{'again and ' * 50}</think><answer>5</answer>"
    plain = rewards.score(response, "5")
    assert plain.total == 1.5 and not plain.extra
    score = rewards.score(response, "5", repetition_penalty=0.5)
    assert score.extra["repetition"] == rules.repetition(response) > 0.7
    assert score.total == pytest.approx(1.5 - 0.5 * score.extra["repetition"])


def test_length_is_the_share_of_the_limit():
    assert [rules.length(tokens, 8) for tokens in (0, 2, 8)] == [0.0, 0.25, 1.0]


def test_score_batch_keeps_the_order():
    golds = [str(n % 3) for n in range(300)]
    responses = [rf"<think>a</think><answer>\boxed{{{n % 5}}}</answer>" for n in range(300)]
    scores = rewards.score_batch(responses, golds)
    assert [s.accuracy for s in scores] == [int(n % 3 == n % 5) for n in range(300)]


def test_score_batch_refuses_unequal_lengths():
    with pytest.raises(ValueError, match="2 responses but 1 golds"):
        rewards.score_batch(["a", "b"], ["a"])


def test_scoring_imports_no_jax_and_plain_answers_need_no_worker():
    code = (
        "import sys\n"
        "from cpgd_jax.rewards import score, verifier\n"
        f"assert score({RIGHT!r}, '5').accuracy == 1\n"
        f"assert score({RIGHT!r}, 'B').accuracy == 0\n"
        "assert all(w._process is None for w in verifier.shared()._workers)\n"
        "heavy = {'jax', 'flax', 'sympy', 'mpmath', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
