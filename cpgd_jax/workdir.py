"""The folder of a run: claimed by one config, never overwritten by another."""

import json
import os
from pathlib import Path
from typing import IO

from cpgd_jax import config as config_lib
from cpgd_jax.errors import UserError

# Sections that may change between two calls on one workdir: they do not change what is learned.
FREE = ("log.", "checkpoint.", "guard.", "watch.", "reward.workers", "mesh.")
# What a run writes: a folder with one of these and no config.json is somebody else's.
WRITTEN = (
    "checkpoints",
    "metrics.jsonl",
    "rollouts.jsonl",
    "report.html",
    "summary.json",
    "run.json",
)
_REMEDY = "restore it, or give another --workdir"
_held: dict[Path, IO] = {}  # lock files of this process, open as long as it lives


def check(folder: str | Path, config: config_lib.Config) -> None:
    """Raises the UserError that `claim` would, as far as that can be known without writing."""
    if not str(folder):
        raise UserError("--workdir is empty: name the folder of the run")
    folder = Path(folder)
    file = folder / "config.json"
    try:
        if file.exists():
            _compare(folder, read(file), config_lib.to_dict(config))
            _lock(folder, keep=False)
        for name in () if file.exists() else WRITTEN:
            if (folder / name).exists():
                raise UserError(
                    f"--workdir {str(folder)!r} holds {name} but no config.json, so it is not a run"
                    " of this config: give another folder"
                )
        existing = next(p for p in (folder, *folder.absolute().parents) if p.exists())
        if not existing.is_dir():
            raise NotADirectoryError(20, f"{str(existing)!r} is a file")
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(13, "no permission")
    except OSError as error:
        raise _not_writable(folder, error) from error


def claim(folder: str | Path, config: config_lib.Config) -> Path:
    """Creates `folder` with config.json, or checks that it belongs to this config.

    The folder is this process's as long as it lives. UserError: not writable, in use by another
    process, or another config (the fields that differ are named).
    """
    check(folder, config)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _lock(folder)
        if not (folder / "config.json").exists():
            write_json(folder / "config.json", config_lib.to_dict(config))
    except OSError as error:
        raise _not_writable(folder, error) from error
    return folder


def read(file: Path) -> dict:
    """The object in a JSON file. UserError if it holds none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, not UTF-8
        raise UserError(f"{str(file)!r} is damaged ({error}): {_REMEDY}") from error
    if not isinstance(value, dict):
        raise UserError(f"{str(file)!r} is damaged (no JSON object): {_REMEDY}")
    return value


def write_json(file: Path, value) -> None:
    """Atomic: the file is whole or absent."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(part, file)


def _lock(folder: Path, keep: bool = True) -> None:
    """UserError if another process works on the folder; keep: from now on this one does."""
    try:
        import fcntl
    except ImportError:  # Windows: not guarded
        return
    file = folder.resolve() / ".lock"
    if file in _held or not (keep or file.exists()):
        return
    handle = open(file, "a+", encoding="utf-8")  # noqa: SIM115  (held until the process ends)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        handle.seek(0)
        owner = handle.read().strip() or "unknown"
        handle.close()
        raise UserError(
            f"--workdir {str(folder)!r} is in use by process {owner}: wait for it, or give another"
        ) from error
    if not keep:
        handle.close()
        return
    handle.truncate(0)
    handle.write(f"{os.getpid()}\n")
    handle.flush()
    _held[file] = handle


def _compare(folder, old, new):
    lines = [line for line in config_lib.difference(old, new) if not line.startswith(FREE)]
    if lines:
        raise UserError(
            f"--workdir {str(folder)!r} belongs to another config ({'; '.join(lines)}):"
            " give another --workdir, or the same config to resume"
        )


def _not_writable(folder, error: OSError) -> UserError:
    return UserError(
        f"--workdir {str(folder)!r} cannot be written ({error.strerror}): give another folder"
    )
