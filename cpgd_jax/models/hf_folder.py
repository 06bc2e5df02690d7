"""A Hugging Face folder as a `Source`: config.json and safetensors, one file or several."""

import functools
import json
import re
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_config
from cpgd_jax.models.hf_layout import INDEX, RENAMED, SINGLE
from cpgd_jax.models.stored import Source, Stored

FLOATS = ("F32", "F16", "BF16")
PICKLES = (".bin", ".pt", ".pth", ".ckpt")
NO_PICKLES = "reading a pickle runs code from it; convert it to safetensors"


def open_folder(folder: Path, dtype: str = "float32") -> Source:
    """UserError, one line, for a config or file that is missing, broken or not supported."""
    if folder.is_file():
        why = NO_PICKLES if folder.suffix in PICKLES else "give its folder"
        raise UserError(f"model {folder} is a file, neither a folder nor GGUF: {why}")
    if not folder.is_dir():
        raise UserError(f"model {folder} does not exist; a hub name has to be downloaded")
    config, files, tensors = hf_config.read(folder, dtype), _OneOpen(), {}
    for path in _tensor_files(folder):
        file = files.open(path)
        for name in file.keys():  # noqa: SIM118 (it is no dict)
            stored = file.get_slice(name)
            read = functools.partial(_read, files, path, name)
            tensors[name] = Stored(tuple(stored.get_shape()), stored.get_dtype(), read)
    return Source(config, tensors, FLOATS, _naming(tensors))


def _naming(tensors):
    """Published Qwen2.5-VL files name the tower and the decoder otherwise than later ones."""
    if not any(name.startswith(tuple(RENAMED.values())) for name in tensors):
        return lambda name: name

    def name_there(name: str) -> str:
        prefix = next((prefix for prefix in RENAMED if name.startswith(prefix)), "")
        return RENAMED.get(prefix, "") + name.removeprefix(prefix)

    return name_there


class _OneOpen:
    """One file is mapped at a time: what was read of the others leaves the memory."""

    def __init__(self):
        self.path = self.file = None

    def open(self, path: Path):
        if path != self.path:
            self.path = self.file = None  # unmaps it
            self.file, self.path = _open(path), path
        return self.file


def _open(path: Path):
    try:
        return safe_open(path, framework="numpy")
    except FileNotFoundError:
        raise UserError(f"{path} does not exist, but {INDEX} names it") from None
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} is truncated or no safetensors file: {error}") from None


def _read(files: _OneOpen, path: Path, name: str, rows: slice, columns: slice) -> np.ndarray:
    stored = files.open(path).get_slice(name)
    if len(stored.get_shape()) > 2:  # a convolution: its columns have several axes
        array = stored[rows]
        return array.reshape(len(array), -1)[:, columns]
    return stored[rows] if len(stored.get_shape()) == 1 else stored[rows, columns]


def _tensor_files(folder: Path) -> list[Path]:
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        return [folder / name for name in _indexed(folder / INDEX)]
    if pickles := sorted(path.name for path in folder.iterdir() if path.suffix in PICKLES):
        raise UserError(f"{folder} holds a pickle checkpoint only ({pickles[0]}): {NO_PICKLES}")
    raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}")


def _indexed(index: Path) -> list[str]:
    """The names of the files; UserError when one is not in the index's own folder."""
    try:
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        outside = [name for name in names if not re.fullmatch(r"[^/\\]+\.safetensors", name)]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is no index of safetensors: {error!r}") from None
    if outside:
        raise UserError(
            f"{index} names {outside[0]!r}: it may only name safetensors files beside it"
        )
    return names
