"""Published models in: `from_pretrained`. Names, shapes and types are checked before any data.

Tensors are read one by one, in the order of the files, and go to their places on the devices before
the next is read: the host holds one file's pages and one tensor, whatever the model's size.
"""

import functools
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cpgd_jax import gguf_file, sharding
from cpgd_jax.errors import UserError
from cpgd_jax.models import gguf_model, hf_config, hf_folder
from cpgd_jax.models.hf_layout import Slot, by_path, slots
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2
from cpgd_jax.models.qwen2_5_vl import make
from cpgd_jax.models.stored import ALL, Source, Stored

DTYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
CHUNK_BYTES = 64 * 2**20  # float32 that is read at once
HEAD, TABLE = "lm_head.weight", "model.embed_tokens.weight"


def from_pretrained(path, dtype="float32", mesh=None, param_dtype="float32") -> Qwen2:
    """The model of a Hugging Face folder with safetensors, or of a GGUF file.

    Qwen2, Qwen2.5, Qwen2.5-VL, or Llama without biases. dtype: of the computation ("float32",
    "bfloat16").
    mesh: place each parameter by `cpgd_jax.sharding` as it is read; None: on the default device.
    param_dtype: of the parameters, whatever is stored; training needs float32.
    UserError, one line, for a folder, config or tensor that is missing, broken or not supported.
    """
    source, param_dtype = (
        _open(Path(path), _known("dtype", dtype)),
        _known("param_dtype", param_dtype),
    )
    graphdef, state = nnx.split(nnx.eval_shape(lambda: make(source.config, nnx.Rngs(0))))
    places = {} if mesh is None else by_path(sharding.param_shardings(mesh, state))
    expected = {source.name(name): slot for name, slot in slots(state).items()}
    _check_names(source, expected)
    _check_storage(source, expected)
    shapes = {path: variable.get_raw_value().shape for path, variable in by_path(state).items()}
    arrays = {}
    for name in filter(expected.get, source.tensors):
        slot, stored = expected[name], source.tensors[name]
        place = places[slot.path].get_raw_value() if places else None
        read = functools.partial(_cut, stored, slot, DTYPES[param_dtype])
        if slot.layer is None:
            arrays[slot.path] = _placed(read, slot.shape, place)
            continue
        if slot.path not in arrays:
            arrays[slot.path] = _stack(shapes[slot.path], param_dtype, place)
        layer = _placed(read, slot.shape, _of_layer(place))
        arrays[slot.path] = _write(arrays[slot.path], layer, slot.layer, place)
        jax.block_until_ready(
            arrays[slot.path]
        )  # the tensor on the host goes before the next comes
    flat = [(path, v.replace(arrays[".".join(path)])) for path, v in nnx.to_flat_state(state)]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def read_config(path, dtype: str = "float32") -> ModelConfig:
    """The sizes of a Hugging Face folder or of a GGUF file, with no tensor read."""
    read = gguf_model.read_config if gguf_file.is_gguf(path) else hf_config.read
    return read(Path(path), _known("dtype", dtype))


def _known(name: str, dtype: str) -> str:
    if dtype not in DTYPES:
        raise UserError(f"{name} {dtype!r} is not one of {', '.join(DTYPES)}")
    return dtype


def _open(path: Path, dtype: str) -> Source:
    return (gguf_model.open_file if gguf_file.is_gguf(path) else hf_folder.open_folder)(path, dtype)


def _check_names(source: Source, expected: dict[str, Slot]) -> None:
    missing = [name for name in expected if name not in source.tensors]
    if missing:
        raise UserError(f"the weights lack tensor {missing[0]} ({len(missing)} missing in all)")
    for name in sorted(set(source.tensors) - set(expected)):
        if name.endswith("rotary_emb.inv_freq"):  # a constant that old files carry along
            continue
        if not (name == HEAD and _equals_table(source)):
            raise UserError(f"unexpected tensor {name}: the model's config has no place for it")


def _check_storage(source: Source, expected: dict[str, Slot]) -> None:
    for name, slot in expected.items():
        shape, kind, _ = source.tensors[name]
        if shape != slot.hf_shape:
            raise UserError(f"tensor {name} has shape {shape}, the config says {slot.hf_shape}")
        if kind not in source.types:
            known = ", ".join(source.types)
            raise UserError(f"tensor {name} is stored as {kind}, not one of {known}")


def _equals_table(source: Source) -> bool:
    """A tied model's file may hold the head as well, if it is the embedding."""
    head, table = source.tensors[HEAD], source.tensors[source.name(TABLE)]
    return head.shape == table.shape and all(
        np.array_equal(head.read(rows, ALL), table.read(rows, ALL)) for rows in _chunks(*head.shape)
    )


def _chunks(rows: int, row_size: int) -> list[slice]:
    step = max(1, CHUNK_BYTES // (4 * row_size))
    return [slice(start, min(start + step, rows)) for start in range(0, rows, step)]


def _cut(stored: Stored, slot: Slot, dtype, index) -> np.ndarray:
    """The part of a tensor that `index` names (a slice a dimension of ours), read by chunks."""
    bounds = [s.indices(n)[:2] for s, n in zip(index, slot.shape, strict=True)]
    shape = [stop - start for start, stop in bounds]
    array = np.empty(shape, dtype)
    axis = slot.inputs or 0  # the rows of the file run over it
    for chunk in _chunks(shape[axis], math.prod(shape) // shape[axis]):
        start, shape[axis] = bounds[axis][0], chunk.stop - chunk.start
        at = [*bounds[:axis], (start + chunk.start, start + chunk.stop), *bounds[axis + 1 :]]
        array[(ALL,) * axis + (chunk,)] = slot.from_hf(stored.read(*slot.rows_columns(at)), shape)
    return array


def _placed(read, shape: tuple[int, ...], place) -> jax.Array:
    """Each device's piece is made alone, and once for all devices that hold the same."""
    if place is None:
        return jax.device_put(read((ALL,) * len(shape)))
    devices_of: dict[str, tuple] = {}
    for device, index in place.addressable_devices_indices_map(shape).items():
        devices_of.setdefault(str(index), (index, []))[1].append(device)
    pieces = []
    for index, devices in devices_of.values():
        piece = read(index)
        pieces += jax.block_until_ready([jax.device_put(piece, device) for device in devices])
    return jax.make_array_from_single_device_arrays(shape, place, pieces)


def _stack(shape: tuple[int, ...], dtype: str, place) -> jax.Array:
    if place is None:
        return jnp.zeros(shape, dtype)
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=place)()


def _of_layer(place: NamedSharding | None) -> NamedSharding | None:
    """The place of one layer; the layers themselves are never split."""
    if place is None:
        return None
    assert place.spec[0] is None, place
    return NamedSharding(place.mesh, P(*place.spec[1:]))


@functools.partial(jax.jit, donate_argnums=0, static_argnums=3)
def _write(stack, layer, number, place):
    """In place: `stack` is given away."""
    stack = jax.lax.dynamic_update_index_in_dim(stack, layer, number, 0)
    return stack if place is None else jax.lax.with_sharding_constraint(stack, place)
