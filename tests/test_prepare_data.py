"""`experiments.prepare_data`: a set of the sound rows, a report of the others, all or nothing."""

import io
import json
import subprocess
import sys
from collections import Counter

import pytest
import tensorflow_datasets as tfds
from PIL import Image

from cpgd_jax.data import array_record, prepare
from cpgd_jax.data.rows import FIELDS, Fields
from cpgd_jax.errors import UserError


def png(colour=0):
    file = io.BytesIO()
    Image.new("L", (8, 8), colour).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "images"
    root.mkdir()
    for n in range(3):
        (root / f"{n}.png").write_bytes(png(n))
    (root / "cut.png").write_bytes(png()[:50])
    (tmp_path / "outside.png").write_bytes(png())
    return root


def plan(tmp_path, rows, **changes):
    file = tmp_path / "rows.jsonl"
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    file.write_text("\n".join(lines) + "\n")
    defaults = dict(name="toy", images="", held_out=0, max_broken=0.0, fields=FIELDS)
    return prepare.Plan(str(file), str(tmp_path / "out"), **{**defaults, **changes})


def plain(n, **more):
    return {"id": f"r{n}", "question": f"question {n}", "answer": f"{n}", **more}


def read(tmp_path, split="train"):
    return array_record.read(f"{tmp_path / 'out'}:{split}", "x", FIELDS, 0.0, images=True)


def test_every_kind_of_broken_row_is_left_out_and_named(tmp_path, root, capsys):
    turn = {"role": "user", "content": [{"type": "image", "image": f"file://{root}/1.png"}]}
    turn["content"].append({"type": "text", "text": "What is shown?"})
    good = [plain(0), plain(1, image_path="0.png"), plain(2, images=["1.png", "2.png"])]
    good.append({"id": "chat", "message": json.dumps([turn]), "answer": "7"})
    broken = {
        "{": "not JSON",
        json.dumps({"question": "q"}): "missing field",
        json.dumps(plain(3, question=" ")): "empty question",
        json.dumps(plain(4, image_path="none.png")): "image missing",
        json.dumps(plain(5, image_path="cut.png")): "image corrupt",
        json.dumps(plain(6, image_path="../outside.png")): "image outside root",
        json.dumps(plain(7, image_path=str(tmp_path / "outside.png"))): "image outside root",
        json.dumps(plain(0, question="again")): "duplicate id",
        json.dumps({"message": "[]", "answer": "1"}): "bad message",
    }
    share = len(broken) / (len(broken) + len(good))
    asked = plan(tmp_path, [*good, "", *broken], images=str(root), max_broken=share)
    report = prepare.build(asked)
    assert report == json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["rows"] == 13 and report["splits"] == {"train": 4} and report["images"] == 4
    assert report["broken"]["rows"] == len(broken)
    kinds = report["broken"]["kinds"]
    assert {kind: entry["rows"] for kind, entry in kinds.items()} == Counter(broken.values())
    for number, kind in enumerate(broken.values(), 6):  # line 5 is empty
        assert number in [found["line"] for found in kinds[kind]["first"]]
    assert "2 image outside root (11, 12)" in capsys.readouterr().err
    assert [e.id for e in read(tmp_path)] == ["r0", "r1", "r2", "chat"]
    assert [e.gold for e in read(tmp_path)] == ["0", "1", "2", "7"]


def test_images_are_stored_as_they_are(tmp_path, root):
    prepare.build(plan(tmp_path, [plain(2, images=["1.png", "2.png"])], images=str(root)))
    stored = tfds.builder_from_directory(tmp_path / "out").as_data_source(
        "train", deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
    )[0]
    assert png(1) in stored and png(2) in stored


def test_above_the_share_nothing_is_made(tmp_path):
    asked = plan(tmp_path, [*map(plain, range(98)), "{", {"question": "q"}], max_broken=0.019)
    before = sorted(tmp_path.iterdir())
    message = r"2 of 100 rows .*: 1 not JSON \(99\), 1 missing field \(100\); .* line 99: not JSON"
    with pytest.raises(UserError, match=message) as error:
        prepare.build(asked)
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.iterdir()) == before
    prepare.build(plan(tmp_path, [*map(plain, range(98)), "{", "{"], max_broken=0.02))
    assert len(read(tmp_path)) == 98


def test_rows_with_images_need_their_folder(tmp_path):
    with pytest.raises(UserError, match="has an image: give the folder of the images, --images"):
        prepare.build(plan(tmp_path, [plain(0), plain(1, image="0.png")]))


def test_golds_that_do_not_parse_are_reported_and_kept(tmp_path):
    golds = ["5", "apples and pears", "", "so\n#### 3", r"thus \boxed{\frac12}"]
    rows = [plain(n, answer=gold) for n, gold in enumerate(golds)]
    report = prepare.build(plan(tmp_path, rows))["golds"]
    assert report["text"] == {"rows": 1, "first": [{"line": 2, "gold": golds[1]}]}
    assert report["nothing"] == {"rows": 1, "first": [{"line": 3, "gold": ""}]}
    assert len(read(tmp_path)) == 5


def test_a_worked_solution_is_stored_whole(tmp_path):
    prepare.build(plan(tmp_path, [plain(0, answer="1+1=2\n#### 2")]))
    (row,) = tfds.builder_from_directory(tmp_path / "out").as_data_source("train")
    assert row["answer"] == b"1+1=2\n#### 2" and read(tmp_path)[0].gold == "2"


def test_other_fields_and_rows_without_an_id(tmp_path):
    rows = [{"problem": "p", "solution": "1"}]
    prepare.build(plan(tmp_path, rows, fields=Fields("problem", "solution")))
    assert [(e.id, e.prompt, e.gold) for e in read(tmp_path)] == [("rows:1", "p", "1")]


def test_held_out_rows(tmp_path, root):
    """Repeated questions stay on one side; one with another image is another question."""
    rows = [plain(n) for n in range(30)]
    rows += [plain(100 + n, question=f"question  {n}") for n in range(10)]
    rows += [plain(200 + n, question="the figure", image_path=f"{n}.png") for n in range(3)]
    report = prepare.build(plan(tmp_path, rows, held_out=20, images=str(root)))
    sides = [{e.id for e in read(tmp_path, split)} for split in ("train", "held_out")]
    assert [len(side) for side in sides] == [23, 20] and not sides[0] & sides[1]
    asked = [{" ".join(e.prompt.split()) for e in read(tmp_path, s)} for s in ("train", "held_out")]
    shown = asked[0] & asked[1]
    assert shown <= {"the figure"}
    assert report["repeated_questions"] == {"rows": 10, "lines": list(range(31, 41))}
    figures = [e for e in read(tmp_path, "held_out") if e.prompt == "the figure"]
    assert report["texts_in_both"]["rows"] == (len(figures) if shown else 0)


@pytest.mark.parametrize("count", [3, 4])
def test_rows_must_be_left_to_train_on(tmp_path, count):
    with pytest.raises(UserError, match=f"--held_out={count}: 3 rows leave too few"):
        prepare.build(plan(tmp_path, map(plain, range(3)), held_out=count))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "../x"}, r"--name=\.\./x"),
        ({"max_broken": float("nan")}, "--max_broken=nan: give a share"),
        ({"images": "nowhere"}, "--images=nowhere: no such folder"),
        ({"input": "nowhere.jsonl"}, "--input is 'nowhere.jsonl': no such file"),
    ],
)
def test_bad_arguments(tmp_path, changes, message):
    asked = plan(tmp_path, [plain(0)])
    with pytest.raises(UserError, match=message):
        prepare.build(prepare.Plan(**{**vars(asked), **changes}))
    assert not (tmp_path / "out").exists()


def test_a_full_output_is_refused_and_untouched(tmp_path):
    asked = plan(tmp_path, [plain(0)])
    (tmp_path / "out").mkdir()
    prepare.build(asked)  # an empty folder will do
    before = {p: p.read_bytes() for p in (tmp_path / "out").iterdir()}
    with pytest.raises(UserError, match="--output=.* is not empty"):
        prepare.build(asked)
    assert {p: p.read_bytes() for p in (tmp_path / "out").iterdir()} == before


def test_a_file_without_rows(tmp_path):
    with pytest.raises(UserError, match="holds no rows"):
        prepare.build(plan(tmp_path, ["", " "]))


def test_what_fails_while_it_is_written_leaves_nothing(tmp_path, root, monkeypatch):
    asked = plan(tmp_path, [plain(n, image_path=f"{n}.png") for n in range(3)], images=str(root))
    before = sorted(tmp_path.iterdir())
    survey = prepare._survey

    def then_change(p):
        found = survey(p)
        (root / "2.png").write_bytes(png(9))
        return found

    monkeypatch.setattr(prepare, "_survey", then_change)
    with pytest.raises(UserError, match="line 3: an image changed while it was read"):
        prepare.build(asked)
    assert sorted(tmp_path.iterdir()) == before


def run(repo, *flags):
    command = [sys.executable, "-m", "experiments.prepare_data", *flags]
    return subprocess.run(command, cwd=repo, capture_output=True, text=True)


def test_the_command(repo, tmp_path):
    asked = plan(tmp_path, [*map(plain, range(9)), plain(9, answer="apples\nand pears"), "{"])
    flags = f"--input={asked.input}", f"--output={asked.output}", "--held_out=3", "--name=toy"
    done = run(repo, *flags)
    assert done.returncode == 2 and done.stdout == ""
    assert "error: 1 of 11 rows" in done.stderr and "line 11: not JSON" in done.stderr
    assert not (tmp_path / "out").exists()
    done = run(repo, *flags, "--max_broken=0.1")
    assert done.returncode == 0, done.stderr
    assert "7 rows in train, 3 rows in held_out, 0 images; 1 broken" in done.stdout
    assert "1 answers are compared as text (line 10: apples and pears)" in done.stderr
    assert "tensorflow" not in done.stderr.lower()
    assert len(read(tmp_path, "held_out")) == 3


def test_gsm8k(shared, tmp_path):
    source = shared / "data/gsm8k/test.jsonl"
    report = prepare.build(
        prepare.Plan(str(source), str(tmp_path / "out"), "gsm8k", "", 100, 0.0, FIELDS)
    )
    assert report["splits"] == {"train": 1219, "held_out": 100}
    assert report["golds"]["text"]["rows"] == report["golds"]["nothing"]["rows"] == 0
    assert len(read(tmp_path)) == 1219


def test_k12_with_its_images(shared, tmp_path):
    folder = shared / "data/mmk12_k12_500"
    rows = [json.loads(line) for line in (folder / "k12.jsonl").read_text().splitlines()[:40]]
    report = prepare.build(plan(tmp_path, rows, images=str(folder), name="k12"))
    assert report["splits"] == {"train": 40} and report["images"] == 40
    records = tfds.builder_from_directory(tmp_path / "out").as_data_source(
        "train", deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
    )
    for row, record in zip(rows, records, strict=True):
        assert (folder / row["image_path"]).read_bytes() in record
        assert row["question"].encode() in record
