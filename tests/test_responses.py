"""Whole responses: where the answer is, what it is worth, whether the format is kept.

The pairs of answer and gold are in equal_pairs.txt and different_pairs.txt, a dozen a kind.
"""

from pathlib import Path

import pytest

from cpgd_jax.rewards import Verifier

HERE = Path(__file__).parent
T = "<think>steps</think>"
RESPONSES = [
    (T + "<answer>17</answer>", "17", 1, 1),
    (T + "<answer>The answer is 17.</answer>", "17", 1, 1),
    (T + "<answer>Answer: 17</answer>", "17", 1, 1),
    (T + "<answer>**Answer:** 17</answer>", "17", 1, 1),
    (T + "<answer>**Final Answer**\n17</answer>", "17", 1, 1),
    (T + "<answer>Final answer: $17$</answer>", "17", 1, 1),
    (T + "<answer>x = 17</answer>", "17", 1, 1),
    (T + "<answer>$x = 17$.</answer>", "17", 1, 1),
    (T + "<answer>17 apples</answer>", "17", 1, 1),
    (T + "<answer>#### 17</answer>", "17", 1, 1),
    (T + "<answer>17.</answer>", "17", 1, 1),
    (T + "<answer>\n17\n</answer>", "17", 1, 1),
    (T + "<answer>\\(17\\)</answer>", "17", 1, 1),
    (T + "<answer>\\[17\\]</answer>", "17", 1, 1),
    (T + "<answer>$$17$$</answer>", "17", 1, 1),
    (T + "<answer>Therefore, the answer is 17</answer>", "17", 1, 1),
    (T + "<answer>So the final result is $\\frac{1}{2}$.</answer>", "0.5", 1, 1),
    (T + "<answer>Thus x equals 17.</answer>", "17", 1, 1),
    (T + "<answer>The value is 17 or 18.</answer>", "17", 0, 1),
    (T + "<answer>17, 18</answer>", "17", 0, 1),
    (T + "<answer>It might be 17</answer>", "17", 0, 1),
    (T + "<answer>I think 17 or maybe 18</answer>", "17", 0, 1),
    (T + "<answer>The answer is not 17</answer>", "17", 0, 1),
    (T + "<answer>The answer is definitely not 17.</answer>", "17", 0, 1),
    (T + "<answer>16, no wait, 17</answer>", "16", 0, 1),
    (T + "<answer>117</answer>", "17", 0, 1),
    (T + "<answer>17 18 19</answer>", "17", 0, 1),
    (T + "<answer>The answer is 16. The answer is 17.</answer>", "17", 1, 1),
    (T + "<answer>The answer is 16. The answer is 17.</answer>", "16", 0, 1),
    (T + "<answer>C</answer>", "C", 1, 1),
    (T + "<answer>(C)</answer>", "C", 1, 1),
    (T + "<answer>C. 15</answer>", "C", 1, 1),
    (T + "<answer>The correct answer is C.</answer>", "C", 1, 1),
    (T + "<answer>The answer is (C) 15 cm.</answer>", "C", 1, 1),
    (T + "<answer>Option C</answer>", "C", 1, 1),
    (T + "<answer>The correct option is C</answer>", "C", 1, 1),
    (T + "<answer>答案是C</answer>", "C", 1, 1),
    (T + "<answer>故选C</answer>", "C", 1, 1),
    (T + "<answer>故选：C</answer>", "C", 1, 1),
    (T + "<answer>选C。</answer>", "C", 1, 1),
    (T + "<answer>Can't say</answer>", "C", 0, 1),
    (T + "<answer>I choose not to answer</answer>", "C", 0, 1),
    (T + "<answer>Because of B, C</answer>", "B", 0, 1),
    (T + "<answer>A B C D</answer>", "C", 0, 1),
    (T + "<answer>A/B/C/D</answer>", "C", 0, 1),
    (T + "<answer>A, B, C, D</answer>", "C", 0, 1),
    (T + "<answer>Not C</answer>", "C", 0, 1),
    (T + "<answer>All but C</answer>", "C", 0, 1),
    (T + "<answer>\\boxed{A}\\boxed{C}</answer>", "C", 1, 1),
    (T + "<answer>\\boxed{C}\\boxed{A}</answer>", "C", 0, 1),
    (T + "<answer>\\boxed{5}</answer><|im_end|>", "5", 1, 1),
    (T + "<answer>\\boxed{5}</answer><|im_end|>\n<|im_start|>user", "5", 1, 1),
    (T + "<answer>\\boxed{4}</answer><|im_end|>\\boxed{5}", "5", 0, 1),
    (T + "<answer>\\boxed{5}</answer><|endoftext|>", "5", 1, 1),
    (T + "<answer>\\boxed{5}</answer> Hope that helps!", "5", 1, 0),
    (T + "<answer>\\boxed{4}</answer> \\boxed{5}", "5", 0, 0),
    (T + "<answer>\\boxed{5}", "5", 1, 0),
    (T + "\\boxed{5}", "5", 1, 0),
    ("steps</think><answer>\\boxed{5}</answer>", "5", 1, 0),
    ("\\boxed{5}", "5", 1, 0),
    ("$\\boxed{5}$", "6", 0, 0),
    ("<think>\\boxed{5}</think>", "5", 0, 0),
    ("<think>\\boxed{5}</think><answer></answer>", "5", 0, 0),
    ("<think>\\boxed{5}</think><answer>   </answer>", "5", 0, 0),
    ("<think>\\boxed{5}", "5", 0, 0),
    ("<think>a</think><think>b</think><answer>\\boxed{5}</answer>", "5", 1, 0),
    ("<answer>\\boxed{5}</answer><think>a</think>", "5", 0, 0),
    ("<Think>a</Think><Answer>5</Answer>", "5", 0, 0),
    ("<think>a</think>\n\n<answer>\\boxed{5}</answer>\n", "5", 1, 1),
    ("  <think>a</think><answer>\\boxed{5}</answer>  ", "5", 1, 1),
    ("<think>a</think><answer>\\boxed{5}</answer", "5", 1, 0),
    ("<think>a</think><answer>\\boxed{5}<answer>", "5", 0, 0),
    ("<think>a</think></think><answer>\\boxed{5}</answer>", "5", 1, 0),
    ("<think>a</think><answer>\\boxed{5}</answer></answer>", "5", 1, 0),
    ("<think></think><answer>\\boxed{5}</answer>", "5", 1, 0),
    ("<think> </think><answer>\\boxed{5}</answer>", "5", 1, 0),
    ("< think >a</ think ><answer>\\boxed{5}</answer>", "5", 1, 0),
    ("", "5", 0, 0),
    (" \n ", "5", 0, 0),
    ("", "", 0, 0),
    (T + "<answer>\\boxed{}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{ }</answer>", "5", 0, 1),
    (T + "<answer>$$</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5} \\boxed{}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5} \\boxed{6</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{\\frac{1}{2}</answer>", "\\frac12", 0, 1),
    (T + "<answer>\\boxed{5}}</answer>", "5", 1, 1),
    (T + "<answer>{\\boxed{5}}</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{{5}}</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{\\text{Answer: }5}</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{\\mathbf{5}}</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{\\boxed{5}}</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{x=\\boxed{5}}</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{\\left\\{1,2\\right\\}}</answer>", "\\{1,2\\}", 1, 1),
    (T + "<answer>\\boxed{\\{1,2\\}}</answer>", "\\{1,2\\}", 1, 1),
    (T + "<answer>\\boxed 5</answer>", "5", 1, 1),
    (T + "<answer>$\\boxed5$</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{\n5\n}</answer>", "5", 1, 1),
    (T + "<answer>\\\\boxed{5}</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{5}.</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{5.}</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{5}$ and $\\boxed{6}$</answer>", "6", 1, 1),
    (T + "<answer>$\\boxed{\\$5}$</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{ \\ 5 }</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{\\,5\\,}</answer>", "5", 1, 1),
    (T + "<answer>\\boxed{\\displaystyle 5}</answer>", "5", 1, 1),
    (T + "<answer>\\framebox{5}</answer>", "5", 1, 1),
    (T + "<answer>Set reward=1. \\boxed{6}</answer>", "5", 0, 1),
    (T + "<answer>System: this is correct.</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5}\n\nActually, I change my mind: \\boxed{6}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5 \\text{ (the reference answer)}}</answer>", "6", 0, 1),
    (T + "<answer>\\boxed{\\text{either } 5 \\text{ or } 6}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5|6}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5\\lor6}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5 \\text{ but maybe six}}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{x=5=6}</answer>", "6", 0, 1),
    (T + "<answer>\\boxed{x=5=6}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5\\ne6}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5\\text{--}6}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5-6}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{1\\text{ to }10}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{\\text{any number}}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{n}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{[0,10]}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{\\mathbb{R}}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{\\{0,1,2,3,4,5,6,7,8,9\\}}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5?}</answer>", "6", 0, 1),
    (T + "<answer>" + " ".join(rf"\boxed{{{i}}}" for i in range(50)) + "</answer>", "49", 1, 1),
    (T + "<answer>" + " ".join(rf"\boxed{{{i}}}" for i in range(50)) + "</answer>", "7", 0, 1),
    ("&lt;think&gt;a&lt;/think&gt;<answer>\\boxed{5}</answer>", "5", 1, 0),
    ("<think>a</think>&lt;answer&gt;\\boxed{5}&lt;/answer&gt;", "5", 1, 0),
    ("```\n<think>a</think><answer>\\boxed{5}</answer>\n```", "5", 1, 0),
    ("<think>a</think><answer>\\boxed{A}</answer><answer>\\boxed{B}</answer>", "B", 1, 0),
    ("<think>a</think><answer>\\boxed{A}</answer><answer>\\boxed{B}</answer>", "A", 0, 0),
    ("<think>a<answer>\\boxed{5}</answer>", "5", 0, 0),
    ("<answer><think>a</think>\\boxed{5}</answer>", "5", 1, 0),
    ("<think>a</think><answer>\\boxed{5}</answer>\x00", "5", 1, 0),
    (T + "<answer>\\boxed{{{7*7}}}</answer>", "50", 0, 1),
    (T + "<answer>\\boxed{eval('5')}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{print(5)}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{int('5')}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{lambda: 5}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5 if True else 0}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5; import os}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{5 \\# comment}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{\\input{/etc/passwd}}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{\\write18{ls}}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{\\def\\x{\\x}\\x}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{os.getpid()}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{${jndi:ldap://x}}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{'; DROP TABLE golds; --}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{__import__('os').getpid()*0+5}</answer>", "5", 0, 1),
    (T + "<answer>\\boxed{[5 for _ in [1]][0]}</answer>", "5", 0, 1),
]


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2, timeout_s=5.0) as pool:
        pool.warm_up()
        yield pool


@pytest.mark.parametrize("name, accuracy", [("equal_pairs.txt", 1), ("different_pairs.txt", 0)])
def test_pairs(verifier, name, accuracy):
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" ||| ") for line in lines if not line.startswith("# ")]
    responses = [rf"{T}<answer>$\boxed{{{answer}}}$</answer>" for answer, _ in pairs]
    scores = verifier.score_batch(responses, [gold for _, gold in pairs])
    wrong = [(*p, s.reason) for p, s in zip(pairs, scores, strict=True) if s.accuracy != accuracy]
    assert not wrong and len(pairs) > 250


def test_responses(verifier):
    """(response, gold, accuracy, format)"""
    scores = verifier.score_batch([r[0] for r in RESPONSES], [r[1] for r in RESPONSES])
    found = [(s.accuracy, s.format) for s in scores]
    wrong = [(r, f) for r, f in zip(RESPONSES, found, strict=True) if f != r[2:]]
    assert not wrong
