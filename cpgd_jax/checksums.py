"""Checksums of the files in a folder, so that damage is found and named before anything is used."""

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FILE = "checksums.json"
_CHUNK = 1 << 24  # bytes
_THREADS = 8


def write(folder: Path) -> None:
    """FILE: {path within the folder: [bytes, CRC-32]} of all that it holds. OSError."""
    names, found = _names(folder), _sums(folder)
    text = json.dumps(dict(zip(names, found, strict=True)), indent=0)
    (folder / FILE).write_text(text, encoding="utf-8")


def fault(folder: Path) -> str | None:
    """What is wrong with the files of a folder, in a few words; None if they are as written."""
    try:
        expected = json.loads((folder / FILE).read_text(encoding="utf-8"))
        found = dict(zip(_names(folder), _sums(folder), strict=True))
    except (OSError, ValueError) as error:
        return f"{folder.name}/{FILE} cannot be read ({str(error) or type(error).__name__})"
    if not isinstance(expected, dict):
        return f"{folder.name}/{FILE} holds no object"
    for name, value in expected.items():  # a file beside them does no harm
        if value != found.get(name):
            return f"{folder.name}/{name} {_kind(value, found.get(name))}"
    return None


def _kind(expected, found) -> str:
    if found is None:
        return "is missing"
    if isinstance(expected, list) and expected[:1] != found[:1]:
        return f"has {found[0]} bytes, not {expected[0]}"
    return "is not what was written (its checksum differs)"


def _names(folder: Path) -> list[str]:
    files = (p for p in folder.rglob("*") if p.is_file() and p.name != FILE)
    return sorted(str(p.relative_to(folder)) for p in files)


def _sums(folder: Path) -> list:
    with ThreadPoolExecutor(_THREADS) as threads:
        return list(threads.map(lambda name: _sum(folder / name), _names(folder)))


def _sum(file: Path) -> list[int]:
    """[bytes, CRC-32]."""
    size = crc = 0
    with open(file, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            size, crc = size + len(chunk), zlib.crc32(chunk, crc)
    return [size, crc]
