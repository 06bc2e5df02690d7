"""Rotary position embedding, half-split form (arXiv 2104.09864), angles in float32."""

import jax.numpy as jnp
import numpy as np


def angles(position, head_dim: int, theta: float):
    """position [...] int -> (cos, sin), each [..., H/2] float32."""
    return _turned(position[..., None], head_dim, theta)


def angles_3d(position, head_dim: int, theta: float, sections: tuple[int, ...]):
    """position [..., 3] int -> likewise; so many pairs turn with the first of the three, then so
    many with the second, with the third (M-RoPE, arXiv 2409.12191).
    """
    return _turned(position[..., np.repeat(np.arange(3), sections)], head_dim, theta)


def _turned(position, head_dim: int, theta: float):
    """position [..., H/2], or [..., 1] for all pairs alike."""
    inv_freq = 1.0 / theta ** (jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angle = position.astype(jnp.float32) * inv_freq.reshape((1,) * (position.ndim - 1) + (-1,))
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x, cos, sin):
    """x [..., N, H] rotated by (cos, sin) [..., H/2]; the pair of dimension h is h and h + H/2."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[..., None, :], sin[..., None, :]
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
