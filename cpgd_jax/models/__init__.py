"""`from_pretrained`, `save_pretrained`, `logits`. A model is an NNX module with a `.config`."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from cpgd_jax import vision
from cpgd_jax.errors import UserError
from cpgd_jax.models import seeing
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2
from cpgd_jax.models.qwen2_5_vl import Qwen25VL, make
from cpgd_jax.models.save import save_pretrained
from cpgd_jax.models.weights import from_pretrained
from cpgd_jax.types import ImagePatches

__all__ = [
    "ModelConfig",
    "Qwen2",
    "Qwen25VL",
    "from_pretrained",
    "logits",
    "make",
    "save_pretrained",
]


def logits(model, token_BT, mask_BT=None, images=None):
    """Float32 logits [B, T, V]; column t predicts token t+1. For inspection, not for training.

    token_BT: int [B, T]. mask_BT: bool, True = a token, padding on either side; None = all tokens.
    images: the processor's output, a mapping with pixel_values and image_grid_thw, of the rows'
    images in order; each has its placeholder id in a row once a token.
    """
    token_BT = np.asarray(token_BT, np.int32)
    mask_BT = np.ones(token_BT.shape, bool) if mask_BT is None else np.asarray(mask_BT, bool)
    if token_BT.ndim != 2 or mask_BT.shape != token_BT.shape:
        shapes = f"tokens {token_BT.shape} and mask {mask_BT.shape}"
        raise UserError(f"{shapes} must both be [batch, time]")
    if token_BT.size and not 0 <= token_BT.min() <= token_BT.max() < model.config.vocab_size:
        raise UserError(f"a token id is outside 0..{model.config.vocab_size - 1}")
    graphdef, params = nnx.split(model)
    sight = None
    if images is not None:
        seeing.check_sees(model.config)
        tokens = [ids[mask] for ids, mask in zip(token_BT, mask_BT, strict=True)]
        seen = seeing.look(graphdef, params, tokens, _by_row(tokens, images, model.config.vision))
        sight = seeing.sight(seen, mask_BT)
    return _logits(graphdef, params, jnp.asarray(token_BT), jnp.asarray(mask_BT), sight)


def _by_row(tokens, images, sizes):
    """The processor's images, those of each row: as many as its placeholders take."""
    grids = [tuple(map(int, grid)) for grid in np.asarray(images["image_grid_thw"])]
    patch_XC = np.asarray(images["pixel_values"], np.float32)
    ends = np.cumsum([np.prod(grid) for grid in grids])[:-1]
    waiting = [ImagePatches(*x) for x in zip(np.split(patch_XC, ends), grids, strict=True)]
    rows = []
    for ids in tokens:
        places, row = int(np.sum(ids == sizes.image_id)), []
        while waiting and places > 0:
            row.append(waiting.pop(0))
            places -= vision.tokens(row[-1].grid, sizes)
        rows.append(tuple(row))
    if waiting:
        raise UserError(f"{len(waiting)} of {len(grids)} images have no tokens in the rows")
    return rows


@jax.jit(static_argnums=0)
def _logits(graphdef, params, token_BT, mask_BT, sight):
    model = nnx.merge(graphdef, params)
    return model.head(model.hidden(token_BT, mask_BT, sight))
