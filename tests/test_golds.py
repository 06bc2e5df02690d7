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
