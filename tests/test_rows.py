"""Rows of data files: what they hold, and which are broken."""

import json

import pytest

from cpgd_jax.data import rows
from cpgd_jax.errors import UserError
from cpgd_jax.types import Example


def chat(*turns, **row):
    return {"id": "7", "message": json.dumps(list(turns)), "answer": "5", **row}


def user(*content):
    return {"role": "user", "content": list(content)}


SYSTEM = {"role": "system", "content": "You are a calculator."}
TEXT = {"type": "text", "text": "How long is AB?"}
IMAGE = {"type": "image", "image": "file:///data/a.png"}


def test_a_plain_row():
    row = {"question": "q", "answer": " 5 ", "id": 12}
    assert rows.example(row, "f:1") == Example("12", "q", "5")
    assert rows.example({"question": "q", "answer": "5"}, "f:1").id == "f:1"
    other = rows.Fields("problem", "solution")
    assert rows.example({"problem": "q", "solution": "5"}, "f:1", other).gold == "5"
    assert rows.example({"question": "q"}, "f:1", rows.Fields(answer="")).gold == ""


@pytest.mark.parametrize("field", rows.IMAGE_FIELDS)
def test_images_of_a_plain_row(field):
    row = {"question": "q", "answer": "5", field: "a.png"}
    assert rows.example(row, "", images=True).images == ("a.png",)
    assert rows.example({**row, field: ["a", "b"]}, "", images=True).images == ("a", "b")
    assert rows.example({**row, field: []}, "").images == ()


def test_a_chat_row_gives_up_its_system_turn():
    expected = Example("7", TEXT["text"], "5", images=(IMAGE["image"],))
    assert rows.example(chat(SYSTEM, user(IMAGE, TEXT)), "", images=True) == expected
    assert rows.example(chat(user(IMAGE, TEXT)), "", images=True) == expected
    plain = {"role": "user", "content": "How long is AB?"}
    assert rows.example(chat(SYSTEM, plain), "") == Example("7", TEXT["text"], "5")
    listed = {"message": [SYSTEM, plain], "answer": "5"}
    assert rows.example(listed, "f:1") == Example("f:1", TEXT["text"], "5")


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("5", "5"),
        ("1+1=<<1+1=2>>2\n#### 2", "2"),
        (r"We add, so it is \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        (r"\boxed{1}, no: \boxed{2}", "2"),
        ("so\n#### \\boxed{3}", "3"),
        ("", ""),
    ],
)
def test_the_gold_of_a_worked_solution(answer, gold):
    assert rows.gold_of(answer) == gold
    assert rows.gold_of(gold) == gold


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ([1], "missing field"),
        ({"question": "q"}, "missing field"),
        ({"question": 3, "answer": "5"}, "missing field"),
        ({"question": " \n", "answer": "5"}, "empty question"),
        ({"question": "\ud800", "answer": "5"}, "not text"),
        ({"question": "q", "answer": "5", "id": "\udc00"}, "not text"),
        ({"question": "q", "answer": "5", "image_path": "a.png"}, "image"),
        ({"question": "q", "answer": "5", "images": [{"bytes": "x"}]}, "bad image"),
        (chat(user(IMAGE, TEXT)), "image"),
        (chat(user(IMAGE)), "empty question"),
        (chat(user(TEXT), user(TEXT)), "bad message"),
        (chat(user(TEXT), {"role": "assistant", "content": "5"}), "bad message"),
        (chat(SYSTEM), "bad message"),
        (chat({"role": "user"}), "bad message"),
        (chat(user({"type": "video", "video": "a.mp4"})), "bad message"),
        (chat(user({"type": "text"})), "missing field"),
        (chat(user(TEXT), message="[{"), "not JSON"),
        (chat(message={"role": "user"}), "bad message"),
    ],
)
def test_broken_rows(row, kind):
    with pytest.raises(rows.Broken) as error:
        rows.example(row, "f:1")
    assert error.value.kind == kind and str(error.value)


@pytest.mark.parametrize("line", [b"{", b"\xff", b"[" * 100_000, b"1" * 10_000])
def test_what_is_not_json(line):
    with pytest.raises(rows.Broken):
        rows.parse(line)


def outcomes(good, bad):
    found = [(f"f:{n}", Example(str(n), "q", "1")) for n in range(good)]
    return found + [(f"f:{good + n}", rows.Broken("not JSON", "not JSON (x)")) for n in range(bad)]


def test_a_share_of_broken_rows_is_left_out_with_a_warning(capsys):
    assert len(rows.sound(outcomes(99, 1), "the file", 0.01)) == 99
    assert "the file: 1 of 100 rows left out: 1 not JSON (f:99)" in capsys.readouterr().err


@pytest.mark.parametrize(("good", "bad", "share"), [(98, 2, 0.01), (99, 1, 0.0), (0, 1, 1.0)])
def test_above_the_share_the_first_is_named(good, bad, share):
    with pytest.raises(UserError, match=rf"^f:{good}: not JSON .*; {bad} of .* rows of the file"):
        rows.sound(outcomes(good, bad), "the file", share)


def test_a_summary_counts_kinds_and_names_places():
    faults = [(n, rows.Broken("not JSON", "")) for n in range(12)]
    faults.append((12, rows.Broken("empty question", "")))
    places = ", ".join(map(str, range(10)))
    assert rows.summary(faults) == f"12 not JSON ({places}, …), 1 empty question (12)"
