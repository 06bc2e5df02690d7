"""Tokens a second of `rollout.generate`, beside peers and beside its own matrix products alone."""

import functools
import statistics

import jax
import jax.numpy as jnp

from cpgd_jax import rollout
from cpgd_jax.bench import peers as peers_lib
from cpgd_jax.bench import timing, workloads
from cpgd_jax.models import ModelConfig

CALLS = 3  # of ours a round, as the peers' scripts do


def run(
    name: str, work: workloads.Sampling, config: ModelConfig, repeats: int, peers: dict
) -> list[dict]:
    """One row; tokens are those sampled, up to and with the stop token of each response.

    name: for the row. peers: see `peers.programs`.
    """
    sampler = _Sampler(work, config)
    sampler.rate()  # compiles
    own, others, ratio = peers_lib.in_turn(lambda: _middle(sampler.rate), peers, repeats)
    return [
        {
            "name": name,
            "tokens_per_s": statistics.median(own),
            "ratio": ratio,
            "peers_tokens_per_s": others,
            "response_len_mean": sampler.tokens / work.responses,
            **_prefill(sampler, repeats),
            **({} if work.stop_ids else _beside_matmuls(sampler, repeats)),
        }
    ]


class _Sampler:
    """Calls `generate` on a workload, each time with another seed."""

    def __init__(self, work: workloads.Sampling, config: ModelConfig):
        self.work, self.config = work, config
        self.model = workloads.model(config, work.embed_scale)
        self.prompts = workloads.prompts(config.vocab_size, work.prompts, work.prompt_len)
        self.seed, self.tokens = 0, 0  # tokens: of the last call

    def __call__(self, samples=None, max_new_tokens=None):
        self.seed += 1
        groups = rollout.generate(
            self.model,
            list(self.prompts),
            samples_per_prompt=samples or self.work.samples,
            max_new_tokens=max_new_tokens or self.work.max_new_tokens,
            stop_ids=self.work.stop_ids,
            seed=self.seed,
            slots=self.work.slots,
        )
        self.tokens = sum(len(completion.tokens) for group in groups for completion in group)

    def rate(self) -> float:
        seconds = timing.once(self)
        return self.tokens / seconds


def _prefill(sampler: _Sampler, repeats: int) -> dict:
    """What the prompts cost: the first token of all samples beside that of one sample each."""
    programs = {
        "group": functools.partial(sampler, max_new_tokens=1),
        "one": functools.partial(sampler, samples=1, max_new_tokens=1),
    }
    seconds = timing.in_turn(programs, repeats * CALLS)
    return {
        "prefill_seconds": statistics.median(seconds["group"]),
        "prefill_group_over_one": timing.ratio(seconds["group"], seconds["one"]),
    }


def _beside_matmuls(sampler: _Sampler, repeats: int) -> dict:
    """The time of the decode steps' matrix products alone over that of the decode steps."""
    programs = {
        "whole": sampler,
        "prefill": functools.partial(sampler, max_new_tokens=1),
        "weights": matmuls(sampler.work, sampler.config, attention=False),
        "attention_too": matmuls(sampler.work, sampler.config, attention=True),
    }
    seconds = timing.in_turn(programs, repeats)
    pairs = zip(seconds["whole"], seconds["prefill"], strict=True)
    decode = [whole - prefill for whole, prefill in pairs]
    return {
        "decode_seconds": statistics.median(decode),
        "matmul_seconds": statistics.median(seconds["weights"]),
        "matmul_share": timing.ratio(seconds["weights"], decode),
        "matmul_and_attention_share": timing.ratio(seconds["attention_too"], decode),
    }


def matmuls(work: workloads.Sampling, config: ModelConfig, attention: bool):
    """A program of the matrix products of all decode steps, and next to nothing else.

    attention: those with keys and values too, the responses' half as long as they can get.
    """
    weights, cache = _arrays(work, config, attention)

    @jax.jit
    def program(weights, cache):
        start = jnp.ones((work.responses, config.hidden_size), config.dtype)

        def step(_, tie_B1):  # each step needs the one before, or it could be left out
            x = start + 1e-6 * tie_B1
            for layer in weights["layers"]:
                x = _layer(x, layer, cache, work, config)
            logits = jnp.matmul(x, weights["head"], preferred_element_type=jnp.float32)
            return logits.max(axis=1, keepdims=True).astype(x.dtype)

        return jax.lax.fori_loop(0, work.max_new_tokens - 1, step, start[:, :1])

    return functools.partial(program, weights, cache)


def _layer(x, layer, cache, work, config: ModelConfig):
    q, k, v = (x @ layer[name] for name in "qkv")
    y = q + jnp.tile(k + v, (1, q.shape[1] // k.shape[1]))
    if cache:
        y = _attend(y, cache, work, config).reshape(y.shape)
    y = y @ layer["o"]
    return ((y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]


def _attend(q, cache, work, config: ModelConfig):
    """Queries times keys times values, without softmax: own responses, then shared prompts."""
    K, R = config.num_kv_heads, config.num_heads // config.num_kv_heads
    q_BKRH = q.reshape(work.responses, K, R, config.head_dim)
    q_QGKRH = q_BKRH.reshape(work.prompts, work.samples, *q_BKRH.shape[1:])
    own = jnp.einsum("bkrh,bkht->bkrt", q_BKRH, cache["k_BKHT"])
    own = jnp.einsum("bkrt,bkth->bkrh", own, cache["v_BKTH"])
    shared = jnp.einsum("qgkrh,qkhs->qgkrs", q_QGKRH, cache["k_QKHS"])
    return own + jnp.einsum("qgkrs,qksh->qgkrh", shared, cache["v_QKSH"]).reshape(own.shape)


def _arrays(work: workloads.Sampling, config: ModelConfig, attention: bool):
    """Random weights and caches whose products neither grow nor vanish."""
    D, F, H, K = config.hidden_size, config.mlp_size, config.head_dim, config.num_kv_heads
    keys = iter(jax.random.split(jax.random.key(0), 7 * config.num_layers + 5))

    def normal(*shape, width):
        return (jax.random.normal(next(keys), shape) * width**-0.5).astype(config.dtype)

    N, T = config.num_heads * H, max(work.max_new_tokens // 2, 1)
    shapes = {"q": (D, N), "k": (D, K * H), "v": (D, K * H), "o": (N, D)}
    shapes |= {"gate": (D, F), "up": (D, F), "down": (F, D)}
    layers = [
        {name: normal(*shape, width=shape[0]) for name, shape in shapes.items()}
        for _ in range(config.num_layers)
    ]
    weights = {"layers": layers, "head": normal(D, config.vocab_size, width=D)}
    if not attention:
        return weights, {}
    rows = (work.responses, K)
    cache = {"k_BKHT": normal(*rows, H, T, width=H), "v_BKTH": normal(*rows, T, H, width=T)}
    rows, S = (work.prompts, K), work.prompt_len
    cache |= {"k_QKHS": normal(*rows, H, S, width=H), "v_QKSH": normal(*rows, S, H, width=S)}
    return weights, cache


def _middle(measure) -> float:
    return statistics.median(measure() for _ in range(CALLS))
