"""What is timed: one Qwen2.5-shaped model with random weights and a few sets of prompts.

The peers' scripts (see `peers`) hold the same numbers.
"""

import dataclasses

import jax
import numpy as np
from flax import nnx

from cpgd_jax.models import ModelConfig, Qwen2

MODEL = ModelConfig(
    vocab_size=8192,
    num_layers=8,
    hidden_size=512,
    mlp_size=1408,
    num_heads=8,
    num_kv_heads=2,
    head_dim=64,
)


@dataclasses.dataclass(frozen=True)
class Sampling:
    """Prompts of equal length and how they are answered."""

    prompts: int
    samples: int  # of each prompt
    prompt_len: int
    max_new_tokens: int
    slots: int | None = None
    stop_ids: tuple[int, ...] = ()
    embed_scale: float = 1.0  # 0.001: all tokens about equally likely

    @property
    def responses(self) -> int:
        return self.prompts * self.samples


SAMPLING = {
    "fixed": Sampling(8, 8, 64, 128),
    # a token ends its response with probability 1/64: lengths are geometric, mean 64, and capped
    "ragged": Sampling(32, 8, 64, 512, 64, tuple(range(64, 192)), embed_scale=0.001),
    "long": Sampling(4, 8, 1024, 1024),
}


def model(config: ModelConfig, embed_scale: float = 1.0) -> Qwen2:
    """Random weights."""
    made = jax.jit(lambda: nnx.split(Qwen2(config, nnx.Rngs(0)))[1])
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: Qwen2(config, nnx.Rngs(0))))
    model = nnx.merge(graphdef, made())
    model.embed[...] = model.embed[...] * embed_scale
    return model


def prompts(vocab_size: int, count: int, length: int) -> np.ndarray:
    """Random ids above those that mean something, [count, length]."""
    return np.random.default_rng(0).integers(vocab_size // 32, vocab_size, (count, length))
