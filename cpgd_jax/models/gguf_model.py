"""A GGUF file as a `Source`: Llama and Qwen2, their tensors in Hugging Face's names and layout."""

import functools
import re
from pathlib import Path

import gguf
import numpy as np

from cpgd_jax import gguf_file
from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_config
from cpgd_jax.models.qwen2 import ModelConfig
from cpgd_jax.models.stored import Source, Stored

ARCHITECTURES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2}
TABLE = "token_embd.weight"


def read_config(path: Path, dtype: str = "float32") -> ModelConfig:
    """The sizes in the metadata. UserError names what is missing or not supported."""
    return _config(gguf_file.read(path), dtype)


def open_file(path: Path, dtype: str = "float32") -> Source:
    """UserError, one line: broken, an architecture, a type or a size that is not supported."""
    file = gguf_file.read(path)
    config = _config(file, dtype)
    permuted = file.fields["general.architecture"] == "llama"
    tensors = {
        name: Stored(
            tensor.shape,
            tensor.type.name,
            functools.partial(_read, tensor, _permuted_head(name, config) if permuted else None),
        )
        for name, tensor in file.tensors.items()
    }
    arch = ARCHITECTURES[file.fields["general.architecture"]]
    names = gguf.get_tensor_name_map(arch, config.num_layers)

    def own_name(hf_name: str) -> str:
        return names.get_name(hf_name, try_suffixes=(".weight", ".bias"))

    return Source(config, tensors, gguf_file.TYPES, own_name)


def _read(tensor, head_dim: int | None, rows: slice, columns: slice) -> np.ndarray:
    array = tensor.read(rows)
    array = array if array.ndim == 1 else array[:, columns]
    return array if head_dim is None else _unpermute(array, head_dim)


def _unpermute(array_RD: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of whole heads from interleaved rotation (pairs 2i, 2i+1) to halves (i, i + H/2)."""
    columns = array_RD.shape[1]
    pairs = array_RD.reshape(-1, head_dim // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(-1, columns)


def _permuted_head(name: str, config: ModelConfig) -> int | None:
    """A Llama's file holds the rows of q and k as llama.cpp rotates them, in pairs."""
    return config.head_dim if re.fullmatch(r"blk\.\d+\.attn_[qk]\.weight", name) else None


def _config(file: gguf_file.Gguf, dtype: str) -> ModelConfig:
    arch = file.fields.get("general.architecture")
    if arch not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise UserError(f"{file.path}: architecture {arch!r} is not supported, only {known}")
    if TABLE not in file.tensors:
        raise UserError(f"{file.path} lacks tensor {TABLE}")
    size = functools.partial(_size, file, arch)
    hidden_size, num_heads = size("embedding_length"), size("attention.head_count")
    head_dim = size("attention.key_length", hidden_size // num_heads)
    _refuse_unsupported(file, arch, head_dim)
    config = ModelConfig(
        vocab_size=file.tensors[TABLE].shape[0],
        num_layers=size("block_count"),
        hidden_size=hidden_size,
        mlp_size=size("feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=size("attention.head_count_kv", num_heads),
        head_dim=head_dim,
        rope_theta=_float(file, f"{arch}.rope.freq_base", 10_000.0),
        norm_eps=_float(file, f"{arch}.attention.layer_norm_rms_epsilon", None),
        qkv_bias=arch == "qwen2",
        tie_embeddings="output.weight" not in file.tensors,
        max_positions=size("context_length", 32_768),
        dtype=dtype,
    )
    hf_config.check_heads(config, file.path)
    return config


def _refuse_unsupported(file, arch: str, head_dim: int) -> None:
    for key, supported in (
        ("attention.value_length", head_dim),
        ("rope.dimension_count", head_dim),
        ("rope.scaling.type", "none"),
        ("expert_count", 0),
        ("attention.sliding_window", 0),
    ):
        value = file.fields.get(f"{arch}.{key}", supported)
        if value != supported:
            what = f"{arch}.{key} = {str(value)[:80]}"
            raise UserError(f"{file.path}: {what} is not supported, only {supported}")


def _size(file, arch: str, key: str, default: int | None = None) -> int:
    value = file.fields.get(f"{arch}.{key}", default)
    if not isinstance(value, int) or value < 1:
        what = f"{arch}.{key} = {str(value)[:80]}"
        raise UserError(f"{file.path}: {what} must be a positive whole number")
    return value


def _float(file, key: str, default: float | None) -> float:
    """float32 in the file; the shortest decimal that means the same, so 1e-05 is 1e-05."""
    value = file.fields.get(key, default)
    if not isinstance(value, float) or not value > 0:
        raise UserError(f"{file.path}: {key} = {str(value)[:80]} must be a positive number")
    return float(str(np.float32(value)))
