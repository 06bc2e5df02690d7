"""The vision tower of Qwen2.5-VL (arXiv 2502.13923): patches of images to embeddings of tokens.

A transformer whose layers attend within windows but for a few, which see a whole frame. Images lie
one after the other in windows of equal size (`cpgd_jax.vision`), some patches of which are empty.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from cpgd_jax.models import attention, remat, rope
from cpgd_jax.models.layers import linear, param, rms_norm
from cpgd_jax.sharding import constrain
from cpgd_jax.sizes import Vision
from cpgd_jax.types import Patches

WHOLE = None, None, None  # a row of images is on one device
THETA, EPS = 10_000.0, 1e-6
MOST_SCORES = 2**26  # that exist at a time, of all heads


class Attention(nnx.Module):
    def __init__(self, v: Vision, std: float, rngs: nnx.Rngs):
        L, D, N = v.num_layers, v.hidden_size, v.num_heads
        H = D // N
        heads = ("vision", "vision", "head_dim")
        self.qkv = param(rngs, (L, D, 3, N, H), ("layers", "vision_embed", *heads), std=std)
        self.qkv_bias = param(rngs, (L, 3, N, H), ("layers", *heads))
        self.o = param(rngs, (L, N, H, D), ("layers", *heads[1:], "vision_embed"), std=std)
        self.o_bias = param(rngs, (L, D), ("layers", "vision"))

    def __call__(self, x_NYD, cos, sin, attend):
        qkv = _affine(x_NYD, self.qkv, self.qkv_bias)
        q, k, v = (qkv[:, :, i] for i in range(3))
        y = attend(rope.rotate(q, cos, sin), rope.rotate(k, cos, sin), v)
        o = self.o[...].reshape(-1, self.o.shape[-1])
        return _affine(y.reshape(*y.shape[:2], -1), o, self.o_bias)


class Mlp(nnx.Module):
    """SwiGLU with biases."""

    def __init__(self, v: Vision, std: float, rngs: nnx.Rngs):
        L, D, F = v.num_layers, v.hidden_size, v.mlp_size
        for name in ("gate", "up"):
            axes = ("layers", "vision_embed", "vision")
            setattr(self, name, param(rngs, (L, D, F), axes, std=std))
            setattr(self, f"{name}_bias", param(rngs, (L, F), ("layers", "vision")))
        self.down = param(rngs, (L, F, D), ("layers", "vision", "vision_embed"), std=std)
        self.down_bias = param(rngs, (L, D), ("layers", "vision"))

    def __call__(self, x):
        gate = jax.nn.silu(_affine(x, self.gate, self.gate_bias))
        return _affine(gate * _affine(x, self.up, self.up_bias), self.down, self.down_bias)


class Blocks(nnx.Module):
    """All layers, stacked on the first axis."""

    def __init__(self, v: Vision, std: float, rngs: nnx.Rngs):
        norm = ((v.num_layers, v.hidden_size), ("layers", "vision"))
        self.attention_norm = param(rngs, *norm, value=1.0)
        self.attention = Attention(v, std, rngs)
        self.mlp_norm = param(rngs, *norm, value=1.0)
        self.mlp = Mlp(v, std, rngs)

    def __call__(self, x, cos, sin, attend):
        """One layer (after slicing)."""
        x = x + self.attention(rms_norm(x, self.attention_norm[...], EPS), cos, sin, attend)
        return x + self.mlp(rms_norm(x, self.mlp_norm[...], EPS))


class Merger(nnx.Module):
    """The patches of a unit, one after the other, to one embedding of the decoder."""

    def __init__(self, v: Vision, out_size: int, std: float, rngs: nnx.Rngs):
        D, E = v.hidden_size, v.hidden_size * v.merge_size**2
        self.norm = param(rngs, (D,), ("vision",), value=1.0)
        self.up = param(rngs, (E, E), ("vision_embed", "vision"), std=std)
        self.up_bias = param(rngs, (E,), ("vision",))
        self.down = param(rngs, (E, out_size), ("vision_embed", "vision"), std=std)
        self.down_bias = param(rngs, (out_size,), ("vision",))

    def __call__(self, x_NYD):
        x = rms_norm(x_NYD, self.norm[...], EPS).reshape(-1, self.up.shape[0])
        x = jax.nn.gelu(_affine(x, self.up, self.up_bias), approximate=False)
        return _affine(x, self.down, self.down_bias)


class Tower(nnx.Module):
    def __init__(self, v: Vision, out_size: int, std: float, rngs: nnx.Rngs):
        self.sizes = v
        shape = (3, v.temporal_patch_size, v.patch_size, v.patch_size, v.hidden_size)
        self.patch = param(rngs, shape, (*["vision"] * 4, "vision_embed"), std=std)
        self.blocks = Blocks(v, std, rngs)
        self.merger = Merger(v, out_size, std, rngs)

    def __call__(self, p: Patches, dtype, remat_name: str = "none"):
        """[F, out_size]: the embeddings of the image tokens. Patches without a leading axis."""
        w = self.patch[...].reshape(-1, self.sizes.hidden_size)
        x = linear(p.patch_NYC.astype(dtype), w.astype(dtype))
        cos, sin = self.angles(p.position_NY2)
        graphdef, layers = nnx.split(self.blocks)

        def block(x, layer):
            full, state = layer

            def attend(*qkv):
                whole = lambda *qkv: _attend_in_frames(*qkv, p)  # noqa: E731
                return jax.lax.cond(full, whole, lambda *qkv: _attend_in_windows(*qkv, p), *qkv)

            x = nnx.merge(graphdef, state)(constrain(x, *WHOLE), cos, sin, attend)
            return constrain(x, *WHOLE), None

        full_L = jnp.isin(jnp.arange(self.sizes.num_layers), jnp.array(self.sizes.full_attention))
        x, _ = jax.lax.scan(remat.wrap(block, remat_name), x, (full_L, layers))
        return self.merger(x)[p.unit_F]

    def angles(self, position_NY2):
        """(cos, sin) [N, Y, H/2]: half of a head's pairs turn with the row, half with columns."""
        head_dim = self.sizes.hidden_size // self.sizes.num_heads
        turned = rope.angles(position_NY2, head_dim // 2, THETA)
        return tuple(x.reshape(*x.shape[:2], -1) for x in turned)


def _affine(x, w, bias):
    y = linear(x, w[...].astype(x.dtype))
    return y + bias[...].astype(x.dtype).reshape((1,) * (x.ndim - 1) + bias.shape)


def _attend_in_windows(q_NYKH, k_NYKH, v_NYKH, p: Patches):
    Y = p.mask_NY.shape[1]
    mask_NYY = jnp.broadcast_to(p.mask_NY[:, None], (len(p.frame_N), Y, Y))
    return attention.attend(q_NYKH, k_NYKH, v_NYKH, mask_NYY)


def _attend_in_frames(q_NYKH, k_NYKH, v_NYKH, p: Patches):
    """Some windows of queries at a time, over all keys."""
    N, Y, K, H = q_NYKH.shape
    k_1XKH, v_1XKH = (x.reshape(1, N * Y, K, H) for x in (k_NYKH, v_NYKH))
    frame_X, mask_X = jnp.repeat(p.frame_N, Y), p.mask_NY.reshape(-1)
    some = N
    while some % 2 == 0 and K * some * Y * N * Y > MOST_SCORES:
        some //= 2

    @jax.checkpoint
    def attend(block):
        q_nYKH, frame_n = block
        mask_xX = (jnp.repeat(frame_n, Y)[:, None] == frame_X[None]) & mask_X[None]
        out = attention.attend(q_nYKH.reshape(1, -1, K, H), k_1XKH, v_1XKH, mask_xX[None])
        return out.reshape(q_nYKH.shape)

    blocks = (q_NYKH.reshape(-1, some, Y, K, H), p.frame_N.reshape(-1, some))
    return jax.lax.map(attend, blocks).reshape(q_NYKH.shape)
