"""What is timed: a small Qwen2.5-shaped model with random weights on a few sets of prompts.

The peers' scripts (see `peers`) hold the same numbers.
"""

import dataclasses

import jax
import numpy as np
from flax import nnx

from cpgd_jax.models import ModelConfig, Qwen2
from cpgd_jax.types import TrainBatch

CONFIG = {  # what differs from configs/base.py
    "algorithm": "grpo",
    "model.num_layers": 8,
    "model.hidden_size": 512,
    "model.mlp_size": 1408,
    "model.num_heads": 8,
    "model.num_kv_heads": 2,
    "model.head_dim": 64,
    "model.vocab_size": 8192,
    "model.rope_theta": 1_000_000.0,
    "model.norm_eps": 1e-6,
    "model.qkv_bias": True,
    "model.tie_embeddings": True,
    "model.max_positions": 4096,
    "model.remat": "none",
    "rollout.prompts": 8,
    "rollout.samples_per_prompt": 8,
    "rollout.max_prompt_len": 64,
    "rollout.max_response_len": 128,
    "train.minibatch_size": 64,
    "train.microbatch_size": 8,
}


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


@dataclasses.dataclass(frozen=True)
class Training:
    """Responses to prompts of equal length, and what the train step is compared with."""

    prompts: int
    samples: int
    prompt_len: int
    max_response_len: int
    mean_len: int | None = None  # of geometric lengths, capped; None: all are of full length
    beside: str = ""  # the name, in the row's ratio, of one row a response, padded to full length


TRAINING = {
    "shared": Training(8, 8, 64, 128),
    "prefix": Training(1, 8, 1024, 256, beside="repeated"),
    "ragged": Training(8, 8, 64, 512, mean_len=64, beside="padded"),
}


def model(config: ModelConfig, embed_scale: float = 1.0) -> Qwen2:
    """Random weights."""
    made = jax.jit(lambda: nnx.split(Qwen2(config, nnx.Rngs(0)))[1])
    graphdef, _ = nnx.split(nnx.eval_shape(lambda: Qwen2(config, nnx.Rngs(0))))
    model = nnx.merge(graphdef, made())
    model.embed[...] = model.embed[...] * embed_scale
    return model


def prompts(vocab_size: int, count: int, length: int) -> np.ndarray:
    """Random ids above those that mean something, [count, length] int32."""
    rng = np.random.default_rng(0)
    return rng.integers(vocab_size // 32, vocab_size, (count, length), np.int32)


def batch(work: Training, vocab_size: int) -> TrainBatch:
    """An optimiser step's random responses, near on-policy."""
    rng = np.random.default_rng(0)
    Q, G, T = work.prompts, work.samples, work.max_response_len
    B = Q * G
    length_B = np.full(B, T)
    if work.mean_len:
        length_B = np.minimum(rng.geometric(1 / work.mean_len, B), T)
    advantage_B1 = rng.normal(size=(B, 1)).astype(np.float32)
    prompt_BS = np.repeat(prompts(vocab_size, Q, work.prompt_len), G, axis=0)
    return TrainBatch(
        prompt_BS=prompt_BS,
        prompt_mask_BS=np.ones(prompt_BS.shape, bool),
        response_BT=rng.integers(0, vocab_size, (B, T), np.int32),
        mask_BT=np.arange(T) < length_B[:, None],
        old_logp_BT=np.full((B, T), -np.log(vocab_size), np.float32),
        advantage_BT=np.repeat(advantage_B1, T, axis=1),
        group_B=np.repeat(np.arange(Q, dtype=np.int32), G),
    )
