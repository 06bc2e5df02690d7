"""`from_pretrained`, `save_pretrained`, `logits`. A model is an NNX module with a `.config`."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2
from cpgd_jax.models.save import save_pretrained
from cpgd_jax.models.weights import from_pretrained

__all__ = ["ModelConfig", "Qwen2", "from_pretrained", "logits", "save_pretrained"]


def logits(model, token_BT, mask_BT=None, images=None):
    """Float32 logits [B, T, V]; column t predicts token t+1. For inspection, not for training.

    token_BT: int [B, T]. mask_BT: bool, True = a token, padding on either side; None = all tokens.
    """
    if images is not None:
        raise UserError("images given to a text model: only a Qwen2.5-VL model takes images")
    token_BT = np.asarray(token_BT, np.int32)
    mask_BT = np.ones(token_BT.shape, bool) if mask_BT is None else np.asarray(mask_BT, bool)
    if token_BT.ndim != 2 or mask_BT.shape != token_BT.shape:
        shapes = f"tokens {token_BT.shape} and mask {mask_BT.shape}"
        raise UserError(f"{shapes} must both be [batch, time]")
    if token_BT.size and not 0 <= token_BT.min() <= token_BT.max() < model.config.vocab_size:
        raise UserError(f"a token id is outside 0..{model.config.vocab_size - 1}")
    graphdef, params = nnx.split(model)
    return _logits(graphdef, params, jnp.asarray(token_BT), jnp.asarray(mask_BT))


@jax.jit(static_argnums=0)
def _logits(graphdef, params, token_BT, mask_BT):
    model = nnx.merge(graphdef, params)
    return model.head(model.hidden(token_BT, mask_BT))
