"""Parameters with logical axis names, and the small layers of a Qwen2 decoder.

Layer parameters are stacked on a leading `layers` axis when they are made; the model scans over it.
"""

import jax
import jax.numpy as jnp
from flax import nnx


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


def rms_norm(x, scale_D, eps: float):
    """x / rms(x) * scale, in float32, returned in x's dtype (arXiv 1910.07467)."""
    x32 = x.astype(jnp.float32)
    x32 = x32 * jax.lax.rsqrt(jnp.mean(x32**2, axis=-1, keepdims=True) + eps)
    return (x32 * scale_D.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))).astype(x.dtype)


class Mlp(nnx.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)) (arXiv 2002.05202)."""

    def __init__(self, config, rngs: nnx.Rngs):
        L, D, F = config.num_layers, config.hidden_size, config.mlp_size
        std = config.init_std
        self.gate = param(rngs, (L, D, F), ("layers", "embed", "mlp"), std=std)
        self.up = param(rngs, (L, D, F), ("layers", "embed", "mlp"), std=std)
        self.down = param(rngs, (L, F, D), ("layers", "mlp", "embed"), std=std)

    def __call__(self, x):
        gate, up, down = (w[...].astype(x.dtype) for w in (self.gate, self.up, self.down))
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down
