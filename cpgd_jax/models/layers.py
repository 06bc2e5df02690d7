"""Parameters with logical axis names, and the small layers of a Qwen2 decoder.

Layer parameters are stacked on a leading `layers` axis when they are made; the model scans over it.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from cpgd_jax import sharding
from cpgd_jax.models import remat

ADAPTER = "_lora"  # ends the name of the adapter of a projection, see `cpgd_jax.models.lora`


def param(rngs: nnx.Rngs, shape, axes, *, std: float | None = None, value: float = 0.0):
    """A float32 parameter. `axes` names each dimension for `cpgd_jax.sharding`.

    std: normal with that deviation; None: the constant `value`.
    """
    assert len(shape) == len(axes), (shape, axes)
    array = (
        jnp.full(shape, value, jnp.float32)
        if std is None
        else std * jax.random.normal(rngs.params(), shape, jnp.float32)
    )
    return nnx.Param(array, logical_axes=tuple(axes))


def lookup(table_VD, token_BT, dtype):
    """Rows of a table, [B, T, D], in `dtype`.

    On the ambient mesh each device looks up its part of the width for the rows of all that share
    the table, and gives every other one the part of its own rows: the table stays where it is.
    """
    rules, mesh = sharding.RULES, jax.sharding.get_abstract_mesh()
    vocab, width, rows = rules["vocab"], rules["embed"], rules["batch"]
    if mesh.size <= 1 or len(token_BT) % sharding.ways(rows):
        return table_VD[token_BT].astype(dtype)

    def on_device(table_vd, token_bT):
        token_BT = jax.lax.all_gather(token_bT, width, tiled=True)
        at_BT = token_BT - jax.lax.axis_index(vocab) * len(table_vd)
        here_BT1 = ((at_BT >= 0) & (at_BT < len(table_vd)))[..., None]
        x_BTd = jnp.where(here_BT1, table_vd[at_BT].astype(dtype), 0)
        x_BTd = jax.lax.psum(x_BTd, vocab)
        return jax.lax.all_to_all(x_BTd, width, 0, 2, tiled=True)

    in_specs = (P(vocab, width), P(rows))
    return jax.shard_map(on_device, in_specs=in_specs, out_specs=P(rows), check_vma=False)(
        table_VD, token_BT
    )


def rms_norm(x, scale_D, eps: float):
    """x / rms(x) * scale, in float32, returned in x's dtype (arXiv 1910.07467)."""
    x32 = x.astype(jnp.float32)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + eps)
    return (x32 * scale_D.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


def adapted(owner, name: str, x, y):
    """y, the projection `name` of x, with what its adapter adds where the owner has one."""
    adapter = getattr(owner, name + ADAPTER, None)
    return y if adapter is None else y + adapter(x)


def linear(x, w):
    """x [..., D], w [D, ...] -> [..., ...], the last axis of x against the first of w."""
    return checkpoint_name(_product(x, w), remat.PRODUCT)


@jax.custom_vjp
def _product(x, w):
    """`linear`, its gradient of w with x on the left.

    The other way about, which is what the transposition rule gives, XLA's CPU backend transposes
    the cotangent element by element, as dear as the product.
    """
    return jnp.tensordot(x, w, 1)


def _product_backward(inputs, dy):
    x, w = inputs
    outer, inner = tuple(range(x.ndim - 1)), tuple(range(x.ndim - 1, dy.ndim))
    dx = jax.lax.dot_general(dy, w, ((inner, tuple(range(1, w.ndim))), ((), ())))
    return dx, jax.lax.dot_general(x, dy, ((outer, outer), ((), ())))


_product.defvjp(lambda x, w: (_product(x, w), (x, w)), _product_backward)


class Mlp(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)) (arXiv 2002.05202)."""

    def __init__(self, config, rngs: nnx.Rngs):
        L, D, F = config.num_layers, config.hidden_size, config.mlp_size
        std = config.init_std
        self.gate = param(rngs, (L, D, F), ("layers", "embed", "mlp"), std=std)
        self.up = param(rngs, (L, D, F), ("layers", "embed", "mlp"), std=std)
        self.down = param(rngs, (L, F, D), ("layers", "mlp", "embed"), std=std)

    def __call__(self, x):
        hidden = jax.nn.silu(self._project(x, "gate")) * self._project(x, "up")
        return self._project(hidden, "down")

    def _project(self, x, name):
        return adapted(self, name, x, linear(x, getattr(self, name)[...].astype(x.dtype)))
