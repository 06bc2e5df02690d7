"""TFDS builders stored as ArrayRecord: made and read without TensorFlow; damage is named."""

import io
import json
import re
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds
import tiny
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from cpgd_jax.data import array_record, sources
from cpgd_jax.data.rows import FIELDS, Fields
from cpgd_jax.errors import UserError

ROWS = [{"id": f"r{i}", "question": f"wie groß ist {i}?", "answer": f"{i}"} for i in range(40)]
HELD_OUT = [{"id": f"h{i}", "question": f"held {i}", "answer": f"so\n#### {i}"} for i in range(3)]


@pytest.fixture(autouse=True)
def without_tensorflow():
    yield
    assert "tensorflow" not in sys.modules


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set").mkdir()
    array_record.write(tmp_path / "set", "toy", {"train": ROWS, "held_out": HELD_OUT}, False)
    return tmp_path / "set"


def read(path, max_broken=0.0, fields=FIELDS, **options):
    return array_record.read(str(path), "config.data.path", fields, max_broken, **options)


def record_file(folder):
    return next(folder.glob("toy-train.array_record*"))


def damage(folder, text: bytes):
    content = bytearray(record_file(folder).read_bytes())
    content[content.index(text)] ^= 255
    record_file(folder).write_bytes(content)


def test_rows_come_in_the_order_in_which_they_were_written(folder):
    examples = read(f"{folder}:train")
    assert [(e.id, e.prompt, e.gold) for e in examples] == [tuple(row.values()) for row in ROWS]
    assert [e.gold for e in read(f"{folder}:held_out")] == ["0", "1", "2"]
    assert len(read(f"{folder}:train[:25%]")) == 10


def test_tfds_itself_reads_them(folder):
    builder = tfds.builder_from_directory(folder)
    assert {n: s.num_examples for n, s in builder.info.splits.items()} == {
        "train": 40,
        "held_out": 3,
    }
    texts = builder.as_data_source("train")[7]
    assert {k: v.decode() for k, v in texts.items()} == ROWS[7]


def test_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(array_record, "ROWS_A_SHARD", 15)
    array_record.write(tmp_path, "toy", {"train": iter(ROWS)}, False)
    assert len(list(tmp_path.glob("toy-train.array_record*"))) == 3
    assert [e.id for e in read(f"{tmp_path}:train")] == [row["id"] for row in ROWS]


def test_a_published_set_of_other_fields(tmp_path):
    """Numbers as ids, no id, further fields, a version folder: as TFDS lays them out."""
    features = {"idx": tfds.features.Scalar(np.int64), "q": tfds.features.Text()}
    raw = tfds.features.Tensor(shape=(2,), dtype=np.float32)
    features |= {"solution": tfds.features.Text(), "raw": raw}
    for version in ("1.9.0", "1.10.0"):
        (tmp_path / version).mkdir()
        identity = tfds.core.DatasetIdentity("math", version, str(tmp_path / version), "")
        info = tfds.core.DatasetInfo(
            builder=identity, features=tfds.features.FeaturesDict(features)
        )
        writer = tfds.core.SequentialWriter(info, 100, file_format="array_record")
        writer.initialize_splits(["test"])
        row = {"idx": 3, "q": f"in {version}", "solution": r"\boxed{2}", "raw": [1.0, 2.0]}
        writer.add_examples({"test": [row]})
        writer.close_all()
    (example,) = read(f"{tmp_path}:test", fields=Fields("q", "solution"))
    assert (example.prompt, example.gold) == ("in 1.10.0", "2")
    assert example.id == f"{tmp_path}:test#0"
    with pytest.raises(UserError, match="needs a text field 'question'"):
        read(f"{tmp_path}:test")


def test_the_stream_is_a_function_of_seed_and_position(folder):
    named = {"path": f"{folder}:train", "held_out_path": f"{folder}:held_out"}
    data = tiny.config(data__source="tfds", **{f"data__{k}": v for k, v in named.items()}).data
    source = sources.load(data, 5)
    stream = [source.train(i) for i in range(60)]
    assert sorted(e.id for e in stream[:40]) == sorted(row["id"] for row in ROWS)
    assert [sources.load(data, 5).train(i) for i in range(30, 60)] == stream[30:]
    assert [e.prompt for e in source.held_out(2)] == ["held 0", "held 1"]


def test_images_are_referred_to_by_their_place(tmp_path):
    picture = tiny_png()
    content = [{**ROWS[0], "images": [picture, picture]}, {**ROWS[1], "images": []}]
    array_record.write(tmp_path, "toy", {"train": content}, True)
    first, second = read(f"{tmp_path}:train", images=True)
    assert first.images == ("0/0", "0/1") and second.images == ()
    with pytest.raises(UserError, match="#0: has an image, and only text is read here; 1 of 2"):
        read(f"{tmp_path}:train")
    assert len(read(f"{tmp_path}:train", max_broken=0.5)) == 1
    shown = tfds.builder_from_directory(tmp_path).as_data_source("train")[0]["images"]
    assert [image.shape for image in shown] == [(2, 3, 3)] * 2


def tiny_png():
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, "PNG")
    return file.getvalue()


def test_a_damaged_record_is_left_out_and_named(folder, capsys):
    damage(folder, b"ist 17?")
    kept = read(f"{folder}:train", 0.05)
    assert [e.id for e in kept] == [row["id"] for row in ROWS if row["id"] != "r17"]
    warning = capsys.readouterr().err
    assert "1 of 40 rows left out: 1 unreadable record" in warning and ":train#17)" in warning
    with pytest.raises(UserError, match=r":train#17: unreadable record .*hash mismatch"):
        read(f"{folder}:train", 0.02)


@pytest.mark.parametrize("content", [None, b"", b"x" * 70_000])
def test_a_file_that_is_gone_or_destroyed_is_named(folder, content):
    file = record_file(folder)
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match="train#0: unreadable record .*; 40 of 40 rows") as error:
        read(f"{folder}:train", 0.5)
    assert "\n" not in str(error.value)


def test_records_that_are_no_examples(folder):
    name = str(record_file(folder))
    record_file(folder).unlink()
    writer = ArrayRecordWriter(name, "group_size:1")
    for _ in ROWS:
        writer.write(b"\xff\xff\xff")
    writer.close()
    with pytest.raises(UserError, match="unreadable record"):
        read(f"{folder}:train")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("{}", "give FOLDER:SPLIT"),
        ("{}:", "give FOLDER:SPLIT"),
        ("{}:../x", "give FOLDER:SPLIT"),
        ("{}/none:train", "holds no dataset_info.json"),
        ("{}:validation", "Unknown split 'validation'. Should be one of ['train', 'held_out']"),
        ("{}:train[x]", "Error parsing split"),
    ],
)
def test_paths_that_name_no_split(folder, path, message):
    with pytest.raises(UserError, match=re.escape(message)) as error:
        read(path.format(folder))
    assert str(error.value).startswith("config.data.path") and "\n" not in str(error.value)


def edit(file, change):
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def test_metadata_imports_nothing_and_names_no_file_elsewhere(folder, tmp_path, monkeypatch):
    (tmp_path / "hostile_features.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    good = {p: p.read_text() for p in folder.glob("*.json")}
    evil = "hostile_features.Text"
    described = json.dumps({"pythonClassName": evil, "text": {}})

    def refused(name, message, change):
        edit(folder / name, change)
        with pytest.raises(UserError, match=message):
            read(f"{folder}:train")
        for path, text in good.items():
            path.write_text(text)

    def features(value):
        return value["featuresDict"]["features"]

    asks = f"asks for the class {evil!r}"
    refused("features.json", asks, lambda v: features(v)["id"].update(pythonClassName=evil))
    refused("features.json", asks, lambda v: features(v)["id"].update(python_class_name=evil))
    nested = {"pythonClassName": evil, "jsonFeature": {"json": described}}
    refused("features.json", asks, lambda v: features(v).update(id=nested))
    legacy = {"type": evil, "content": "{}"}
    refused("features.json", asks, lambda v: (v.clear(), v.update(legacy)))
    outside = "names the file '.*' outside its folder"
    template = "../{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_INDEX}"
    refused(
        "dataset_info.json", outside, lambda v: v["splits"][0].update(filepathTemplate=template)
    )
    refused("dataset_info.json", outside, lambda v: v.update(name="../toy"))
    edit(folder / "dataset_info.json", lambda v: v.update(moduleName="hostile_features"))
    assert len(read(f"{folder}:train")) == 40


@pytest.mark.parametrize("content", ["", "[]", "{", "null"])
@pytest.mark.parametrize("name", ["features.json", "dataset_info.json"])
def test_damaged_metadata(folder, name, content):
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        read(f"{folder}:train")


def test_another_file_format_is_named(folder):
    edit(folder / "dataset_info.json", lambda v: v.update(fileFormat="tfrecord"))
    with pytest.raises(UserError, match="is stored as tfrecord: prepare it again"):
        read(f"{folder}:train")
