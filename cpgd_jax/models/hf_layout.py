"""Names and layouts of Hugging Face tensors against our parameters, in one table read both ways."""

import itertools
import math
from typing import NamedTuple

import numpy as np
from flax import nnx

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"  # files of weights


class Tensor(NamedTuple):
    hf: str  # the name in the file; {} is the layer
    path: str  # the parameter here; where `hf` has a {} it is stacked, layers first
    inputs: int | None = None  # leading input axes of a linear map, which is [out, in] in the file
    convolution: bool = False  # whose inputs keep their axes in the file


TENSORS = (
    Tensor("model.embed_tokens.weight", "embed"),
    Tensor("model.layers.{}.input_layernorm.weight", "blocks.attention_norm"),
    Tensor("model.layers.{}.self_attn.q_proj.weight", "blocks.attention.q", inputs=1),
    Tensor("model.layers.{}.self_attn.q_proj.bias", "blocks.attention.q_bias", inputs=0),
    Tensor("model.layers.{}.self_attn.k_proj.weight", "blocks.attention.k", inputs=1),
    Tensor("model.layers.{}.self_attn.k_proj.bias", "blocks.attention.k_bias", inputs=0),
    Tensor("model.layers.{}.self_attn.v_proj.weight", "blocks.attention.v", inputs=1),
    Tensor("model.layers.{}.self_attn.v_proj.bias", "blocks.attention.v_bias", inputs=0),
    Tensor("model.layers.{}.self_attn.o_proj.weight", "blocks.attention.o", inputs=2),
    Tensor("model.layers.{}.post_attention_layernorm.weight", "blocks.mlp_norm"),
    Tensor("model.layers.{}.mlp.gate_proj.weight", "blocks.mlp.gate", inputs=1),
    Tensor("model.layers.{}.mlp.up_proj.weight", "blocks.mlp.up", inputs=1),
    Tensor("model.layers.{}.mlp.down_proj.weight", "blocks.mlp.down", inputs=1),
    Tensor("model.norm.weight", "final_norm"),
    Tensor("lm_head.weight", "unembed"),
    # the vision tower of a Qwen2.5-VL
    Tensor("visual.patch_embed.proj.weight", "visual.patch", inputs=4, convolution=True),
    Tensor("visual.blocks.{}.norm1.weight", "visual.blocks.attention_norm"),
    Tensor("visual.blocks.{}.attn.qkv.weight", "visual.blocks.attention.qkv", inputs=1),
    Tensor("visual.blocks.{}.attn.qkv.bias", "visual.blocks.attention.qkv_bias", inputs=0),
    Tensor("visual.blocks.{}.attn.proj.weight", "visual.blocks.attention.o", inputs=2),
    Tensor("visual.blocks.{}.attn.proj.bias", "visual.blocks.attention.o_bias", inputs=0),
    Tensor("visual.blocks.{}.norm2.weight", "visual.blocks.mlp_norm"),
    Tensor("visual.blocks.{}.mlp.gate_proj.weight", "visual.blocks.mlp.gate", inputs=1),
    Tensor("visual.blocks.{}.mlp.gate_proj.bias", "visual.blocks.mlp.gate_bias", inputs=0),
    Tensor("visual.blocks.{}.mlp.up_proj.weight", "visual.blocks.mlp.up", inputs=1),
    Tensor("visual.blocks.{}.mlp.up_proj.bias", "visual.blocks.mlp.up_bias", inputs=0),
    Tensor("visual.blocks.{}.mlp.down_proj.weight", "visual.blocks.mlp.down", inputs=1),
    Tensor("visual.blocks.{}.mlp.down_proj.bias", "visual.blocks.mlp.down_bias", inputs=0),
    Tensor("visual.merger.ln_q.weight", "visual.merger.norm"),
    Tensor("visual.merger.mlp.0.weight", "visual.merger.up", inputs=1),
    Tensor("visual.merger.mlp.0.bias", "visual.merger.up_bias", inputs=0),
    Tensor("visual.merger.mlp.2.weight", "visual.merger.down", inputs=1),
    Tensor("visual.merger.mlp.2.bias", "visual.merger.down_bias", inputs=0),
)
# Of a Qwen2.5-VL, as transformers has saved it since version 4.52: prefix here -> prefix there.
RENAMED = {"visual.": "model.visual.", "model.": "model.language_model."}


class Slot(NamedTuple):
    """Where one tensor of a file stands: parameter `path`, its layer if stacked, and its shapes."""

    path: str
    layer: int | None
    shape: tuple[int, ...]  # ours, without the layers axis
    inputs: int | None
    convolution: bool = False

    @property
    def hf_shape(self) -> tuple[int, ...]:
        """q [D, N, H] is [N*H, D] in the file, o [N, H, D] is [D, N*H], a bias [N, H] is [N*H]."""
        if self.inputs is None:
            return self.shape
        outputs = math.prod(self.shape[self.inputs :])
        if self.convolution:
            return (outputs, *self.shape[: self.inputs])
        return (outputs, math.prod(self.shape[: self.inputs])) if self.inputs else (outputs,)

    def from_hf(self, array: np.ndarray, shape) -> np.ndarray:
        """A file's rows and columns as the part of ours that has `shape`."""
        return (array.T if self.inputs else array).reshape(shape)

    def rows_columns(self, bounds) -> tuple[slice, slice]:
        """Where the file holds a part of ours, given by (start, stop) a dimension."""
        if self.inputs is None:
            return _flat(bounds[:1], self.shape[:1]), _flat(bounds[1:], self.shape[1:])
        n = self.inputs
        return _flat(bounds[n:], self.shape[n:]), _flat(bounds[:n], self.shape[:n])

    def to_hf(self, array: np.ndarray) -> np.ndarray:
        if not self.inputs:
            return array.reshape(self.hf_shape)
        matrix = array.reshape(math.prod(self.shape[: self.inputs]), -1).T
        return np.ascontiguousarray(matrix).reshape(self.hf_shape)


def _flat(bounds, shape) -> slice:
    """Along the flattened dimensions, of which only the first may be cut."""
    assert all(b == (0, n) for b, n in zip(bounds[1:], shape[1:], strict=True)), (bounds, shape)
    size = math.prod(shape[1:])
    return slice(bounds[0][0] * size, bounds[0][1] * size) if bounds else slice(None)


def by_path(state) -> dict[str, nnx.Variable]:
    """Every variable of a model's state, by its path with dots."""
    return {".".join(path): variable for path, variable in nnx.to_flat_state(state)}


def slots(state) -> dict[str, Slot]:
    """Every tensor that a model with this state has in a file, by its name there.

    In the file's order: the embedding, layer by layer, the final norm and the head; the tower.
    """
    shapes = {path: variable.get_raw_value().shape for path, variable in by_path(state).items()}
    present = [tensor for tensor in TENSORS if tensor.path in shapes]
    assert len(present) == len(shapes), sorted(set(shapes) - {tensor.path for tensor in present})
    found = {}
    for stack, tensors in itertools.groupby(present, lambda t: t.hf.partition("{}")[:2]):
        tensors = list(tensors)
        stacked = bool(stack[1])
        for layer in range(shapes[tensors[0].path][0]) if stacked else (None,):
            for t in tensors:
                shape = shapes[t.path][1:] if stacked else shapes[t.path]
                found[t.hf.format(layer)] = Slot(t.path, layer, shape, t.inputs, t.convolution)
    return found
