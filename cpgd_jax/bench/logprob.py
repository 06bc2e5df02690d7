"""Token log-probabilities with gradients: the fused form beside logits of all tokens at once."""

import functools
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from cpgd_jax.bench import timing
from cpgd_jax.ops import logprobs

VOCAB, WIDTH, TOKENS = 151_936, 896, 8192  # Qwen2.5-0.5B's head, and the tokens of a microbatch


def plain(hidden, head_VD, token, *, temperature: float):
    """Log-softmax of all logits, then a gather."""
    logits = jnp.einsum("...d,vd->...v", hidden, head_VD, preferred_element_type=jnp.float32)
    logp = jax.nn.log_softmax(logits / temperature, axis=-1)
    return jnp.take_along_axis(logp, token[..., None], axis=-1)[..., 0]


def fused(hidden, head_VD, token, *, temperature: float):
    return logprobs.token_logprobs(hidden, head_VD, token, temperature=temperature)[0]


def run(tokens: int, repeats: int, dtype: str, vocab: int = VOCAB, width: int = WIDTH, full=TOKENS):
    """Two rows: extra memory at `full` tokens as XLA plans it, time and values at `tokens`."""
    programs = {"fused": _with_gradients(fused), "plain": _with_gradients(plain)}
    shapes = jax.eval_shape(functools.partial(_arrays, full, vocab, width, dtype))
    size = {name: _temporary_bytes(program, shapes) for name, program in programs.items()}
    arrays = _arrays(tokens, vocab, width, dtype)
    ours, theirs = (jax.device_get(program(*arrays)) for program in programs.values())
    calls = {name: functools.partial(program, *arrays) for name, program in programs.items()}
    seconds = timing.in_turn(calls, repeats)
    shared = {"vocab": vocab, "width": width, "dtype": dtype}
    return [
        {
            "name": "logprob/memory",
            "bytes": size["fused"],
            "ratio": {"plain": size["fused"] / size["plain"]},
            "tokens": full,
            **shared,
        },
        {
            "name": "logprob/time",
            "seconds": statistics.median(seconds["fused"]),
            "ratio": {"plain": timing.ratio(seconds["fused"], seconds["plain"])},
            "tokens": tokens,
            "largest_difference": _largest_difference(ours, theirs),
            **shared,
        },
    ]


def _with_gradients(logprob):
    """(loss, gradients of hidden and head) of a weighted sum over tokens."""

    def loss(hidden_CD, head_VD, token_C, weight_C):
        return (logprob(hidden_CD, head_VD, token_C, temperature=1.0) * weight_C).sum()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


def _arrays(tokens: int, vocab: int, width: int, dtype: str):
    keys = jax.random.split(jax.random.key(0), 4)
    hidden_CD = jax.random.normal(keys[0], (tokens, width)).astype(dtype)
    head_VD = jax.random.normal(keys[1], (vocab, width)) * width**-0.5
    token_C = jax.random.randint(keys[2], (tokens,), 0, vocab)
    return hidden_CD, head_VD.astype(dtype), token_C, jax.random.normal(keys[3], (tokens,))


def _temporary_bytes(program, shapes) -> int:
    return program.lower(*shapes).compile().memory_analysis().temp_size_in_bytes


def _largest_difference(ours, theirs) -> float:
    """Over the loss and all gradients, each relative to the largest entry of the plain form's."""
    pairs = zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True)
    pairs = [(np.asarray(a, np.float64), np.asarray(b, np.float64)) for a, b in pairs]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)
