"""File sources: rows read strictly, Grain's order, a new permutation each epoch, shares."""

import json
import subprocess
import sys

import grain
import pytest
import tiny

from cpgd_jax.data import rows, sources
from cpgd_jax.errors import UserError


def write(path, content):
    lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in content)
    path.write_text("".join(lines), "utf-8")
    return str(path)


def data(**changes):
    return tiny.config(**{f"data__{key}": value for key, value in changes.items()}).data


ROWS = 60  # Grain's shuffle of a handful of rows takes milliseconds a row


@pytest.fixture
def config(tmp_path):
    train = [{"question": f"q{i}", "answer": f"a{i}"} for i in range(ROWS)]
    held_out = [{"question": "h0", "answer": "1", "id": "first"}, {"question": "h1", "answer": "2"}]
    return data(
        source="jsonl",
        path=write(tmp_path / "train.jsonl", train),
        held_out_path=write(tmp_path / "test.jsonl", held_out),
    )


@pytest.fixture
def source(config):
    return sources.load(config, seed=3)


def prompts(source, positions):
    return [source.train(position).prompt for position in positions]


def grains(seed=3):
    return grain.MapDataset.source(range(ROWS)).seed(seed).shuffle().repeat()


def test_an_epoch_holds_every_row_once_in_its_own_order(source):
    first, second = (prompts(source, range(start, start + ROWS)) for start in (0, ROWS))
    assert sorted(first) == sorted(second) == sorted(f"q{i}" for i in range(ROWS))
    assert first != second


def test_the_order_is_grains(source):
    positions = [*range(20), ROWS, 5 * ROWS + 1, 10**9]
    assert prompts(source, positions) == [f"q{grains()[i]}" for i in positions]


def test_a_source_opened_again_goes_on_where_the_first_stood(config, source):
    straight = prompts(source, range(ROWS - 10, ROWS + 10))
    assert prompts(sources.load(config, seed=3), range(ROWS, ROWS + 10)) == straight[10:]
    assert prompts(source, (ROWS + 2, ROWS - 9, ROWS)) == [straight[i] for i in (12, 1, 10)]
    assert prompts(sources.load(config, seed=4), range(ROWS, ROWS + 10)) != straight[10:]


@pytest.mark.parametrize("count", [2, 3])
def test_the_shares_of_processes_are_disjoint_and_complete(config, source, count):
    shares = [sources.load(config, 3, index, count) for index in range(count)]
    dealt = [prompts(share, range(ROWS // count)) for share in shares]
    for index, share in enumerate(shares):
        assert dealt[index] == [f"q{grains()[index::count][i]}" for i in range(ROWS // count)]
        assert share.held_out(2) == source.held_out(2) and share.longest() == source.longest()
    assert sorted(sum(dealt, [])) == sorted(f"q{i}" for i in range(ROWS))


def test_the_generated_task_is_shared_out_too():
    arithmetic = data()
    whole = sources.load(arithmetic, 0)
    second = sources.load(arithmetic, 0, 1, 2)
    assert [second.train(i) for i in range(5)] == [whole.train(2 * i + 1) for i in range(5)]


def test_rows(source):
    assert source.train(0).gold == "a" + source.train(0).prompt[1:]
    assert [e.id for e in source.held_out(5)][0] == "first"
    assert source.held_out(5)[1].id.endswith("test.jsonl:2")
    assert len(source.held_out(1)) == 1
    assert len(source.longest()) == ROWS


def test_fields_and_share_of_broken_rows_come_from_the_config(tmp_path, capsys):
    train = [{"problem": f"q{i}", "solution": rf"\boxed{{{i}}}"} for i in range(9)] + [{}]
    path = write(tmp_path / "a.jsonl", train)
    held_out = write(tmp_path / "b.jsonl", train[:2])
    named = dict(question_field="problem", answer_field="solution", source="jsonl")
    config = data(**named, path=path, held_out_path=held_out, max_broken=0.1)
    source = sources.load(config, 0)
    assert {(e.prompt, e.gold) for e in source.longest()} == {(f"q{i}", f"{i}") for i in range(9)}
    warnings = capsys.readouterr().err
    assert "1 of 10 rows left out: 1 missing field" in warnings
    assert "2 of 2 questions are also in config.data.path" in warnings
    with pytest.raises(UserError, match=r"a\.jsonl:10: needs a text field 'problem'; 1 of 10"):
        sources.load(data(**named, path=path, held_out_path=held_out), 0)


def test_a_text_model_is_not_given_rows_with_images(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "q", "answer": "1", "image": "a.png"}])
    with pytest.raises(UserError, match=r"a\.jsonl:1: has an image, and only text is read here"):
        sources.load(data(source="jsonl", path=path, held_out_path=path), 0)


def test_line_separators_inside_a_text_do_not_end_a_row(tmp_path):
    path = write(tmp_path / "a.jsonl", [{"question": "a\u2028b\x85c", "answer": "1"}])
    assert sources.read_jsonl(path, "x")[0].prompt == "a\u2028b\x85c"


def test_a_byte_order_mark_and_carriage_returns_are_no_fault(tmp_path):
    content = '\ufeff{"question": "q", "answer": "1"}\r\n\r\n{"question": "r", "answer": "2"}\r\n'
    (tmp_path / "a.jsonl").write_bytes(content.encode())
    found = sources.read_jsonl(str(tmp_path / "a.jsonl"), "x")
    assert [(e.prompt, e.gold) for e in found] == [("q", "1"), ("r", "2")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no rows"),
        (b'{"question": "q"}', "a.jsonl:1: needs a text field 'answer'"),
        (b'{"question": "q", "answer": "1"}\n\n{"question": 3, "answer": "1"}', ":3: needs a text"),
        (b"[1]", "needs a text field"),
        (b'{"question"', "a.jsonl:1: not JSON"),
        (b"\xff", "a.jsonl:1: cannot be read"),
    ],
)
def test_bad_rows_name_the_line(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(UserError) as error:
        sources.read_jsonl(str(tmp_path / "a.jsonl"), "config.data.path")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_a_file_that_cannot_be_read_names_the_config_key(tmp_path):
    with pytest.raises(UserError, match=r"config\.data\.path is '.*none': no such file"):
        sources.read_jsonl(str(tmp_path / "none"), "config.data.path")
    with pytest.raises(UserError, match=r"config\.data\.path '.*' cannot be read: Is a directory"):
        sources.read_jsonl(str(tmp_path), "config.data.path")


@pytest.mark.parametrize("key", ["path", "held_out_path"])
def test_a_file_source_needs_its_paths(key):
    named = {"path": "a", "held_out_path": "b", key: ""}
    with pytest.raises(UserError, match=rf"config\.data\.{key} is '': .*'jsonl' needs it"):
        data(source="jsonl", **named)


def test_a_generated_source_imports_neither_tfds_nor_grain(repo):
    code = (
        "import sys\nfrom configs import base\nfrom cpgd_jax import config\n"
        "from cpgd_jax.data import sources\n"
        "data = config.from_config_dict(base.get_config()).data\n"
        "sources.load(data, 0).train(0)\n"
        "assert not {'tensorflow_datasets', 'grain', 'PIL'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=repo, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


def test_gsm8k_reads(shared):
    found = sources.read_jsonl(str(shared / "data/gsm8k/test.jsonl"), "config.data.path")
    assert len(found) == 1319
    assert found[0].gold == "18"
    assert all("#" not in r.gold and r.gold for r in found)


def test_solutions_of_math_give_the_answers_that_the_set_states(shared):
    path = str(shared / "data/math500/test.jsonl")
    solved = sources.read_jsonl(path, "x", rows.Fields("problem", "solution"))
    stated = sources.read_jsonl(path, "x", rows.Fields("problem", "answer"))
    same = sum(a.gold == b.gold for a, b in zip(solved, stated, strict=True))
    assert same >= 495
