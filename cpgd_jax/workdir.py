"""The folder of a run: claimed by one config, never overwritten by another."""

import json
import os
from pathlib import Path

from cpgd_jax import config as config_lib
from cpgd_jax.errors import UserError

# Sections that may change between two calls on one workdir: they do not change what is learned.
FREE = ("log.", "checkpoint.", "reward.workers", "mesh.")


def check(folder: str | Path, config: config_lib.Config) -> None:
    """Raises the UserError that `claim` would, as far as that can be known without writing."""
    folder = Path(folder)
    file = folder / "config.json"
    try:
        if file.exists():
            _compare(folder, read(file), config_lib.to_dict(config))
        elif any((folder / name).exists() for name in ("checkpoints", "metrics.jsonl")):
            raise UserError(
                f"--workdir {str(folder)!r} holds a run without config.json: give another folder"
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

    UserError: not writable, or another config (the fields that differ are named).
    """
    check(folder, config)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
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
        raise UserError(f"{str(file)!r} is damaged ({error}): give another --workdir") from error
    if not isinstance(value, dict):
        raise UserError(f"{str(file)!r} is damaged (no JSON object): give another --workdir")
    return value


def write_json(file: Path, value) -> None:
    """Atomic: the file is whole or absent."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    os.replace(part, file)


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
