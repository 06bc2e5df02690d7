"""Hugging Face folders in: `from_pretrained`. Names, shapes and types are checked before any data.

Tensors are read one by one into stacked arrays, which go to their devices one by one: the host
holds a model once and at most one stacked parameter more.
"""

import contextlib
import json
from pathlib import Path

import jax
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open

from cpgd_jax import sharding
from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_config
from cpgd_jax.models.hf_layout import INDEX, SINGLE, Slot, by_path, slots
from cpgd_jax.models.qwen2 import Qwen2

FLOATS = ("F32", "F16", "BF16")


def from_pretrained(hf_dir, dtype: str = "float32", mesh=None) -> Qwen2:
    """The model of a Hugging Face folder: Qwen2, Qwen2.5, or Llama without biases; safetensors.

    dtype: of the computation ("float32", "bfloat16"); parameters are float32 whatever is stored.
    mesh: place each parameter by `cpgd_jax.sharding` as it is read; None: on the default device.
    UserError, one line, for a folder, config or tensor that is missing, broken or not supported.
    """
    folder = Path(hf_dir)
    if not folder.is_dir():
        raise UserError(f"model folder {folder} does not exist; a hub name has to be downloaded")
    config = hf_config.read(folder, dtype)
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Qwen2(config, nnx.Rngs(0))))
    places = None if mesh is None else by_path(sharding.param_shardings(mesh, state))
    with contextlib.ExitStack() as stack:
        files = _open(folder, stack)
        expected = slots(state)
        _check_names(files, expected, config.tie_embeddings)
        _check_storage(files, expected)
        params = []
        for path, variable in nnx.to_flat_state(state):
            name = ".".join(path)
            array = _read(name, variable.get_raw_value().shape, files, expected)
            place = None if places is None else places[name].get_raw_value()
            # waiting frees the host's copy before the next parameter is read
            placed = jax.block_until_ready(jax.device_put(array, place))
            params.append((path, variable.replace(placed)))
    return nnx.merge(graphdef, nnx.from_flat_state(params))


def _open(folder: Path, stack) -> dict:
    """Tensor name -> the open file that holds it; data is mapped and read when asked for."""
    files = {}
    for path in _tensor_files(folder):
        try:
            file = stack.enter_context(safe_open(path, framework="numpy"))
        except FileNotFoundError:
            raise UserError(f"{path} does not exist, but {INDEX} names it") from None
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path} is truncated or no safetensors file: {error}") from None
        files.update(dict.fromkeys(file.keys(), file))
    return files


def _tensor_files(folder: Path) -> list[Path]:
    if (folder / SINGLE).exists():
        return [folder / SINGLE]
    if (folder / INDEX).exists():
        try:
            weight_map = json.loads((folder / INDEX).read_text())["weight_map"]
            return [folder / name for name in sorted(set(weight_map.values()))]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{folder / INDEX} is no index of safetensors: {error!r}") from None
    pickles = sorted(p.name for suffix in ("bin", "pt", "pth") for p in folder.glob(f"*.{suffix}"))
    if pickles:
        why = "reading a pickle runs code from it; convert it to safetensors"
        raise UserError(f"{folder} holds a pickle checkpoint only ({pickles[0]}): {why}")
    raise UserError(f"{folder} holds neither {SINGLE} nor {INDEX}")


def _check_names(files, expected: dict[str, Slot], tied: bool) -> None:
    missing = [name for name in expected if name not in files]
    if missing:
        raise UserError(f"the weights lack tensor {missing[0]} ({len(missing)} missing in all)")
    for name in sorted(set(files) - set(expected)):
        if name.endswith("rotary_emb.inv_freq"):  # a constant that old files carry along
            continue
        if not (tied and name == "lm_head.weight" and _equals_embedding(files)):
            raise UserError(f"unexpected tensor {name}: config.json has no place for it")


def _check_storage(files, expected: dict[str, Slot]) -> None:
    for name, slot in expected.items():
        stored = files[name].get_slice(name)
        shape, dtype = tuple(stored.get_shape()), stored.get_dtype()
        if shape != slot.hf_shape:
            raise UserError(f"tensor {name} has shape {shape}, not config.json's {slot.hf_shape}")
        if dtype not in FLOATS:
            raise UserError(f"tensor {name} is stored as {dtype}, not one of {', '.join(FLOATS)}")


def _equals_embedding(files) -> bool:
    pair = "lm_head.weight", "model.embed_tokens.weight"
    return np.array_equal(*(files[name].get_tensor(name) for name in pair))


def _read(path, shape, files, expected: dict[str, Slot]) -> np.ndarray:
    """One parameter, float32; the layers are written into their places one after the other."""
    own = {name: slot for name, slot in expected.items() if slot.path == path}
    tensors = (slot.from_hf(files[name].get_tensor(name)) for name, slot in own.items())
    if None in {slot.layer for slot in own.values()}:  # not stacked
        return next(tensors).astype(np.float32, copy=False)
    array = np.empty(shape, np.float32)
    for slot, tensor in zip(own.values(), tensors, strict=True):
        array[slot.layer] = tensor
    return array
