"""Hugging Face folders out: `save_pretrained`, whole or not at all, streamed tensor by tensor."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from flax import nnx

from cpgd_jax import atomic
from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_config, lora, safetensors_file
from cpgd_jax.models.hf_layout import INDEX, SINGLE, Slot, by_path, slots

OURS = ("*.safetensors", INDEX, "config.json", "generation_config.json")
TOKENIZER = ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json")
TOKENIZER += ("added_tokens.json", "chat_template*")


def save_pretrained(
    model,
    out_dir,
    *,
    tokenizer=None,
    stop_ids=None,
    dtype: str = "float32",
    max_shard_bytes: int = 5_000_000_000,
) -> None:
    """Writes a folder that transformers and vLLM load: safetensors, config.json, tokenizer.

    tokenizer: a `data.tokenizer.Tokenizer` or one of transformers. stop_ids: every id that ends a
    response; None = the tokenizer's. dtype: of the files. The host holds one tensor at a time; a
    parameter that is split over a mesh is gathered layer by layer. An old `out_dir` is replaced at
    the end, so a failure leaves it as it was. UserError when it can't be written, when it holds
    files that are no model's, or when a value does not fit the dtype.
    """
    _refuse_foreign(Path(out_dir))
    with atomic.folder(out_dir) as folder:
        write_files(
            model,
            folder,
            tokenizer=tokenizer,
            stop_ids=stop_ids,
            dtype=dtype,
            max_shard_bytes=max_shard_bytes,
        )


def write_files(
    model,
    folder: Path,
    *,
    tokenizer,
    stop_ids=None,
    dtype: str,
    max_shard_bytes: int,
    report: Callable[[int], None] = lambda done: None,
) -> None:
    """The files of `save_pretrained`, into an empty folder; config.json, which makes it one, last.

    report: called with the number of tensors written so far.
    """
    if dtype not in safetensors_file.DTYPES:
        raise UserError(
            f"dtype {dtype!r}: the files are one of {', '.join(safetensors_file.DTYPES)}"
        )
    model = lora.merge(model)
    _write_tensors(model, folder, dtype, max_shard_bytes, report)
    if tokenizer is not None:
        tokenizer.save_pretrained(str(folder))
        _name_as_before(folder / "tokenizer_config.json")
    ids = _special_ids(tokenizer, stop_ids)
    if ids:
        _write_json(folder / "generation_config.json", ids)
    config = hf_config.to_dict(model.config) | {"torch_dtype": dtype}
    if "eos_token_id" in ids:
        config["eos_token_id"] = ids["eos_token_id"][0]
    if "bos_token_id" in ids:
        config["bos_token_id"] = ids["bos_token_id"]
    _write_json(folder / "config.json", config)


def _write_tensors(model, folder: Path, dtype: str, max_shard_bytes: int, report) -> None:
    state = nnx.state(model, nnx.Param)
    params, expected = by_path(state), slots(state)
    sizes = {n: safetensors_file.nbytes(slot.hf_shape, dtype) for n, slot in expected.items()}
    shards, weight_map, done = _shards(sizes, max_shard_bytes), {}, itertools.count(1)

    def tensor(name):
        array = safetensors_file.cast(name, _host(params, expected[name]), dtype)
        report(next(done))
        return array

    for number, names in enumerate(shards, 1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05}-of-{len(shards):05}.safetensors"
        shapes = {name: expected[name].hf_shape for name in names}
        safetensors_file.write(folder / file, shapes, dtype, map(tensor, names))
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
    if slot.layer is not None:  # by an operand: one program serves all layers
        value = jax.lax.dynamic_index_in_dim(value, slot.layer, keepdims=False)
    return slot.to_hf(np.asarray(value, np.float32))


def _special_ids(tokenizer, stop_ids) -> dict:
    """What generation_config.json says of ids, as far as it is known."""
    fast = getattr(tokenizer, "fast", tokenizer)
    eos = getattr(fast, "eos_token_id", None)
    if stop_ids is None:
        stop_ids = getattr(tokenizer, "stop_ids", [] if eos is None else [eos])
    ids = {
        "bos_token_id": getattr(fast, "bos_token_id", None),
        "eos_token_id": [int(i) for i in stop_ids] or None,
        "pad_token_id": getattr(fast, "pad_token_id", None),
    }
    return {key: value for key, value in ids.items() if value is not None}


def _name_as_before(path: Path) -> None:
    """tokenizer_config.json by names that transformers 4 knows too, and vLLM with it."""
    config = json.loads(path.read_text()) if path.exists() else {}
    if config.get("tokenizer_class") == "TokenizersBackend":
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
        if isinstance(config.get("extra_special_tokens"), list):
            config["additional_special_tokens"] = config.pop("extra_special_tokens")
        how_it_was_loaded = ("is_local", "local_files_only")
        _write_json(path, {k: v for k, v in config.items() if k not in how_it_was_loaded})


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


def _refuse_foreign(out_dir: Path) -> None:
    """Replacing a folder deletes what is in it: only a model's own files may be there."""
    if out_dir.exists() and not out_dir.is_dir():
        raise UserError(f"{out_dir} is a file: give a folder to save the model to")
    for path in sorted(out_dir.iterdir()) if out_dir.exists() else ():
        if not any(path.match(pattern) for pattern in OURS + TOKENIZER):
            raise UserError(f"{out_dir} holds {path.name}, no file of a model: give a new folder")
