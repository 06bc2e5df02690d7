"""TFDS builders stored as ArrayRecord, written and read without TensorFlow.

`tensorflow_datasets` takes a second or more to import, so only what is called imports it.
"""

import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cpgd_jax.data import rows
from cpgd_jax.data.rows import Broken
from cpgd_jax.errors import UserError
from cpgd_jax.types import Example

ROWS_A_SHARD = 4096
_PATH = re.compile(r"(?P<folder>.+):(?P<split>[^:/\[\]]+(\[[^/\[\]]*\])?)", re.S)
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_CLASS_KEYS = {"pythonClassName", "python_class_name", "type"}
_OWN_CLASSES = "tensorflow_datasets.core.features."


def read(
    path: str, key: str, fields: rows.Fields, max_broken: float, images: bool = False
) -> tuple[Example, ...]:
    """Every sound row of `FOLDER:SPLIT`, in the order of the records, read and checked once.

    key: the config key to blame. An image is referred to as "RECORD/NUMBER" within the split.
    """
    records = _open(path, key)
    attempts = _attempts(records, f"{path}#", fields, images)
    return rows.sound(attempts, f"{key} {path!r}", max_broken)


def images(path: str, key: str) -> Callable[[str], bytes]:
    """Encoded images of `FOLDER:SPLIT` by their references; raises Broken."""
    records = _open(path, key)

    def fetch(reference: str) -> bytes:
        try:
            index, number = map(int, reference.split("/"))
            feature = _features(records, index)
            return next(
                _values(feature[name])[number] for name in rows.IMAGE_FIELDS if name in feature
            )
        except (ValueError, IndexError, StopIteration) as error:
            raise Broken("image missing", f"no image {reference!r} in {path!r}") from error

    return fetch


def write(folder: Path, name: str, splits: Mapping[str, Iterable[dict]], with_images: bool) -> None:
    """A builder's folder of rows {id, question, answer[, images: encoded bytes]} by split.

    Readable by `tfds.builder_from_directory(folder)`, with TensorFlow or without.
    """
    import tensorflow_datasets as tfds

    features = {field: tfds.features.Text() for field in ("id", "question", "answer")}
    if with_images:
        features["images"] = tfds.features.Sequence(tfds.features.Image())
    identity = tfds.core.DatasetIdentity(
        name=name, version=tfds.core.Version("1.0.0"), data_dir=str(folder), module_name=""
    )
    info = tfds.core.DatasetInfo(
        builder=identity,
        description="Questions with reference answers",
        features=tfds.features.FeaturesDict(features),
    )
    writer = tfds.core.SequentialWriter(info, ROWS_A_SHARD, file_format="array_record")
    try:
        writer.initialize_splits(list(splits))
        for split, examples in splits.items():
            writer.add_examples({split: examples})
        writer.close_all()
    except RuntimeError as error:  # a full disk
        raise UserError(f"{name} cannot be written: {_line(error)}") from error


def _attempts(records, place, fields, images) -> Iterator[tuple[str, Example | Broken]]:
    for index in range(len(records)):
        where = f"{place}{index}"
        try:
            yield where, rows.example(_row(records, index, fields), where, fields, images)
        except Broken as fault:
            yield where, fault


def _row(records: Sequence[bytes], index: int, fields: rows.Fields) -> dict:
    """Texts of the record's fields that are wanted, and references to its images."""
    row = {}
    for name, feature in _features(records, index).items():
        values = _values(feature)
        if name in rows.IMAGE_FIELDS:
            row[name] = [f"{index}/{number}" for number in range(len(values))]
        elif values and name in ("id", "message", *fields):
            row[name] = _plain(values[0], name)
    return row


def _features(records: Sequence[bytes], index: int):
    from google.protobuf.message import DecodeError
    from tensorflow_datasets.proto import tf_example_pb2

    try:
        return tf_example_pb2.Example.FromString(records[index]).features.feature
    except (RuntimeError, OSError, IndexError, DecodeError) as error:
        raise Broken("unreadable record", f"unreadable record ({_line(error)})") from error


def _values(feature) -> Sequence:
    return getattr(feature, feature.WhichOneof("kind") or "bytes_list").value


def _plain(value, name):
    try:
        return value.decode("utf-8") if isinstance(value, bytes) else value
    except UnicodeDecodeError as error:
        raise Broken("not text", f"field {name!r} is not UTF-8 ({error})") from error


def _open(path: str, key: str) -> Sequence[bytes]:
    """The records of a split. UserError: what is wrong with the path or the folder."""
    match = _PATH.fullmatch(path)
    if not match:
        raise UserError(f"{key} is {path!r}: give FOLDER:SPLIT, such as data/gsm8k:train")
    folder = _builder_folder(Path(match["folder"]).expanduser(), key)
    _check_metadata(folder, key)
    import tensorflow_datasets as tfds

    try:
        builder = tfds.builder_from_directory(folder)
        if "array_record" not in {f.value for f in builder.info.available_file_formats()}:
            raise UserError(
                f"{key} {path!r} is stored as {builder.info.file_format.value}: prepare it again"
                " with file_format='array_record'"
            )
        return builder.as_data_source(
            match["split"], deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES
        )
    except UserError:
        raise
    except Exception as error:  # damaged metadata, no such split
        raise UserError(f"{key} {path!r} cannot be read: {_line(error)}") from error


def _builder_folder(folder: Path, key: str) -> Path:
    """The folder itself, or its newest version below."""
    versions = [p for p in folder.glob("*/dataset_info.json") if _VERSION.fullmatch(p.parent.name)]
    newest = sorted(versions, key=lambda p: [int(n) for n in p.parent.name.split(".")])[-1:]
    for file in (folder / "dataset_info.json", *newest):
        if file.is_file():
            return file.parent
    raise UserError(
        f"{key}: {str(folder)!r} holds no dataset_info.json: make such a set with python -m"
        " experiments.prepare_data, or name the folder of a TFDS builder and its version"
    )


def _check_metadata(folder: Path, key: str) -> None:
    """Refuses a set that would have TFDS import code of its choice or open files elsewhere."""
    info, features = (_json(folder / n, key) for n in ("dataset_info.json", "features.json"))
    for name in _class_names(features):
        if not name.startswith(_OWN_CLASSES):
            raise UserError(f"{key}: {str(folder)!r} asks for the class {name!r}, not one of TFDS")
    for name in _texts([info.get("name"), info.get("splits")]):
        if "/" in name or "\\" in name:
            raise UserError(f"{key}: {str(folder)!r} names the file {name!r} outside its folder")


def _json(file: Path, key: str) -> dict:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{key}: {str(file)!r} cannot be read: {_line(error)}") from error
    if not isinstance(value, dict):
        raise UserError(f"{key}: {str(file)!r} holds no JSON object")
    return value


def _class_names(value) -> Iterator[str]:
    """Python classes named in a feature description, also in JSON within its texts."""
    if isinstance(value, dict):
        yield from (v for k, v in value.items() if k in _CLASS_KEYS and isinstance(v, str))
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _class_names(item)
    elif isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = json.loads(value)
            yield from _class_names(value if isinstance(value, dict | list) else None)


def _texts(value) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
