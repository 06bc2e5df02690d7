"""Low-rank adapters beside frozen weights (LoRA, arXiv 2106.09685): y = xW + (alpha / rank) (xA)B.

The adapter of `attention.q` is `attention.q_lora`, stacked over layers like its weight. A starts
normal and B zero, so that a model starts as its base. Who owns a projection adds what its adapter
gives by `layers.adapted`.
"""

import dataclasses
import math

import jax.numpy as jnp
from flax import nnx

from cpgd_jax.config import Lora
from cpgd_jax.models.layers import ADAPTER, param

OFF = Lora(rank=0, alpha=1.0, targets=())


class Adapter(nnx.Module):
    """Of a weight [L, *inputs, *outputs]: A [L, *inputs, rank] and B [L, rank, *outputs]."""

    def __init__(self, weight: nnx.Param, inputs: int, config: Lora, rngs: nnx.Rngs):
        shape, axes = weight.get_raw_value().shape, weight.get_metadata()["logical_axes"]
        cut = 1 + inputs
        std = math.prod(shape[1:cut]) ** -0.5  # x of unit variance gives xA of unit variance
        self.a = param(rngs, (*shape[:cut], config.rank), (*axes[:cut], "lora"), std=std)
        self.b = param(rngs, (shape[0], config.rank, *shape[cut:]), (axes[0], "lora", *axes[cut:]))
        self.scale = config.alpha / config.rank

    def __call__(self, x):
        """x [..., *inputs] of one layer -> its share [..., *outputs] of the projection."""
        a, b = (w[...].astype(x.dtype) for w in (self.a, self.b))
        return self.scale * jnp.tensordot(jnp.tensordot(x, a, axes=a.ndim - 1), b, axes=1)


def attach(blocks, config: Lora, rngs: nnx.Rngs) -> None:
    """Gives the stacked layers the adapters that the config asks for; rank 0 = none."""
    for name in config.targets if config.rank else ():
        owner = blocks.attention if name in "qkvo" else blocks.mlp
        inputs = 2 if name == "o" else 1
        setattr(owner, name + ADAPTER, Adapter(getattr(owner, name), inputs, config, rngs))


def is_adapter(path, _=None) -> bool:
    """True for the path of a parameter of an adapter."""
    return len(path) > 1 and str(path[-2]).endswith(ADAPTER)


def adapters(params) -> nnx.State:
    """Of a model's parameters, those of the adapters."""
    return nnx.split_state(params, is_adapter, ...)[0]


def merge(model):
    """The model with its adapters' products added to its weights; itself if it has no adapters."""
    if not model.config.lora.rank:
        return model
    base = dataclasses.replace(model.config, lora=OFF)
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: type(model)(base, nnx.Rngs(0))))
    return nnx.merge(graphdef, merge_params(nnx.state(model, nnx.Param), model.config.lora))


def merge_params(params, config: Lora) -> nnx.State:
    """The parameters of `merge`'s result, summed in float32."""
    flat = dict(nnx.to_flat_state(params))
    base = {path: variable for path, variable in flat.items() if not is_adapter(path)}
    for path, a in flat.items():
        if is_adapter(path) and path[-1] == "a":
            *owner, name = path[:-1]
            weight = (*owner, name.removesuffix(ADAPTER))
            b = flat[(*path[:-1], "b")]
            base[weight] = _added(base[weight], a, b, config.alpha / config.rank)
    return nnx.from_flat_state(base.items())


def _added(weight: nnx.Variable, a: nnx.Variable, b: nnx.Variable, scale: float) -> nnx.Variable:
    w, a, b = (x.get_raw_value() for x in (weight, a, b))
    L, rank = a.shape[0], a.shape[-1]
    product = jnp.einsum(
        "lir,lro->lio", a.reshape(L, -1, rank), b.reshape(L, rank, -1), precision="highest"
    )
    return weight.replace((w + scale * product.reshape(w.shape)).astype(w.dtype))
