"""Official rules of the benchmarks, on constructed responses for every item of the real files."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cpgd_jax.benchmarks import (
    mathvision,
    mathvista,
    olympiadbench,
    overall,
    paper,
    reading,
    rules,
    table,
    wemath,
)
from cpgd_jax.errors import UserError
from cpgd_jax.rewards import Verifier


def items_of(shared, name, data=None):
    return reading.load(table.named(name), name, data or shared / "data").items


@pytest.fixture(scope="module")
def pool():
    with Verifier(2, 5.0, table.named("mathvision").functions) as verifier:
        yield verifier


@pytest.fixture
def verdicts(pool):
    """`verdicts(name, items, texts)`: whether each text is right, by the benchmark's rule."""

    def judge(name, items, texts):
        rule = table.named(name).rule
        with ThreadPoolExecutor(2) as threads:
            return [
                v.correct
                for v in threads.map(lambda x: rule(*x, pool), zip(items, texts, strict=True))
            ]

    return judge


@pytest.mark.parametrize("model", paper.PAPER)
def test_overall_as_printed(model):
    """No value lies half-way, so that rounding half up and half to even agree."""
    value = overall(paper.row(model), paper.row(paper.BASELINE))
    assert f"{value:.2f}" == f"{paper.PAPER[model][1]:.2f}"
    assert abs(value * 100 % 1 - 0.5) > 1e-6


def test_overall_refuses():
    with pytest.raises(UserError, match="no benchmark"):
        overall({}, {"mmk12": 1})
    with pytest.raises(UserError, match="'mmk12'"):
        overall({"mmk12": 1}, {"mathvista": 1})
    with pytest.raises(UserError, match="did you mean 'PGD'"):
        paper.row("PGDD")


VISION_PHRASINGS = (
    r"Some steps: 1 + 1 = 2." + "\n" + r"\boxed{%s}",
    "We think.\nThe answer is %s",
    r"First \boxed{7777}, no: the final answer is $\boxed{%s}$.",
    r"<think>\boxed{-8888}?</think><answer>So it is \boxed{%s}.</answer>",
    "So the correct answer is %s.\nThat is all. Really",
)


def test_mathvision_pays_right_answers(shared, verdicts):
    items = items_of(shared, "mathvision")
    assert len(items) == 3040
    for phrasing in VISION_PHRASINGS:
        right = verdicts("mathvision", items, [phrasing % item.gold for item in items])
        missed = [item.gold for item, r in zip(items, right, strict=True) if not r]
        assert not missed, (phrasing, missed)


def test_mathvision_pays_options_as_text(shared, verdicts):
    items = [i for i in items_of(shared, "mathvision") if i.row["value"]]
    texts = [rf"\boxed{{{item.row['value']}}}" for item in items]
    missed = [t for t, r in zip(texts, verdicts("mathvision", items, texts), strict=True) if not r]
    assert not missed


@pytest.mark.parametrize("phrasing", VISION_PHRASINGS)
def test_mathvision_does_not_pay_wrong_answers(shared, verdicts, phrasing):
    items = items_of(shared, "mathvision")
    texts = [phrasing % wrong_vision(item) for item in items]
    # As officially, the text of the right option counts, and three questions have letters as texts.
    paid = [(i.gold, t) for i, t, r in zip(items, texts, verdicts("mathvision", items, texts),
                                            strict=True) if r]  # fmt: skip
    assert len(paid) == 3 and all(gold in "ADE" for gold, _ in paid), paid


def wrong_vision(item):
    if item.gold in mathvision.LETTERS:
        return "ABCDE"[("ABCDE".index(item.gold) + 1) % 5]
    return f"({item.gold})+1" if "," not in item.gold else "17"


@pytest.mark.parametrize(
    "response, gold, correct",
    [
        (r"\boxed{\frac{1}{3}}", "0.33", True),
        (r"\boxed{\frac{1}{3}}", "0.34", False),
        (r"\boxed{(1/2, 2)}", "(0.5,2)", True),
        (r"\boxed{(1/2, 2)}", "[0.5,2]", False),
        (r"\boxed{\sqrt{2}}", "1.41", True),
        (r"\boxed{5 m^3}", "5", True),
        (r"\boxed{9^{9^{9^{9}}}}", "3", False),
        (r"\boxed{x}", "3", False),
        ("", "3", False),
        ("(" * 9000, "3", False),
        (r"\boxed{50\%}", "50", True),
        (r"\boxed{50%}", "50", False),
        (r"\boxed{5\text{ cm}}", "5", False),
        ("The answer is **16**", "16", False),
        (r"\boxed{\text{(0.5, 2)}}", "(0.5,2)", True),
    ],
)
def test_mathvision_values(response, gold, correct, verdicts):
    item = mathvision.item({"id": 1, "question": "q", "answer": gold, "image": "a.png"})
    assert verdicts("mathvision", [item], [response]) == [correct]


VISTA_GIVEN = {  # answer type -> forms in which a right answer may come
    "text": ("({letter}) {gold}", "{letter}", "{gold}", "({letter})"),
    "integer": ("{gold}", "{gold}.0", " {gold} "),
    "float": ("{gold}", "{gold}0", "{gold}001"),
    "list": ("{gold}",),
}


def test_mathvista_normalises_every_answer(shared):
    rows = json.loads((shared / "data/mathvista/testmini.json").read_text()).values()
    counts, missed = dict.fromkeys(VISTA_GIVEN, 0), []
    for row in rows:
        counts[row["answer_type"]] += 1
        choices = row["choices"] or []
        letter = chr(ord("A") + choices.index(row["answer"])) if choices else ""
        for form in VISTA_GIVEN[row["answer_type"]]:
            given = form.format(gold=row["answer"], letter=letter)
            if mathvista.normalise(given, row) != row["answer"]:
                missed.append(given)
        other = wrong_vista(row, choices)
        assert mathvista.normalise(other, row) != row["answer"], (other, row)
    # Two questions have the choices "(c)", "(a)", ...: officially "(b)" is the second.
    assert missed == ["(b)", "(b)"]
    assert counts == {"text": 540, "integer": 418, "float": 40, "list": 2}


def wrong_vista(row, choices):
    if choices:
        return next(c for c in choices if c != row["answer"])
    return row["answer"] + "1" if row["answer_type"] == "list" else str(float(row["answer"]) + 1)


def test_mathvista_end_to_end(shared, verdicts):
    items = items_of(shared, "mathvista")
    right = verdicts("mathvista", items, [rf"<answer>\boxed{{{i.gold}}}</answer>" for i in items])
    missed = [i.gold for i, r in zip(items, right, strict=True) if not r]
    assert missed == ["(b)", "(b)"]
    assert not any(verdicts("mathvista", items, [""] * len(items)))


@pytest.mark.parametrize(
    "a, b, expected", [("", "abc", 3), ("kitten", "sitting", 3), ("a", "a", 0)]
)
def test_edit_distance(a, b, expected):
    assert mathvista.distance(a, b) == mathvista.distance(b, a) == expected


def test_nearest_choice_and_units(verdicts):
    row = {"question_type": "multi_choice", "choices": ["rhombus", "square"], "answer_type": "text"}
    assert mathvista.normalise("a squar", row) == "square"
    item = mathvista.item({"pid": 1, "question": "q", "image": "a.png", "answer": "1000",
                           "question_type": "free_form", "answer_type": "integer", "unit": "g",
                           "choices": None, "precision": None})  # fmt: skip
    assert verdicts("mathvista", [item], ["The volume is \\boxed{1,000\\text{ g}}"]) == [True]
    assert verdicts("mathvista", [item], ["between \\boxed{1000 and 2000}"]) == [False]


def test_mathverse_by_version(shared, verdicts):
    items = items_of(shared, "mathverse")
    right = verdicts("mathverse", items, [rf"\boxed{{{item.gold}}}" for item in items])
    assert len(items) == 788 and sum(right) == 788
    sample = items_of(shared, "mathverse", shared / "data/mathverse/visualizer_sample.jsonl")
    versions = [item.groups["version"] for item in sample]
    assert {v: versions.count(v) for v in versions} == dict.fromkeys(
        ["Text Dominant", "Text Lite", "Vision Intensive", "Vision Dominant", "Vision Only"], 12
    )
    assert sum(verdicts("mathverse", sample, [f"so the answer is {i.gold}" for i in sample])) == 60
    assert not any(verdicts("mathverse", sample, ["no idea"] * 60))


def test_mathverse_official_responses(shared, verdicts):
    """A published model's answers to one problem in its five versions: "14 cm" four times, "13"."""
    path = shared / "data/mathverse/output_template_testmini_5.json"
    texts = [row["model_answer"] for row in json.loads(path.read_text())]
    items = items_of(shared, "mathverse", path)
    assert [item.groups["version"] for item in items][::4] == ["Text Dominant", "Vision Only"]
    assert verdicts("mathverse", items, texts) == [True, True, True, True, False]


def test_olympiad_official_vectors(shared, verdicts):
    """The official judge's own vectors, through the benchmark's rule."""
    vectors = json.loads((shared / "data/olympiadbench/scoring_examples.json").read_text())
    cases = [(group["GT"], answer) for group in vectors for answer in group["Ans"]]
    for gold, case in cases:
        given = case.get("precision", "")
        error = ",".join(map(str, given)) if isinstance(given, list) else str(given)
        row = {"id": 1, "question": "q", "final_answer": [gold], "error": error}
        text = case["answer"] if "boxed" in case["answer"] else rf"\boxed{{{case['answer']}}}"
        item = olympiadbench.item(row)
        assert verdicts("olympiadbench", [item], [text]) == [case["equal"]], (gold, case)
    assert len(cases) == 36


def test_olympiad_several_boxes(verdicts):
    row = {"id": 1, "question": "q", "final_answer": ["$1$", "$2$"], "is_multiple_answer": True}
    items = [olympiadbench.item(row)]
    assert verdicts("olympiadbench", items, [r"\boxed{2} or \boxed{1}"]) == [True]
    assert verdicts("olympiadbench", items, [r"\boxed{2} or \boxed{\boxed{3}}"]) == [False]
    assert olympiadbench.errors("1e-1,0.5") == (0.1, 0.5) and olympiadbench.errors(None) == ()


def closed_form(groups):
    """Scores by counting bits: groups are (step verdicts, verdict of the whole)."""
    n = len(groups)
    ig = sum(all(s) and not w for s, w in groups)
    ik = sum(not all(s) and not w for s, w in groups)
    strict = sum(not all(s) and w for s, w in groups)
    loose = sum(not any(s) and w for s, w in groups)
    return [100 * (n - ig / 2 - ik - rm) / n for rm in (strict, loose)]


def simulated(items, chance, seed):
    draw = np.random.default_rng(seed).random(len(items)) < chance
    return list(zip(items, draw.tolist(), strict=True))


def grouped(pairs):
    found = {}
    for item, correct in pairs:
        steps, whole = found.setdefault(item.row["group"], ([], []))
        (whole if item.row["whole"] else steps).append(correct)
    return [(steps, whole[0]) for steps, whole in found.values()]


@pytest.mark.parametrize("chance", [0.0, 0.3, 0.7, 1.0])
def test_wemath_four_way(shared, chance):
    whole = items_of(shared, "wemath")
    sample = items_of(shared, "wemath", shared / "data/wemath/sample.jsonl")
    for items, count in ((whole, 525), (sample, 14)):
        pairs = simulated(items, chance, seed=count)
        scores = wemath.four_way(pairs)
        assert scores["groups"] == count
        np.testing.assert_allclose(
            [scores["score strict"], scores["score loose"]], closed_form(grouped(pairs)), rtol=1e-12
        )
        for kind in ("strict", "loose"):
            shares = [scores[name] for name in ("IK", "IG", f"CM {kind}", f"RM {kind}")]
            np.testing.assert_allclose(sum(shares), 100)


def test_wemath_every_pattern():
    """All answers to one problem of two steps: outcome and score by hand."""
    expected = {  # step, step, whole -> (score strict, score loose)
        (1, 1, 1): (100, 100), (1, 0, 1): (0, 100), (0, 0, 1): (0, 0), (1, 1, 0): (50, 50),
        (0, 1, 0): (0, 0), (0, 0, 0): (0, 0),
    }  # fmt: skip
    for bits, scores in expected.items():
        for order in itertools.permutations(range(3)):
            keys = ("2steps_1", "2steps_2", "2steps_multi")
            pairs = [(wemath_item("2steps_1", keys[n]), bool(bits[n])) for n in order]
            result = wemath.four_way(pairs)
            assert (result["score strict"], result["score loose"]) == scores
    assert wemath.four_way(pairs[:2]) == {}


def wemath_item(group, key):
    row = {"ID": group, "key": key, "question": "q", "option": "A. 1; B. 2", "answer": "B"}
    return wemath.item(row | {"image_path": "a.png"})


@pytest.mark.parametrize(
    "response, correct",
    [
        (r"\boxed{B}", True),
        ("<Answer>: B. 2", True),
        ("Answer: A, and then\nAnswer: B", True),
        ("Answer: A", False),
        (r"Answer: \boxed{B}", True),
        ("the answer is (B)", True),
        ("B", True),
        ("", False),
        ("both", False),
    ],
)
def test_wemath_letters(response, correct, verdicts):
    assert verdicts("wemath", [wemath_item("2steps_1", "2steps_1")], [response]) == [correct]


def test_wemath_golds(shared, verdicts):
    items = items_of(shared, "wemath")
    assert all(verdicts("wemath", items, [rf"<answer>\boxed{{{i.gold}}}</answer>" for i in items]))
    assert len({item.id for item in items}) == 1740


@pytest.mark.parametrize(
    "response, found",
    [
        ("2 + 2 = 4\n4", "4"),
        ("A long way.\nSo she has\n\\[\n12 \\text{ cm}\n\\]", r"12 \text{ cm}"),
        ("One.\nFinal answer: 14\nThat is all I can say.", "14"),
        ("It is 3.\nIt may be 4 or 5", "It may be 4 or 5"),
        ("<think>It is\n5", ""),
        ("...\n!", ""),
        ("so the sum is 5", "5"),
    ],
)
def test_answers_without_a_box(response, found):
    assert rules.found(response) == found


@pytest.mark.parametrize("name, count", [("gsm8k", 1319), ("math500", 500)])
def test_text_benchmarks(shared, name, count, verdicts):
    items = items_of(shared, name)
    right = verdicts(name, items, [rf"So \boxed{{{item.gold}}}" for item in items])
    assert len(items) == count and sum(right) == count


def test_mmk12_letters(shared, verdicts):
    items = items_of(shared, "mmk12", shared / "data/mmk12_k12_500/k12.jsonl")
    assert len(items) == 500 and all(item.images for item in items)
    row = {"id": "a", "question": "q\nA. 1\nB. 2", "answer": "B", "subject": "physics"}
    item = table.named("mmk12").item(row | {"image": {"bytes": b"x", "path": None}})
    texts = ["B", r"\boxed{B}", "the answer is B. 2", "A", "A or B", ""]
    paid = [verdicts("mmk12", [item], [text])[0] for text in texts]
    assert paid == [True, True, True, False, False, False]
    assert item.groups == {"subject": "physics"} and item.images == (b"x",)
