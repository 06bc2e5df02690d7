"""The generated task: right golds, disjoint splits, demonstrations wrong as often as configured."""

import ast
import dataclasses
import operator

import pytest

from cpgd_jax.config import Arithmetic
from cpgd_jax.data import arithmetic, tokenizer
from cpgd_jax.data.arithmetic import ArithmeticSource
from cpgd_jax.errors import UserError
from cpgd_jax.rewards import answers, rules

CONFIG = Arithmetic(
    max_operand=20, three_operand_frac=0.5, held_out_frac=0.1, slip_frac=0.5, bad_format_frac=0.2
)
SOURCE = ArithmeticSource(CONFIG, seed=0)
STREAM = [SOURCE.train(i) for i in range(2000)]


def value(node) -> int:
    """An evaluator of its own: sums and differences, refusing a negative intermediate result."""
    if isinstance(node, ast.Expression):
        return value(node.body)
    if isinstance(node, ast.Constant):
        return node.value
    apply = {ast.Add: operator.add, ast.Sub: operator.sub}[type(node.op)]
    result = apply(value(node.left), value(node.right))
    assert result >= 0
    return result


def steps(target: str) -> list[tuple[str, int]]:
    """(expression, claimed result) of each step of a demonstration."""
    inside = target.partition("<think>")[2].partition("</think>")[0]
    pairs = [step.split("=") for step in inside.split(", ") if step]
    return [(left, int(right)) for left, right in pairs]


def test_golds_are_right_and_no_intermediate_result_is_negative():
    for example in [*STREAM, *SOURCE.held_out(200)]:
        assert example.prompt.endswith("=?")
        tree = ast.parse(example.prompt.removesuffix("=?"), mode="eval")
        assert value(tree) == int(example.gold)


def test_held_out_problems_are_distinct_and_never_trained_on():
    held_out = {e.prompt for e in SOURCE.held_out(200)}
    assert len(held_out) == 200
    assert not held_out & {e.prompt for e in STREAM}
    other_seed = ArithmeticSource(CONFIG, seed=1)
    assert not held_out & {other_seed.train(i).prompt for i in range(2000)}


def test_held_out_problems_are_the_same_for_every_seed():
    assert ArithmeticSource(CONFIG, seed=7).held_out(50) == SOURCE.held_out(50)
    assert SOURCE.held_out(10) == SOURCE.held_out(50)[:10]


def test_an_example_is_a_function_of_seed_and_position():
    again = ArithmeticSource(CONFIG, seed=0)
    assert [again.train(i) for i in (1999, 3, 500)] == [STREAM[i] for i in (1999, 3, 500)]
    other = ArithmeticSource(CONFIG, seed=1)
    assert sum(other.train(i).prompt == STREAM[i].prompt for i in range(300)) < 30


def test_shares_of_slips_formats_and_operands():
    well_formed = [bool(rules.format_reward(e.target)) for e in STREAM]
    assert sum(well_formed) / len(STREAM) == pytest.approx(0.8, abs=0.03)
    shown = [e for e in STREAM if steps(e.target)]
    assert all(eval_step(left) == right for e in shown for left, right in steps(e.target))
    over = [
        int(answers.extract(e.target)) - int(e.gold) for e in STREAM if answers.extract(e.target)
    ]
    assert set(over) == {0, 1}  # right, or one too many
    assert sum(over) / len(over) == pytest.approx(0.5, abs=0.04)
    three = [e.prompt.count("+") + e.prompt.count("-") == 2 for e in STREAM]
    assert sum(three) / len(STREAM) == pytest.approx(0.5, abs=0.04)


def eval_step(expression: str) -> int:
    tree = ast.parse(expression, mode="eval").body
    a, b = tree.left.value, tree.right.value
    return a + b if isinstance(tree.op, ast.Add) else a - b


def test_steps_chain_to_the_reference_answer():
    for example in STREAM:
        chain = steps(example.target)
        for (_, result), (left, _) in zip(chain, chain[1:], strict=False):
            assert left.startswith((f"{result}+", f"{result}-"))
        if chain:
            assert str(chain[-1][1]) == example.gold


def test_perfect_demonstrations_are_right():
    perfect = dataclasses.replace(CONFIG, slip_frac=0.0, bad_format_frac=0.0)
    for position in range(300):
        example = ArithmeticSource(perfect, 0).train(position)
        assert rules.format_reward(example.target)
        assert answers.extract(example.target) == example.gold


def test_the_tokenizer_gives_every_demonstration_back():
    own = tokenizer.load()
    unknown = own.fast.unk_token_id
    for example in STREAM:
        for text in (example.prompt, example.target):
            ids = own.encode(text)
            assert unknown not in ids and own.decode(ids) == text


@pytest.mark.parametrize("most", [5, 9, 10, 20, 33, 99])
@pytest.mark.parametrize("three", [0.0, 0.5])
def test_nothing_is_longer_than_the_longest(most, three):
    config = dataclasses.replace(CONFIG, max_operand=most, three_operand_frac=three, slip_frac=0.9)
    source = ArithmeticSource(config, 0)
    (longest,) = source.longest()
    stream = [source.train(i) for i in range(1500)]
    assert max(len(e.prompt) for e in stream) <= len(longest.prompt)
    assert max(len(e.target) for e in stream) <= len(longest.target)


def test_impossible_splits_are_refused():
    none_left = ArithmeticSource(dataclasses.replace(CONFIG, held_out_frac=1.0), 0)
    with pytest.raises(UserError, match="held_out_frac 1.0 leaves no train problems"):
        none_left.longest()
    few = ArithmeticSource(dataclasses.replace(CONFIG, max_operand=1), 0)
    with pytest.raises(UserError, match=r"config\.eval\.problems is 500, .* yields only"):
        few.held_out(500)


def test_expression():
    assert arithmetic._expression([3, 4, 5], [1, -1]) == "3+4-5"
