"""JSON-lines sources: rows read strictly, a new permutation each epoch."""

import json

import pytest
import tiny

from cpgd_jax.config import Data
from cpgd_jax.data import sources
from cpgd_jax.errors import UserError


def write(path, rows):
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), "utf-8")
    return str(path)


@pytest.fixture
def source(tmp_path):
    rows = [{"question": f"q{i}", "answer": f"a{i}"} for i in range(7)]
    held_out = [{"question": "h0", "answer": "1", "id": "first"}, {"question": "h1", "answer": "2"}]
    data = Data(
        "jsonl",
        write(tmp_path / "train.jsonl", rows),
        write(tmp_path / "test.jsonl", held_out),
        "",
        "none",
        tiny.config().data.arithmetic,
    )
    return sources.load(data, seed=3)


def test_an_epoch_holds_every_row_once_in_its_own_order(source):
    epochs = [[source.train(7 * e + i).prompt for i in range(7)] for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == [f"q{i}" for i in range(7)]
    assert epochs[0] != epochs[1] or epochs[1] != epochs[2]
    assert [source.train(i).prompt for i in (20, 0, 13)] == [
        epochs[2][6],
        epochs[0][0],
        epochs[1][6],
    ]


def test_rows(source):
    assert source.train(0).gold == "a" + source.train(0).prompt[1:]
    assert [e.id for e in source.held_out(5)][0] == "first"
    assert source.held_out(5)[1].id.endswith("test.jsonl:2")
    assert len(source.held_out(1)) == 1
    assert len(source.longest()) == 7


def test_a_worked_solution_gives_its_result(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "q", "answer": "1+1=<<1+1=2>>2\n#### 2"}])
    assert sources.read_jsonl(path, "config.data.path")[0].gold == "2"


def test_line_separators_inside_a_text_do_not_end_a_row(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "a\u2028b\x85c", "answer": "1"}])
    assert sources.read_jsonl(path, "x")[0].prompt == "a\u2028b\x85c"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no rows"),
        (b'{"question": "q"}', "a.jsonl:1: needs a text field 'answer'"),
        (b'{"question": "q", "answer": "1"}\n\n{"question": 3, "answer": "1"}', ":3: needs a text"),
        (b"[1]", "needs a text field"),
        (b'{"question"', "a.jsonl:1: not JSON"),
        (b"\xff", "cannot be read"),
    ],
)
def test_bad_rows_name_the_line(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UserError) as error:
        sources.read_jsonl(str(tmp_path / "a.jsonl"), "config.data.path")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_names_the_config_key():
    with pytest.raises(UserError, match=r"config\.data\.path is '': no such file"):
        sources.read_jsonl("", "config.data.path")


def test_gsm8k_reads(shared):
    rows = sources.read_jsonl(str(shared / "data/gsm8k/test.jsonl"), "config.data.path")
    assert len(rows) == 1319
    assert rows[0].gold == "18"
    assert all("#" not in r.gold and r.gold for r in rows)
