"""Where an answer is found, and what counts as the format."""

import time

import pytest

from cpgd_jax.rewards import answers

THINK = "<think>steps</think>"


@pytest.mark.parametrize(
    "response, expected",
    [
        (THINK + r"<answer>\boxed{7}</answer>", "7"),
        (THINK + r"<answer>first \boxed{3}, then \boxed{8}</answer>", "8"),
        (THINK + r"<answer>$\boxed{\frac{\sqrt{5}}{2}}$</answer>", r"\frac{\sqrt{5}}{2}"),
        (THINK + r"<answer>\boxed {7}</answer>", "7"),
        (THINK + r"<answer>\fbox{7}</answer>", "7"),
        (THINK + r"<answer>\\boxed{7}</answer>", "7"),
        (THINK + r"<answer>\boxed{\boxed{7}}</answer>", "{7}"),
        (THINK + r"<answer>\boxed 7</answer>", "7"),
        (THINK + r"<answer>$\boxed7$</answer>", "7"),
        (THINK + r"<answer>in \boxed as asked: \boxed{7}</answer>", "7"),
        (THINK + r"<answer>\framebox{7}</answer>", "7"),
        (THINK + r"<answer>\boxed{7}}</answer>", "7"),
        (THINK + r"<answer>\boxed{\left\{1,2\right\}}</answer>", r"\left\{1,2\right\}"),
        (THINK + r"<answer>\boxed{7} and \boxed{</answer>", ""),
        (THINK + r"<answer>\boxed{7} and \boxed{}</answer>", ""),
        (THINK + r"<answer>\boxed{7</answer>", ""),
        (THINK + r"<answer>\boxed{7}", "7"),
        (THINK + "<answer>7", ""),
        (THINK + "<answer>7</answer>", "7"),
        (THINK + "<answer>The answer is 7.</answer>", "7."),
        (THINK + "<answer>Final Answer: **7**</answer>", "7"),
        (THINK + "<answer>The sum is 7.</answer>", "7"),
        (THINK + "<answer>**Final Answer**\n7</answer>", "7"),
        (THINK + "<answer>#### 7</answer>", "7"),
        (THINK + "<answer>Therefore, 7.</answer>", "7."),
        (THINK + "<answer>Some 7</answer>", "Some 7"),
        (THINK + "<answer>It is 6. The answer is 7.</answer>", "7."),
        (THINK + "<answer>答案:7</answer>", "7"),
        (THINK + "<answer>故选：C</answer>", "C"),
        (THINK + "<answer>The correct option is C.</answer>", "C."),
        (THINK + "<answer>It might be 7</answer>", "It might be 7"),
        (THINK + "<answer>The value is 7 or 8.</answer>", "The value is 7 or 8."),
        (THINK + "<answer>It is not 7.</answer>", "It is not 7."),
        (THINK + "<answer>a</answer> <answer>b</answer>", "b"),
        (THINK + r"\boxed{7}", "7"),
        (THINK + "It is 7.", ""),
        (r"So it is \boxed{7}", "7"),
        ("It is 7.", ""),
        (r"<think>\boxed{7}</think><answer>unsure</answer>", "unsure"),
        (r"<think>\boxed{7}</think>", ""),
        (r"<think>perhaps \boxed{7} but", ""),
        (r"\boxed{7}<think>perhaps", ""),
        (r"<think><answer>\boxed{7}</answer></think>", ""),
        (
            r"<think>a</think><answer>\boxed{1}</answer><think>b</think><answer>\boxed{2}</answer>",
            "2",
        ),
        (THINK + r"<answer>\boxed{7}</answer><|im_end|><answer>\boxed{9}</answer>", "7"),
        (THINK + r"<answer>\boxed{7}</answer><|endoftext|>\boxed{9}", "7"),
        ("", ""),
    ],
)
def test_extract(response, expected):
    assert answers.extract(response) == expected


@pytest.mark.parametrize(
    "response, expected",
    [
        ("<think>a</think><answer>b</answer>", True),
        ("\n<think>\na\n</think>\n\n<answer>\nb\n</answer>\n", True),
        ("<think>a</think><answer>b</answer><|im_end|>\nmore", True),
        ("<think></think><answer>b</answer>", False),
        ("<think>a</think><answer> </answer>", False),
        ("<answer>b</answer>", False),
        ("<think>a</think>", False),
        ("<think>a</think>b", False),
        (r"\boxed{5} <think>a</think><answer>b</answer>", True),
        ("First I add the numbers up. <think>a</think><answer>b</answer>", False),
        ("<think>a</think><answer>b</answer></s>", True),
        ("<think>a</think><answer>b</answer></answer>", False),
        ("<think>a</think></think><answer>b</answer>", False),
        ("<answer><think>a</think>b</answer>", False),
        ("< think >a</ think ><answer>b</answer>", False),
        ("```<think>a</think><answer>b</answer>```", False),
        ("<think>a</think> so <answer>b</answer>", False),
        ("<think>a</think><answer>b</answer> done", False),
        ("<think>a<think>b</think></think><answer>c</answer>", False),
        ("<think>a</think><answer>b</answer><answer>c</answer>", False),
        ("<answer>b</answer><think>a</think>", False),
        ("<think>a<answer></think>b</answer>", False),
        ("<THINK>a</THINK><answer>b</answer>", False),
        ("&lt;think&gt;a&lt;/think&gt;<answer>b</answer>", False),
        ("", False),
    ],
)
def test_follows_format(response, expected):
    assert answers.follows_format(response) is expected


@pytest.mark.parametrize(
    "piece", [r"\boxed{", "<think>", "<answer>", "{", "\\", "the answer is ", " ", "}", "</think>"]
)
def test_long_repetitions_take_linear_time(piece):
    response = THINK + "<answer>" + piece * (400_000 // len(piece)) + "</answer>"
    start = time.perf_counter()
    answers.extract(response)
    answers.follows_format(response)
    assert time.perf_counter() - start < 2


@pytest.mark.parametrize(
    "block, answer",
    [
        (r"not \boxed{5}", ""),
        (r"It is not $\boxed{5}$", ""),
        (r"\boxed{5} is wrong; I refuse", ""),
        (r"$\boxed{5}$ is not right", ""),
        (r"$\boxed{5}$ isn't it", ""),
        (r"\boxed{5}是错的", ""),
        (r"\boxed{\boxed{5}} is wrong", ""),
        (r"\boxed{5} is correct", "5"),
        (r"It is not 3. \boxed{5}", "5"),
        (r"If not, \boxed{5}", "5"),
        (r"\boxed{3} is wrong. \boxed{5}", "5"),
        (r"not \boxed{3} but \boxed{5}", "5"),
    ],
)
def test_words_beside_the_box_may_take_it_back(block, answer):
    assert answers.extract(f"<answer>{block}</answer>") == answer
