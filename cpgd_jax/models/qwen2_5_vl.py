"""Qwen2.5-VL (arXiv 2502.13923): a Qwen2 decoder that takes images in where the prompt has places
for them, and a vision tower that makes embeddings of them. Text alone runs as in `qwen2`.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from cpgd_jax.models import rope
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2
from cpgd_jax.models.vision_tower import Tower
from cpgd_jax.sharding import RULES
from cpgd_jax.types import Patches


class Qwen25VL(Qwen2):
    """Token places are [..., 3] where a prompt has images: time, row, column (M-RoPE)."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs):
        super().__init__(config, rngs)
        self.visual = Tower(config.vision, config.hidden_size, config.init_std, rngs)

    def see(self, patches: Patches):
        """Embeddings [W, F, D] of the image tokens of W rows of images."""
        c = self.config
        tower = lambda row: self.visual(row, jnp.dtype(c.dtype), c.remat)  # noqa: E731
        return jax.vmap(tower, spmd_axis_name=RULES["batch"])(patches)

    def packed_hidden(self, packed):
        """Final hidden states [W, U, D] of packed rows, a `types.Packed`."""
        feature_WPD = packed.feature_WPD
        if packed.patches is not None:
            feature_WPD = self.see(packed.patches)
        position = packed.position_WU
        return self._sequence(packed.token_WU, position, packed.spans, feature=feature_WPD)[0]

    def _embed(self, token_BT, feature_BPD):
        """Features take the place of embeddings in the first P columns, where a token is an
        image's."""
        x_BTD = super()._embed(token_BT, None)
        if feature_BPD is None:
            return x_BTD
        P = feature_BPD.shape[1]
        is_image_BP = token_BT[:, :P] == self.config.vision.image_id
        seen = jnp.where(is_image_BP[..., None], feature_BPD.astype(x_BTD.dtype), x_BTD[:, :P])
        return jnp.concatenate([seen, x_BTD[:, P:]], axis=1)

    def _angles(self, position, token_BT):
        c = self.config
        if position.ndim == token_BT.ndim:
            return super()._angles(position, token_BT)
        return rope.angles_3d(position, c.head_dim, c.rope_theta, c.vision.rope_sections)


def make(config: ModelConfig, rngs: nnx.Rngs) -> Qwen2:
    """The model of these sizes, with random parameters."""
    return (Qwen25VL if config.vision else Qwen2)(config, rngs)
