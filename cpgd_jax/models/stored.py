"""What both kinds of model files give: sizes, and tensors that are read when asked for."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cpgd_jax.models.qwen2 import ModelConfig

ALL = slice(None)


class Stored(NamedTuple):
    """One tensor of a file, in Hugging Face's layout."""

    shape: tuple[int, ...]
    type: str  # of what is stored, as the file calls it
    read: Callable[[slice, slice], np.ndarray]  # of rows and columns (a vector has rows only)


class Source(NamedTuple):
    """A model on disk. `tensors` is in the order of the files; reading in it opens each once."""

    config: ModelConfig
    tensors: dict[str, Stored]  # by the file's own names
    types: tuple[str, ...]  # that `Stored.type` may be
    name: Callable[[str], str]  # Hugging Face's name of a tensor -> the file's own
