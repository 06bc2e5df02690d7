"""One token of many responses at a time: a decoder's blocks over the cache of a rollout.

The layers lie one by one, each with stores of its own, and a step is unrolled over them: a scan
slices the stacked weights and caches, which on a CPU copies both at every step.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx, struct

from cpgd_jax.models import cached_attention, kv_cache, lora, rope
from cpgd_jax.models.layers import rms_norm
from cpgd_jax.sharding import RULES, partition_spec

DECODE_RULES = RULES | {"embed": None}  # gathered once a rollout instead of at every step


@dataclasses.dataclass(frozen=True)
class Decoder:
    """What is compiled in: sizes (`dtype` is the decoding's) and the structure of a block."""

    config: Any  # qwen2.ModelConfig
    block: Any  # graphdef


@struct.dataclass
class Weights:
    """A copy of a model's parameters for decoding."""

    embed_VD: jax.Array
    unembed_VD: jax.Array | None  # None = tied
    final_norm_D: jax.Array
    layers: tuple[Any, ...]  # a state of `Decoder.block` each


def decoder(graphdef, params, dtype: str = "") -> Decoder:
    """dtype "" = the model's own."""
    model = nnx.eval_shape(lambda: lora.merge(nnx.merge(graphdef, params)))
    config = dataclasses.replace(model.config, dtype=dtype or model.config.dtype)
    return Decoder(config, nnx.graphdef(model.blocks))


@functools.partial(jax.jit, static_argnames=("graphdef", "dtype", "mesh"))
def weights(graphdef, params, dtype: str, mesh) -> Weights:
    """The parameters cast to `dtype` (norms stay as they are), layer by layer, placed for decoding:
    split over `tensor`, whole on each device of the other axes. Adapters are merged in.
    """
    model = lora.merge(nnx.merge(graphdef, params))

    def prepare(variable, index=None):
        axes, x = variable.get_metadata()["logical_axes"], variable[...]
        if index is not None:
            axes, x = axes[1:], x[index]
        x = x if "norm" in axes else x.astype(dtype)
        spec = partition_spec(axes, DECODE_RULES)
        return jax.lax.with_sharding_constraint(x, jax.sharding.NamedSharding(mesh, spec))

    def layer(index):
        return jax.tree.map(
            lambda variable: variable.replace(prepare(variable, index)),
            nnx.state(model.blocks),
            is_leaf=lambda x: isinstance(x, nnx.Variable),
        )

    return Weights(
        embed_VD=prepare(model.embed),
        unembed_VD=None if model.config.tie_embeddings else prepare(model.unembed),
        final_norm_D=prepare(model.final_norm),
        layers=tuple(layer(index) for index in range(model.config.num_layers)),
    )


def step(decoder: Decoder, weights: Weights, token_B, position_B, column, cache, visible):
    """(logits [B, V] float32, cache) after one token of every slot, written at `column`."""
    c = decoder.config
    cos, sin = rope.angles(position_B, c.head_dim, c.rope_theta)
    # without the barrier every layer and head computes its own angles and masks
    cos, sin, visible = jax.lax.optimization_barrier((cos, sin, visible))
    x, recent = weights.embed_VD[token_B].astype(c.dtype), []
    for layer, prompts, pages, own in zip(
        weights.layers, cache.prompts, cache.pages, cache.recent, strict=True
    ):

        def attend(q, k, v, prompts=prompts, pages=pages, own=own):
            recent.append(kv_cache.write(own, column, k, v))
            return cached_attention.attend(q, prompts, pages, recent[-1], visible)

        x = nnx.merge(decoder.block, layer)(x, cos, sin, attend)
    x = rms_norm(x, weights.final_norm_D, c.norm_eps)
    head_VD = weights.embed_VD if weights.unembed_VD is None else weights.unembed_VD
    logits_BV = jnp.einsum("bd,vd->bv", x, head_VD, preferred_element_type=jnp.float32)
    return logits_BV, cache._replace(recent=tuple(recent))
