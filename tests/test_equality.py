"""When an answer equals the gold, kind by kind, and what hostile text costs."""

import json
import os
import tempfile
import time

import pytest
from hostile import HOSTILE

from cpgd_jax.rewards import Verifier, equality

LIMIT_S = 1.5
BUGS = ("NameError", "TypeError", "AttributeError", "KeyError", "IndexError")


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2, timeout_s=LIMIT_S) as pool:
        pool.warm_up()
        yield pool


def boxed(text):
    return rf"<think>a</think><answer>$\boxed{{{text}}}$</answer>"


# kind: pairs of (answer, gold)
EQUAL = {
    "algebra": [
        (r"\frac{1}{2}x+1", r"\frac{x+2}{2}"), ("(a-2)(a+2)", "a^2-4"), ("b+a", "a+b"),
        (r"2(2^n-1)", "2^{n+1}-2"), (r"\sqrt{x^2}", "|x|"), ("3x^{2}", "3x^2"), ("2*x", "2x"),
    ],
    "equivalence": [
        (r"\sin^2 t+\cos^2 t", "1"), (r"2\sin x\cos x", r"\sin 2x"), (r"2\ln 2", r"\ln 4"),
        (r"\log_2 8", "3"), (r"e^{i\pi}", "-1"), ("n(n-1)!", "n!"), (r"\binom{5}{2}", "10"),
        (r"\sum_{k=1}^{3} k", "6"), (r"\int_0^1 x^2 dx", r"\frac13"),
        (r"\lfloor 2.5\rfloor", "2"),
    ],
    "numbers": [
        ("007", "7"), ("+7", "7"), ("7.0", "7"), (".5", "0.5"), ("5e3", "5000"), ("-0", "0"),
        (r"5\times10^{3}", "5000"), (r"2^{10}", "1024"), (r"\frac{1}{2^{99}}", "2^{-99}"),
        (r"\text{13}", "13"), ("0.333333333", r"\frac13"),
    ],
    "fractions": [
        (r"\frac12", r"\frac{1}{2}"), ("1/2", "0.5"), (r"-\frac12", r"\frac{1}{-2}"),
        (r"\frac 34", "3/4"), (r"\dfrac{6}{8}", r"\tfrac34"), (r"2\frac{1}{3}", "7/3"),
        ("2 1/3", r"\frac73"), ("2½", "2.5"),
    ],
    "radicals": [
        (r"\sqrt2", r"\sqrt{2}"), (r"\sqrt{8}", r"2\sqrt{2}"),
        (r"\frac{\sqrt2}{2}", r"\frac1{\sqrt2}"), (r"\sqrt[3]5", "5^{1/3}"),
        ("sqrt(2)/2", r"\frac{\sqrt2}{2}"), (r"\sqrt[3]{-8}", "-2"),
    ],
    "thousands": [
        ("1,234,567", "1234567"), (r"1{,}234", "1234"), (r"10\,000", "10000"),
        ("58500", "58,500"), (r"\$32,\!348", "32348"), ("12 345", "12345"),
    ],
    "percent": [
        ("0.5", r"50\%"), ("50", r"50\%"), ("50%", "50"), (r"\frac{25}{2}\%", r"\frac18"),
    ],
    "units": [
        (r"5\text{ cm}", "5"), ("5", r"5\text{ cm}"), ("5 cm", r"5\,\mathrm{cm}"),
        ("60°", r"60^\circ"), ("60", r"60^{\circ}"),
        ("30", r"30${}^\circ $"), (r"\frac{\pi}{3}", r"60^\circ"),
        (r"15 cm²", r"15\mbox{ cm}^2"), (r"500\text{ cm}", r"5\text{ m}"),
        ("5厘米", r"5\text{ cm}"), (r"\$5", "5"), ("18 eggs", "18"),
    ],
    "lists": [
        ("3,1", "1,3"), (r"x=1 \text{ or } x=3", "x = 1, x = 3"), (r"\pm 3", "3,-3"),
        (r"3\pm\sqrt2", r"3-\sqrt2, 3+\sqrt2"), ("(2,1),(3,1)", "(3,1),(2,1)"),
        ("x=1或x=3", "1,3"), ("x=1,y=2", "y=2,x=1"), (r"x=\pm3", r"\pm3"),
    ],
    "sets": [
        (r"\{3,1\}", r"\left\{1,3\right\}"), ("1,3", r"\{1,3\}"),
        (r"\{1 \text{ and } 3\}", r"\{1,3\}"),
    ],
    "tuples": [
        ("( 1 , 2 )", "(1,2)"), ("（1，2）", "(1,2)"), ("(x,y)=(1,2)", "(1,2)"),
        ("(0.5,2)", r"(\frac12,2)"),
    ],
    "intervals": [
        ("x<3", r"(-\infty,3)"), (r"1<x\leq 2", "(1,2]"), (r"\{x|x>3\}", r"(3,+\infty)"),
        (r"x\in[1,2)", "[1,2)"), ("3>x", "x<3"),
        (r"(3,\infty)\cup(-\infty,1)", r"(-\infty,1)\cup(3,\infty)"),
        (r"x<1 \text{ or } x>3", r"(-\infty,1)\cup(3,\infty)"), ("x≤3", r"x\le 3"),
        (r"\mathbb{R}", r"(-\infty,\infty)"),
    ],
    "relations": [
        ("x=5", "5"), ("5", "x=5"), ("2x+4y-3=0", r"y=-\frac12x+\frac34"), ("xy=1", r"y=\frac1x"),
        ("-x-y=1", "x+y+1=0"), ("f(x)=2x+1", "2x+1"), ("y=2x+1", "f(x)=2x+1"),
        ("a_n=2n+1", "a_{n}=1+2n"), ("2x+4y<6", "x+2y<3"), (r"x\ne 2", r"2\neq x"),
        ("2+3=5", "5"), ("= 5", "5"), (r"x\approx5", "5"),
    ],
    "kinks": [
        ("|x-100|", "|100-x|"), (r"\sqrt{(x-50)^2}", "|x-50|"), (r"\sqrt{4x^2y}", r"2|x|\sqrt y"),
        (r"\sqrt{x^2-2000x+1000000}", "|1000-x|"), (r"\sqrt{x^3}", r"x\sqrt{x}"),
        (r"\frac{1}{\sqrt{x^2+1}+x}", r"\sqrt{x^2+1}-x"), ("|ab|", "|a||b|"),
        (r"\lfloor x+1\rfloor", r"\lfloor x\rfloor+1"), (r"\sqrt{x+5}\sqrt{x-5}", r"\sqrt{x^2-25}"),
    ],
    "high powers": [
        ("x^{1000}+2x^{500}+1", "(x^{500}+1)^2"), ("(1+x)^{200}", "(x^2+2x+1)^{100}"),
        (r"\frac{x^{100}-1}{x^{50}-1}", "x^{50}+1"),
    ],
    "tiny": [
        ("10^{-300}x", r"\frac{x}{10^{300}}"), (r"\sin^2x+\cos^2x-1", "0"), ("0x", "0"),
    ],
    "currencies": [
        ("€5", "5"), (r"\$5", r"5\text{ dollars}"), ("€5", r"5\text{ euros}"), ("$5$", "€5"),
    ],
    "names": [
        ("f^{-1}(x)=x-1", "x-1"), (r"\frac{dy}{dx}=2x", "2x"), ("P(X=1)=0.5", r"\frac12"),
        ("P(A|B)=0.5", r"\frac12"), (r"P(X=1)=\frac12", "P(X=1)=0.5"),
    ],
    "no solution": [
        ("无解", r"\emptyset"), (r"\emptyset", r"\text{no solution}"),
        (r"\text{No solution}", "无解"),
    ],
    "unions": [
        (r"(1,2]\cup[2,3)", "(1,3)"), (r"(1,3)", r"(2,3)\cup(1,2]"), (r"(1,5)\cup(2,3)", "(1,5)"),
        (r"(-\infty,2]\cup(1,\infty)", r"\mathbb{R}"), (r"(0,1)\cup(1,\sqrt2]\cup[\sqrt2,2)",
         r"(0,1)\cup(1,2)"),
    ],
    "labelled choices": [
        ("A", "A. 5"), ("(A)", "(A) 5"), (r"A \text{ is correct}", "A"),
        (r"\text{A is the correct answer}", "A"),
    ],
    "multiples": [
        ("2xy=0", "xy=0"), ("(2-y)(1-x)=0", "(x-1)(y-2)=0"), ("xy=x+1", r"y=\frac{x+1}{x}"),
        ("y(x^2+1)=1", r"y=\frac{1}{x^2+1}"), ("(x^2+1)y=0", "y=0"), ("e^xy=1", "y=e^{-x}"),
        ("(x-3)y=2", r"y=\frac{2}{x-3}"), ("xyz=1", r"z=\frac{1}{xy}"),
    ],
    "matrices": [
        (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\begin{pmatrix}0.5\\2\end{pmatrix}", r"\begin{pmatrix}\frac12\\ 2\end{pmatrix}"),
    ],
    "ratios": [
        ("6:8", "3:4"), ("3/4", "3:4"), ("2:4:6", "1:2:3"),
    ],
    "complex": [
        ("2i+3", "3+2i"), ("(1+i)^2", "2i"), (r"\frac{1}{1+i}", r"\frac{1-i}{2}"),
    ],
    "choices": [
        ("B", "B"), ("b", "B"), ("(B)", "B"), ("B.", "(B)"), (r"\text{B}", "B"),
        (r"\textbf{(B)}", "B"), ("B. 15 cm", "B"), ("C, A", "AC"), ("A and C", "AC"),
        (r"\text{Option B}", "B"),
    ],
    "words": [
        (r"\text{Anna}", "Anna"), ("anna", r"\text{Anna}"), ("yes", "Yes"),
        ("等腰三角形", r"\text{等腰三角形}"), (r"\text{见解析}", "见解析"),
        (r"\triangle ABC\sim\triangle DEF", r"\triangle ABC \sim \triangle DEF"),
    ],
    "unicode": [
        ("５", "5"), ("−5", "-5"), ("√2", r"\sqrt2"), ("π/2", r"\frac{\pi}{2}"), ("x²", "x^2"),
    ],
    "huge": [
        ("9^{9^{9^{ 9 }}}", "9^{9^{9^9}}"), ("7" * 6000, "7" * 6000),
    ],
}  # fmt: skip

DIFFERENT = {
    "algebra": [
        ("x^2+y^2", "(x+y)^2"), ("y", "x"), (r"\sqrt{x^2}", "x"), ("5x", "5"),
    ],
    "equivalence": [
        (r"1+\frac1e", r"1-\frac1e"), (r"\int_0^1 x^2 dx", r"\frac12"),
    ],
    "numbers": [
        ("6", "5"), ("3.14", r"\pi"), ("0.33", r"\frac13"), ("1.414214", r"\sqrt2"), ("O", "0"),
        ("10^{20}", "10^{20}+1"), (r"\frac{1}{2^{98}}", r"\frac{1}{2^{99}}"), ("4 10/3", "10"),
    ],
    "fractions": [
        (r"\frac43", r"\frac34"), (r"2\frac13", r"\frac23"), ("2 2/3", "2"),
    ],
    "thousands": [
        ("1", "0,1"), ("12106", "12,10,6"), ("100200", "100, 200"), ("1,23", "123"),
    ],
    "percent": [
        ("0.5", r"5\%"), ("5000", r"50\%"),
    ],
    "units": [
        (r"5\text{ m}", r"5\text{ cm}"), (r"6\text{ cm}", r"5\text{ cm}"), ("0.64", "0.64N"),
    ],
    "lists": [
        ("1", "1,3"), ("1,3,3", "1,3"), ("3", r"\pm3"), (r"5 \text{ or } 6", "5"),
        ("x=2,y=1", "x=1,y=2"), ("2,1", "x=1,y=2"), ("(1,2),(3,1)", "(2,1),(3,1)"),
    ],
    "sets": [
        (r"\{1,2\}", r"\{1,2,3\}"), (r"\{2,5\}", "[2,5]"),
    ],
    "tuples": [
        ("(2,1)", "(1,2)"), ("(1,2,3)", "(1,2)"), ("[1,2]", "(1,2)"),
    ],
    "intervals": [
        (r"x\le3", "x<3"), ("(1,2]", "(1,2)"),
        (r"(-\infty,1]\cup(3,\infty)", r"(-\infty,1)\cup(3,\infty)"),
    ],
    "relations": [
        ("0=0", "x=3"), ("x=x", "x=3"), ("y=5", "x=5"), ("y=2x+1", "y=2x-1"),
        ("xy=2", r"y=\frac1x"), ("2x+4y>6", "x+2y<3"), ("4=5", "5"), (r"x\ne2", "x=2"),
    ],
    "kinks": [
        ("|x-100|", "100-x"), ("|x+50|", "x+50"), ("|2x-40|", "40-2x"), ("y=|x-100|", "y=100-x"),
        (r"\sqrt{(x-50)^2}", "50-x"), (r"\sqrt{x^2-2000x+1000000}", "1000-x"),
        ("|x-100000|", "100000-x"), ("|x-y-100|", "100-x+y"), (r"\lfloor x/100\rfloor", "0"),
        ("||x-100|-1|", "|x-100|-1"), ("|x/1000-5|", "5-x/1000"), ("((x-50)^2)^{1/2}", "50-x"),
    ],
    "high powers": [
        ("x^{1000}+1", "(x^{500}+1)^2"), ("x^{1000}+1", "x^{1000}"), ("x^{40}+1", "(x^{20}+1)^2"),
        ("((x^{10})^{10})^{10}", "((x^{10})^{10})^{10}+x^{500}"),
    ],
    "tiny": [
        ("10^{-300}x", "0"), ("10^{-300}x+x", "x"), ("10^{-200}x", "10^{-201}x"),
        ("e^{-1000}x", "0"),
    ],
    "currencies": [
        ("€5", r"\$5"), ("£5", "€5"), (r"5\text{ dollars}", "€5"), (r"\$5", r"\euro 5"),
    ],
    "hedges": [
        ("5?", "5"), ("5??", "5"), (",5", "5"), (r"5\text{(approximately)}", "5"),
        (r"5\text{ I guess}", "5"), ("5左右", "5"), ("大约5", "5"),
    ],
    "names": [
        ("f^{-1}(x)=x-1", "x+1"), ("f^{-1}(x)=x-1", "f(x)=x-1"), ("P(X=1)=0.5", "P(X=2)=0.5"),
        (r"\frac{dy}{dx}=2x", r"\frac{dx}{dy}=2x"), ("E(X)=2", "P(X)=2"),
    ],
    "no solution": [
        ("无解", "0"), (r"\emptyset", r"\{0\}"), ("0", r"\text{no solution}"),
    ],
    "unions": [
        (r"(1,2)\cup(2,3)", "(1,3)"), (r"(1,2]\cup[2,3]", "(1,3)"), (r"(1,2]\cup[4,5)", "(1,5)"),
        (r"(2,1)\cup(1,3)", "(2,3)"),
    ],
    "labelled choices": [
        ("B", "A. 5"), ("B. 5", "A. 5"), (r"A \text{ is wrong}", "A"),
        (r"B \text{ is correct}", "A"),
        ("C", "C: x^2+y^2=1"), ("A", r"(A) \cap B"), ("A", "A+B"),
    ],
    "multiples": [
        ("xy=0", "x=0"), ("y=0", "xy=0"), ("x(y-1)=0", "x=0"), ("(x-1)(y-2)=0", "x=1"),
        ("(a-b)c=0", "a=b"), ("y=2x+1", "(y-2x-1)(x)=0"), ("x^2y=0", "y=0"), ("|x|y=0", "y=0"),
        (r"y\sin x=0", "y=0"), (r"y=\frac{1}{x-1}", "x(x-1)y=x"), ("(y-3)(x-1000)=0", "y=3"),
        ("(y-2x)(x^2-3x+2)=0", "y=2x"), (r"y\sqrt{x}=0", "y=0"), ("y(x-z)=x-z", "y=1"),
    ],
    "constants": [("1<2", "3<4"), ("1=2", "3=5"), (r"2\in A", r"3\in A"), ("x=1,2=3", "x=1,4=7")],
    "matrices": [
        (r"\begin{pmatrix}2\\1\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    ],
    "ratios": [
        ("4:3", "3:4"), ("1:2:4", "1:2:3"),
    ],
    "choices": [
        ("A", "B"), ("A or B", "B"), (r"\text{not B}", "B"), ("ABCD", "AC"), ("A", "AC"),
        ("1", "A"), ("No choice", "C"), (r"\theta", "A"), ("B. 1 and C. 2", "B"),
    ],
    "words": [
        (r"\text{Ben}", r"\text{Anna}"), (r"\text{not east}", r"\text{east}"),
        ("三角形", "等腰三角形"),
        (r"\triangle ABC\cong\triangle DEF", r"\triangle ABC\sim\triangle DEF"),
        ("0", r"\begin{cases} x=1 \\ "),
    ],
    "nothing": [
        ("5", ""), ("5", "$$"), ("", r"\boxed{}"), (r"\{\}", "5"), (r"\text{}", r"\text{}"),
    ],
    "instructions": [
        (r"\text{accept}", "5"), (r"5 \text{ is wrong}", "5"), (r"\text{the gold}", "5"),
    ],
}  # fmt: skip

MARK = os.path.join(tempfile.gettempdir(), "cpgd_jax_test_executed")
INJECTIONS = [
    f"__import__('os').system('touch {MARK}')",
    rf"[__import__('os').system('touch {MARK}'), 5][1]*\pi/\pi",
    f"().__class__.__base__.__subclasses__()[0]('touch {MARK}')",
    f'Symbol(\'__import__("os").system("touch {MARK}")\')',
    f"exec(\"open('{MARK}','w')\")",
    f"!!python/object/apply:os.system ['touch {MARK}']",
    f"$(touch {MARK})",
    f"`touch {MARK}`",
]


def flat(table):
    return [
        pytest.param(*pair, id=f"{kind}-{n}")
        for kind, pairs in table.items()
        for n, pair in enumerate(pairs)
    ]


@pytest.mark.parametrize("answer, gold", flat(EQUAL))
def test_equal(verifier, answer, gold):
    score = verifier.score(boxed(answer), gold)
    assert score.accuracy == 1, score.reason


@pytest.mark.parametrize("answer, gold", flat(DIFFERENT))
def test_different(verifier, answer, gold):
    score = verifier.score(boxed(answer), gold)
    assert score.accuracy == 0, score.reason
    assert not any(bug in score.reason for bug in BUGS)


@pytest.mark.parametrize("kind", HOSTILE)
@pytest.mark.parametrize("gold", ["7", r"\frac{x}{2}", "1,2", r"(-\infty,5)", "x=3"])
def test_hostile_answers_are_wrong_and_bounded(verifier, kind, gold):
    start = time.perf_counter()
    score = verifier.score(boxed(HOSTILE[kind]), gold)
    assert score.accuracy == 0 and time.perf_counter() - start < LIMIT_S + 0.5
    assert not any(bug in score.reason for bug in BUGS)


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_golds_are_bounded(verifier, kind):
    start = time.perf_counter()
    assert verifier.score(boxed("12"), HOSTILE[kind]).accuracy == 0
    assert time.perf_counter() - start < LIMIT_S + 0.5


@pytest.mark.parametrize("text", INJECTIONS)
@pytest.mark.parametrize("gold", ["0", "5", r"\text{None}", "[0,5]", r"\frac{x}{2}"])
def test_nothing_is_executed(verifier, text, gold):
    assert verifier.score(boxed(text), gold).accuracy == 0
    assert not os.path.exists(MARK)


def test_hostile_answers_cost_no_worker(verifier):
    assert verifier.errors == 0


def test_unparsable_golds_are_compared_as_text():
    assert equality.quick("rhombus", "rhombus.").equal
    assert not equality.quick("42", "see the solution").equal
    assert not equality.quick("", "").equal


def test_shared_cases(verifier, shared):
    """All 156 right in accuracy, format and time; what is missed is named when this fails."""
    lines = (shared / "cases" / "verifier_cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    scores = verifier.score_batch([c["response"] for c in cases], [c["gold"] for c in cases])
    pairs = list(zip(cases, scores, strict=True))
    wrong = [c["id"] for c, s in pairs if s.accuracy != c["expected_accuracy"]]
    formats = [c["id"] for c, s in pairs if s.format != c["expected_format"]]
    slow = [c["id"] for c, s in pairs if s.seconds > c.get("max_seconds", 2)]
    assert not wrong and not formats and not slow, (wrong, formats, slow)


def test_official_olympiad_vectors(verifier, shared):
    """Right on all vectors of the official judge, those with a tolerance included."""
    groups = json.loads((shared / "data" / "olympiadbench" / "scoring_examples.json").read_text())
    vectors = [(group["GT"], answer) for group in groups for answer in group["Ans"]]
    wrong = []
    for gold, vector in vectors:
        text = vector["answer"]
        response = boxed(text) if "boxed" not in text else f"<answer>{text}</answer>"
        score = verifier.score(response, gold, errors=errors_of(vector))
        if score.accuracy != vector["equal"]:
            wrong.append((gold, vector, score.reason))
    assert not wrong and len(vectors) == 36


def errors_of(vector):
    given = vector.get("precision", [])
    return [float(e) for e in given] if isinstance(given, list) else [float(given)]


@pytest.mark.parametrize(
    "answer, gold, errors, accuracy",
    [
        ("3.14", r"\pi", [0.01], 1),
        ("3.14", r"\pi", [0.001], 0),
        ("3.14", r"\pi", [], 0),
        ("1.1", "1", [0.1], 1),
        ("1.11", "1", [0.1], 0),
        ("2.1, 1", "1, 2", [0.01, 0.1], 1),
        ("2, 1.1", "1, 2", [0.01, 0.1], 0),
        ("1, 2, 2", "1, 2", [9.0], 0),
        ("x", "1", [9.0], 0),
        ("9^{9^{9^{9}}}", "1", [9.0], 0),
        ("1" * 5000, "1", [9.0], 0),
        ("(" * 100 + "1" + ")" * 100, "1", [9.0], 0),
        ("5", r"5\text{ cm}", [0.1], 1),
        ("", "1", [9.0], 0),
    ],
)
def test_errors(verifier, answer, gold, errors, accuracy):
    assert verifier.score(boxed(answer), gold, errors=errors).accuracy == accuracy
