"""Official files -> items: JSON, JSON lines or Parquet, with a report of what is odd about them."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cpgd_jax.benchmarks.records import Benchmark, Item
from cpgd_jax.data import image_files, rows
from cpgd_jax.errors import UserError

SHOWN = 5  # examples named of each kind of fault


@dataclass
class Loaded:
    """A benchmark's items, and what was found on the way."""

    items: tuple[Item, ...]
    root: Path  # where image paths start
    report: dict = field(default_factory=dict)  # kind of fault -> {"count", "examples"}


def load(benchmark: Benchmark, name: str, data: str | Path, limit: int | None = None) -> Loaded:
    """The items of a benchmark's official file.

    data: the file, or a folder with it or with a folder `name` that has it. limit: the first so
    many items. Broken rows and rows with an id that was there before are left out, and reported as
    are fields and counts that are not the official ones and images that are missing. UserError:
    there is no file, or no row of it can be used.
    """
    path = _find(benchmark, name, Path(data))
    items: dict[str, Item] = {}
    faults: dict[str, list[str]] = {}
    total = 0
    for place, row in _rows(path):
        total += 1
        for kind, detail in _take(benchmark, place, row, items):
            faults.setdefault(kind, []).append(detail)
    if not items:
        kinds = ", ".join(f"{kind}: {details[0]}" for kind, details in faults.items())
        raise UserError(f"{str(path)!r} has no row of {benchmark.title} ({kinds or 'it is empty'})")
    kept = tuple(items.values())[:limit]
    for item in kept:
        for image in item.images:
            if isinstance(image, str) and not _exists(image, path.parent):
                faults.setdefault("image missing", []).append(f"{item.id}: {image}")
    report = {k: {"count": len(v), "examples": v[:SHOWN]} for k, v in sorted(faults.items())}
    if benchmark.count and total != benchmark.count:
        detail = f"{total} rows, officially {benchmark.count}"
        report["count"] = {"count": total, "examples": [detail]}
    return Loaded(kept, path.parent.resolve(), {"file": str(path.name), **report})


def image_bytes(image: str | bytes, root: Path) -> bytes:
    """The encoded image, not decoded. data.rows.Broken: missing or outside `root`."""
    if isinstance(image, bytes):
        return image
    found = next((n for n in _places(image) if (root / n).is_file()), image)
    return image_files.fetch(found, root)


def _places(image: str) -> tuple[str, str]:
    """Some files name images from the folder `images` on."""
    return image, f"images/{image}"


def _exists(image: str, root: Path) -> bool:
    try:
        return any((root / place).is_file() for place in _places(image))
    except (OSError, ValueError):  # too long, a NUL character
        return False


def _take(benchmark, place, row, items) -> Iterator[tuple[str, str]]:
    """Adds the row's item; yields (kind, detail) of each fault."""
    if isinstance(row, rows.Broken):
        yield row.kind, f"{place}: {row}"
        return
    try:
        item = benchmark.item(row)
        if not (item.prompt.strip() or item.images):
            raise ValueError("it has neither question nor image")
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        yield "broken row", f"{place}: {_fault(error)}"
        return
    item = item if item.id else item._replace(id=str(place))
    for name in sorted(set(row) - set(benchmark.fields.split(","))):
        yield "unknown field", f"{place}: {name}"
    if item.id in items:
        yield "duplicated id", item.id
    else:
        items[item.id] = item


def _fault(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it has no field {error}"
    return f"{type(error).__name__} {str(error)[:100]}"


def _find(benchmark: Benchmark, name: str, data: Path) -> Path:
    if data.is_file():
        return data
    if not data.is_dir():
        raise UserError(f"--data={data}: no such file or folder")
    for folder in (data / name, data):
        for pattern in benchmark.files:
            if found := sorted(p for p in folder.glob(pattern) if p.is_file()):
                return found[0]
    wanted = " or ".join(benchmark.files)
    raise UserError(f"--data={data} holds no file of {benchmark.title}: needs {name}/{wanted}")


def _rows(path: Path) -> Iterator[tuple[int, dict | rows.Broken]]:
    """(place from 0, row) of a file, of a Parquet file and those beside it with the same split."""
    if path.suffix == ".parquet":
        yield from enumerate(_parquet(path))
    elif path.suffix == ".json":
        yield from enumerate(_json(path))
    else:
        lines = rows.lines(str(path), "--data")
        yield from ((place, _parsed(line)) for place, (_, line) in enumerate(lines))


def _parsed(line: bytes):
    try:
        row = rows.parse(line)
    except rows.Broken as error:
        return error
    return row if isinstance(row, dict) else rows.Broken("broken row", f"{str(row)[:40]!r}")


def _json(path: Path) -> list:
    """A list of rows, or rows by their id."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{str(path)!r} cannot be read as JSON: {error}") from error
    found = list(found.values()) if isinstance(found, dict) else found
    if not isinstance(found, list):
        raise UserError(f"{str(path)!r} holds {type(found).__name__}, no list of rows")
    return [r if isinstance(r, dict) else rows.Broken("broken row", str(r)[:40]) for r in found]


def _parquet(path: Path) -> Iterator[dict]:
    """The rows of all its parts, `test-00000-of-00002.parquet` and so on."""
    from pyarrow import lib, parquet

    stem = path.name.partition("-")[0]
    try:
        for part in sorted(path.parent.glob(f"{stem}-*.parquet")) or [path]:
            for batch in parquet.ParquetFile(part).iter_batches(64):
                yield from batch.to_pylist()
    except (OSError, lib.ArrowException) as error:
        raise UserError(f"{str(path)!r} cannot be read as Parquet: {error}") from error


def tally(kinds) -> dict[str, int]:
    """How often each kind occurs, the commonest first."""
    return dict(Counter(kinds).most_common())
