"""Qwen2 / Qwen2.5 decoder (arXiv 2407.10671), NNX used functionally, layers stacked and scanned.

`graphdef, params = nnx.split(model)` once; inside jit `nnx.merge(graphdef, params)`. Entries:
`hidden` and `packed_hidden` (whole sequences, training and scoring), `prefill` (the rollout).
Hidden states become logits by `head`; training never does that for all tokens at once.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from cpgd_jax.config import Lora
from cpgd_jax.models import attention, lora, remat, rope
from cpgd_jax.models.layers import Mlp, adapted, linear, lookup, param, rms_norm
from cpgd_jax.sharding import constrain
from cpgd_jax.sizes import Vision
from cpgd_jax.types import Sight

ROWS = ("batch", None, None)  # activations [B, T, D] of a device are whole rows


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Qwen2-shaped decoder; `dtype` is the computation's, parameters are float32."""

    vocab_size: int
    num_layers: int
    hidden_size: int
    mlp_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rope_theta: float = 1_000_000.0
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    tie_embeddings: bool = True
    dtype: str = "float32"
    attention: str = "auto"  # of whole sequences; see `attention.over`
    remat: str = "none"  # what the backward pass computes again; see `remat.POLICIES`
    init_std: float = 0.02
    lora: Lora = lora.OFF
    max_positions: int = 32_768  # the longest sequence it was made for; kept for config.json only
    vision: Vision | None = None  # of a Qwen2.5-VL, see `qwen2_5_vl`


class Attention(nnx.Module):
    """q/k/v projections, rotation, output projection; the attending itself is passed in."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        c, std = config, config.init_std
        L, D, N, K, H = c.num_layers, c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim
        self.q = param(rngs, (L, D, N, H), ("layers", "embed", "heads", "head_dim"), std=std)
        self.k = param(rngs, (L, D, K, H), ("layers", "embed", "kv_heads", "head_dim"), std=std)
        self.v = param(rngs, (L, D, K, H), ("layers", "embed", "kv_heads", "head_dim"), std=std)
        self.o = param(rngs, (L, N, H, D), ("layers", "heads", "head_dim", "embed"), std=std)
        if c.qkv_bias:
            self.q_bias = param(rngs, (L, N, H), ("layers", "heads", "head_dim"))
            self.k_bias = param(rngs, (L, K, H), ("layers", "kv_heads", "head_dim"))
            self.v_bias = param(rngs, (L, K, H), ("layers", "kv_heads", "head_dim"))

    def qkv(self, x, cos, sin):
        """x [..., D] -> rotated q [..., N, H], rotated k and plain v [..., K, H]."""
        q, k, v = (self._project(x, name) for name in "qkv")
        return rope.rotate(q, cos, sin), rope.rotate(k, cos, sin), v

    def _project(self, x, name):
        y = linear(x, getattr(self, name)[...].astype(x.dtype))
        y = adapted(self, name, x, y)
        bias = getattr(self, f"{name}_bias", None)
        if bias is None:
            return y
        return y + bias[...].astype(x.dtype).reshape((1,) * (y.ndim - 2) + bias.shape)

    def out(self, y):
        o_ND = self.o[...].astype(y.dtype).reshape(-1, self.o.shape[-1])
        x = linear(y.reshape(*y.shape[:-2], -1), o_ND)
        return adapted(self, "o", y, x)


class Blocks(nnx.Module):
    """All layers, stacked on the first axis; `nnx.split` it and scan over the state."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        norm_shape, norm_axes = (config.num_layers, config.hidden_size), ("layers", "norm")
        self.attention_norm = param(rngs, norm_shape, norm_axes, value=1.0)
        self.attention = Attention(config, rngs)
        self.mlp_norm = param(rngs, norm_shape, norm_axes, value=1.0)
        self.mlp = Mlp(config, rngs)
        self.eps = config.norm_eps

    def __call__(self, x, cos, sin, attend):
        """One layer (after slicing). `attend(q, k, v) -> y` may keep k and v for a cache."""
        q, k, v = self.attention.qkv(rms_norm(x, self.attention_norm[...], self.eps), cos, sin)
        x = x + self.attention.out(attend(q, k, v))
        return x + self.mlp(rms_norm(x, self.mlp_norm[...], self.eps))


class Qwen2(nnx.Module):
    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        c = self.config = config
        table_axes = ("vocab", "embed")
        self.embed = param(rngs, (c.vocab_size, c.hidden_size), table_axes, std=c.init_std)
        self.blocks = Blocks(c, rngs)
        self.final_norm = param(rngs, (c.hidden_size,), ("norm",), value=1.0)
        if not c.tie_embeddings:
            self.unembed = param(rngs, (c.vocab_size, c.hidden_size), table_axes, std=c.init_std)
        lora.attach(self.blocks, c.lora, rngs)  # last: the base is the same without

    @property
    def head_VD(self):
        """The output head; the embedding itself when tied."""
        return (self.embed if self.config.tie_embeddings else self.unembed)[...]

    def head(self, hidden):
        """hidden [..., D] -> float32 logits [..., V]."""
        head_VD = self.head_VD.astype(hidden.dtype)
        return jnp.einsum("...d,vd->...v", hidden, head_VD, preferred_element_type=jnp.float32)

    def hidden(self, token_BT, mask_BT, sight: Sight | None = None):
        """Final hidden states [B, T, D]; mask True = a token; padding on either side."""
        return self._padded(token_BT, mask_BT, sight)[0]

    def packed_hidden(self, packed):
        """Final hidden states [W, U, D] of packed rows, a `types.Packed`."""
        return self._sequence(packed.token_WU, packed.position_WU, packed.spans)[0]

    def prefill(self, token_QS, mask_QS, sight: Sight | None = None):
        """Of left-padded prompts: (hidden state of the last column [Q, D], keys, values); rotated
        keys and values are [L, Q, S, K, H]. `decoder.step` goes on from there.
        """
        hidden_QSD, (k_LQSKH, v_LQSKH) = self._padded(token_QS, mask_QS, sight, keep_kv=True)
        return hidden_QSD[:, -1], k_LQSKH, v_LQSKH

    def _embed(self, token_BT, feature):
        return lookup(self.embed[...], token_BT, self.config.dtype)

    def _angles(self, position_BT, token_BT):
        return rope.angles(position_BT, self.config.head_dim, self.config.rope_theta)

    def _padded(self, token_BT, mask_BT, sight, keep_kv: bool = False):
        spans = attention.padded(mask_BT)
        if sight is not None:
            return self._sequence(
                token_BT, sight.position_BT3, spans, keep_kv, feature=sight.feature_BTD
            )
        position_BT = jnp.maximum(jnp.cumsum(mask_BT, axis=1) - 1, 0)
        return self._sequence(token_BT, position_BT, spans, keep_kv)

    def _sequence(self, token_BT, position, spans, keep_kv: bool = False, feature=None):
        c = self.config
        cos, sin = self._angles(position, token_BT)
        attend_to = attention.over(spans, c.attention, c.dtype)
        graphdef, layers = nnx.split(self.blocks)

        def block(x, layer):
            kept = None

            def attend(q, k, v):
                nonlocal kept
                kept = (k, v) if keep_kv else None
                return attend_to(q, k, v)

            x = nnx.merge(graphdef, layer)(constrain(x, *ROWS), cos, sin, attend)
            return constrain(x, *ROWS), kept

        x, kv = jax.lax.scan(remat.wrap(block, c.remat), self._embed(token_BT, feature), layers)
        return rms_norm(x, self.final_norm[...], c.norm_eps), kv
