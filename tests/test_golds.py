"""How golds are compared is known when they are loaded."""

import pytest

from cpgd_jax.rewards import golds


@pytest.mark.parametrize(
    "gold, expected",
    [
        ("5", "value"),
        ("B", "value"),
        (r"$\frac{x}{2}$", "value"),
        (r"\boxed{3,-3}", "value"),
        (r"(-\infty,1]\cup(3,\infty)", "value"),
        ("y=2x+1", "value"),
        (r"\begin{pmatrix}1\\x\end{pmatrix}", "value"),
        (r"5\text{ cm}", "value"),
        (r"\int_0^1 x dx", "value"),
        (r"\text{Anna}", "text"),
        (r"\triangle ABC\sim\triangle DEF", "text"),
        (r"\begin{cases} x=1 \\ ", "text"),
        ("1+" * 5000 + "1", "text"),
        ("", "nothing"),
        ("$$", "nothing"),
        (r"\boxed{}", "nothing"),
    ],
)
def test_compared_as(gold, expected):
    assert golds.compared_as(gold) == expected


def test_count():
    assert golds.count(["5", "6", "Anna", ""]) == {"value": 2, "text": 1, "nothing": 1}


def test_what_is_not_compared_by_value_is_counted_and_listed():
    assert golds.warning(["5", "B", r"\frac{x}{2}"]) == ""
    found = golds.warning(["5", "rhombus", "", "see the\nsolution", "rhombus", "$$"])
    assert found == (
        "of 6 golds 3 compared as text ('rhombus', 'see the solution')"
        " and 2 empty, never paid ('', '$$')"
    )
    many = golds.warning([f"word{'a' * n}" for n in range(100)])
    assert many.startswith("of 100 golds 100 compared as text ('word', ") and "95 more" in many
    assert len(many) < 400


@pytest.mark.parametrize(
    "piece", [r"\sin", r"\sqrt", r"\frac", r"\frac1", "2^", "-", "|", "(", r"\vec"]
)
def test_deep_golds_are_no_formulas(piece):
    assert golds.compared_as(piece * 600 + "1") == "text"
