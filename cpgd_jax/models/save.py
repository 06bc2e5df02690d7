"""Hugging Face folders out: `save_pretrained`, whole or not at all."""

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
from flax import nnx
from safetensors import SafetensorError
from safetensors.numpy import save_file

from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_config
from cpgd_jax.models.hf_layout import INDEX, SINGLE, Slot, by_path, slots

OURS = ("*.safetensors", INDEX, "config.json", "generation_config.json")
TOKENIZER = ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json")
TOKENIZER += ("added_tokens.json", "chat_template*")


def save_pretrained(
    model, out_dir, *, tokenizer=None, stop_ids=None, max_shard_bytes: int = 5_000_000_000
) -> None:
    """Writes a folder that transformers and vLLM load: safetensors in float32, config.json.

    tokenizer: anything with `save_pretrained(folder)`. stop_ids: written to generation_config.json.
    The folder is made beside `out_dir` and renamed at the end, so a failure leaves an old one as it
    was. UserError when it can't be written, or when `out_dir` holds files that are no model's.
    """
    out_dir = Path(out_dir).resolve()
    _refuse_foreign(out_dir)
    making = out_dir.with_name(f".{out_dir.name}.making-{os.getpid()}")
    try:
        making.mkdir(parents=True)
        _write_tensors(model, making, max_shard_bytes)
        _write_json(making / "config.json", hf_config.to_dict(model.config))
        if stop_ids is not None:
            ids = [int(i) for i in stop_ids]
            _write_json(making / "generation_config.json", {"eos_token_id": ids})
        if tokenizer is not None:
            tokenizer.save_pretrained(str(making))
        _replace(out_dir, making)
    except (OSError, SafetensorError) as error:
        raise UserError(f"can't save the model to {out_dir}: {error}") from None
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _write_tensors(model, folder: Path, max_shard_bytes: int) -> None:
    state = nnx.state(model, nnx.Param)
    params, expected = by_path(state), slots(state)
    sizes = {name: 4 * math.prod(slot.hf_shape) for name, slot in expected.items()}
    shards = _shards(sizes, max_shard_bytes)
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        tensors = {name: _host(params, expected[name]) for name in names}
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    if len(shards) > 1:
        metadata = {"total_size": sum(sizes.values())}
        _write_json(folder / INDEX, {"metadata": metadata, "weight_map": weight_map})


def _shards(sizes: dict[str, int], limit: int) -> list[list[str]]:
    """Names in order, a new file when the next tensor would pass the limit."""
    shards, held = [[]], 0
    for name, size in sizes.items():
        if shards[-1] and held + size > limit:
            shards.append([])
            held = 0
        shards[-1].append(name)
        held += size
    return shards


def _host(params, slot: Slot) -> np.ndarray:
    value = params[slot.path].get_raw_value()
    value = value if slot.layer is None else value[slot.layer]
    return slot.to_hf(np.asarray(value, np.float32))


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _refuse_foreign(out_dir: Path) -> None:
    """Replacing a folder deletes what is in it: only a model's own files may be there."""
    if out_dir.exists() and not out_dir.is_dir():
        raise UserError(f"{out_dir} is a file: give a folder to save the model to")
    for path in sorted(out_dir.iterdir()) if out_dir.exists() else ():
        if not any(path.match(pattern) for pattern in OURS + TOKENIZER):
            raise UserError(f"{out_dir} holds {path.name}, no file of a model: give a new folder")


def _replace(out_dir: Path, made: Path) -> None:
    old = out_dir.with_name(f".{out_dir.name}.old-{os.getpid()}")
    if out_dir.exists():
        out_dir.rename(old)
    try:
        made.rename(out_dir)
    except OSError:
        if old.exists():
            old.rename(out_dir)
        raise
    shutil.rmtree(old, ignore_errors=True)
