"""The folder of a run: claimed by one config, never overwritten by another."""

import json
import os
from pathlib import Path

from cpgd_jax import config as config_lib
from cpgd_jax.errors import UserError

# Sections that may change between two calls on one workdir, since they do not change the result.
FREE = ("log.", "checkpoint.", "reward.workers", "mesh.")


def claim(folder: str | Path, config: config_lib.Config) -> Path:
    """Creates `folder` with config.json, or checks that it belongs to this config.

    UserError: not writable, or another config (the fields that differ are named).
    """
    folder, new = Path(folder), config_lib.to_dict(config)
    file = folder / "config.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(13, "no write permission")
        if file.exists():
            _compare(folder, json.loads(file.read_text()), new)
        elif any((folder / name).exists() for name in ("checkpoints", "metrics.jsonl")):
            raise UserError(f"--workdir {str(folder)!r} holds a run without config.json: give another")
        else:
            write_json(file, new)
    except OSError as error:
        raise UserError(
            f"--workdir {str(folder)!r} cannot be written ({error.strerror}): give another folder"
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(f"{str(file)!r} is not JSON ({error.msg}): give another --workdir") from error
    return folder


def write_json(file: Path, value) -> None:
    """Atomic: the file is whole or absent."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(part, file)


def _compare(folder, old, new):
    lines = [line for line in config_lib.difference(old, new) if not line.startswith(FREE)]
    if lines:
        raise UserError(
            f"--workdir {str(folder)!r} belongs to another config ({'; '.join(lines)}):"
            " give another --workdir, or the same config to resume"
        )
