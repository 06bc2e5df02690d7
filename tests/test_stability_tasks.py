"""The rule on token ids against the verifier on the text, and what the demonstrations teach."""

import itertools

import jax.numpy as jnp
import numpy as np
import pytest

from cpgd_jax.rewards import rules, verifier
from cpgd_jax.stability import tasks


def paid(texts, golds):
    """(accuracy, format) by the rule on ids, of texts and their golds."""
    ids = [[*tasks.encode(text), tasks.STOP] for text in texts]
    T = max(map(len, ids))
    response_BT = np.array([row + [7] * (T - len(row)) for row in ids], np.int32)
    mask_BT = np.arange(T)[None] < np.array([len(row) for row in ids])[:, None]
    found = tasks.rewards(jnp.asarray(response_BT), jnp.asarray(mask_BT), jnp.asarray(golds))
    return [np.asarray(x).astype(int).tolist() for x in found]


def test_the_vocabulary_spells_and_reads():
    text = "<think>3+8=11,12</think><answer>11</answer>"
    assert tasks.decode([*tasks.encode(text), tasks.STOP, 9]) == text
    assert "".join(tasks.VOCABULARY[tasks.ZERO : tasks.ZERO + 10]) == "0123456789"
    assert [tasks.VOCABULARY[i] for i in (tasks.PLUS, tasks.EQUALS, tasks.COMMA)] == list("+=,")


def test_format_is_that_of_the_rewards():
    """Every order of up to six pieces, and lead-ins of all lengths; the answer must be closed."""
    pieces = ["<think>", "5", "</think>", "<answer>", "</answer>"]
    texts = ["".join(t) for n in range(7) for t in itertools.product(pieces, repeat=n)]
    good = "<think>5</think><answer>5</answer>"
    texts += ["1" * n + good for n in range(20)] + [good + "1", good + "<think>"]
    _, form = paid(texts, [5] * len(texts))
    closed = [text.endswith("</answer>") for text in texts]
    expected = [rules.format_reward(t) * c for t, c in zip(texts, closed, strict=True)]
    assert form == expected
    assert sum(form) == 18


def test_accuracy_never_pays_what_the_verifier_refuses():
    """Every order of up to five pieces around digits, against the verifier itself."""
    pieces = ["<think>", "7", "</think>", "<answer>7", "</answer>"]
    texts = ["".join(t) for n in range(6) for t in itertools.product(pieces, repeat=n)]
    right, _ = paid(texts, [7] * len(texts))
    with verifier.Verifier(1) as judge:
        scores = judge.submit(texts, ["7"] * len(texts)).result()
    assert right == [s.accuracy for s in scores]
    assert 0 < sum(right) < len(texts)


@pytest.mark.parametrize(
    ("block", "gold", "expected"),
    [("11", 11, 1), ("011", 11, 1), ("12", 11, 0), ("1", 11, 0), ("0", 0, 1), ("", 0, 0)]
    + [("11,", 11, 0), ("5+6", 11, 0), ("0011", 11, 0), ("1,1", 11, 0)],
)
def test_an_answer_is_written_in_digits(block, gold, expected):
    right, _ = paid([f"<think>1</think><answer>{block}</answer>"], [gold])
    assert right == [expected]


def test_prompts_spell_their_problem():
    prompt_QS, gold_Q = tasks.prompts(tasks.TASKS["chain"], jnp.array([[3, 0, 9, 4], [1, 1, 1, 1]]))
    assert [tasks.decode(row) for row in np.asarray(prompt_QS)] == ["3+0+9+4=", "1+1+1+1="]
    assert gold_Q.tolist() == [16, 4]


@pytest.mark.parametrize("task", tasks.TASKS.values(), ids=lambda t: t.name)
def test_demonstrations_are_as_imperfect_as_the_task_says(task):
    token_BU, mask_BU = tasks.demonstrations(task, 400, seed=3)
    S = task.prompt_len
    assert not mask_BU[:, :S].any() and mask_BU[:, S].all()
    texts = [tasks.decode(row[S:]) for row in token_BU]
    golds = [sum(map(int, tasks.decode(row[:S])[:-1].split("+"))) for row in token_BU]
    right, form = (np.mean(x) for x in paid(texts, golds))
    reasons = 1 - task.guess
    np.testing.assert_allclose(form, task.guess + reasons * (1 - task.bad_format), atol=0.08)
    assert 0.25 < right < 0.6
    assert max(len(tasks.encode(text)) for text in texts) < task.max_len
    again, _ = tasks.demonstrations(task, 400, seed=3)
    np.testing.assert_array_equal(token_BU, again)
