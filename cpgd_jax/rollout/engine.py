"""The rollout: one prefill a prompt, shared by its samples, then decoding until every row stopped.

`sample` is what training calls: arrays in, a `types.Rollout` of host arrays out. One compilation
for each shape (prompts, prompt length, group, response cap) and each kind of sampling (greedy,
top-k, top-p on or off); weights, temperature, top-p, stop and forbidden ids, keys are arguments.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from cpgd_jax import types
from cpgd_jax.rollout import sampling


class Law(NamedTuple):
    """What is compiled in of the sampling law."""

    greedy: bool
    top_k: int  # 0 = off
    use_top_p: bool
    use_forbidden: bool


class Requests(NamedTuple):
    """The rows of one jitted call and how they are sampled; all of it is traced."""

    prompt_QS: Any  # int32, left-padded
    prompt_mask_QS: Any  # bool
    prompt_id_B: Any  # uint32
    sample_B: Any  # int32, index of the row within its group
    active_B: Any  # bool; False = filling, its output is dropped
    key: Any  # of (seed, step)
    stop_V: Any  # bool, True = this id ends a response
    forbidden_V: Any  # bool, True = this id is never sampled
    temperature: Any
    top_p: Any


class _Loop(NamedTuple):
    token_index: Any  # of the next token to sample, the same for all rows
    token_B: Any  # the last token sampled
    done_B: Any
    length_B: Any  # tokens sampled, the stop token included
    response_BT: Any
    logp_BT: Any
    cache: Any


def sample(
    graphdef,
    params,
    prompt_QS,
    prompt_mask_QS,
    *,
    prompt_id_Q,
    group: int,
    max_new_tokens: int,
    key,
    stop_ids: tuple[int, ...],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    forbidden_ids: tuple[int, ...] = (),
    slots: int | None = None,
) -> types.Rollout:
    """Samples `group` responses to each of Q left-padded prompts.

    graphdef, params: `nnx.split(model)`. key: (seed, step) or a jax random key. prompt_id_Q: ints
    that name the prompts for the random numbers; the text of (key, prompt id, sample) depends on
    nothing else. stop_ids: each ends a response and belongs to it. forbidden_ids: never sampled, as
    if their logits were -inf. temperature 0: greedy, ln-probabilities reported at temperature 1.
    slots: at most so many responses are decoded at a time, in whole groups if they fit; None or 0 =
    all. sampler_logp_BT is that of the law sampled: after temperature, top-k, top-p and forbidden
    ids. Columns past the end hold id 0 and are masked out.
    """
    Q, T = len(prompt_QS), max_new_tokens
    law = Law(temperature == 0, int(top_k), top_p < 1.0, bool(forbidden_ids))
    vocab_size = _vocab_size(graphdef, params)
    shared = dict(
        key=_key(key),
        stop_V=_table(stop_ids, vocab_size),
        forbidden_V=_table(forbidden_ids, vocab_size),
        temperature=np.float32(temperature or 1.0),
        top_p=np.float32(top_p),
    )
    prompt_id_Q = (np.asarray(prompt_id_Q).astype(np.int64) & 0xFFFFFFFF).astype(np.uint32)
    response = np.zeros((Q * group, T), np.int32)
    logp = np.zeros((Q * group, T), np.float32)
    length = np.zeros(Q * group, np.int32)
    done = np.zeros(Q * group, bool)
    for prompt_C, sample_G in _plan(Q, group, slots):
        prompt_B, sample_B = np.repeat(prompt_C, len(sample_G)), np.tile(sample_G, len(prompt_C))
        active_B = (prompt_B < Q) & (sample_B < group)
        source_C = np.minimum(prompt_C, Q - 1)
        requests = Requests(
            prompt_QS=np.asarray(prompt_QS)[source_C],
            prompt_mask_QS=np.asarray(prompt_mask_QS)[source_C],
            prompt_id_B=prompt_id_Q[np.minimum(prompt_B, Q - 1)],
            sample_B=sample_B,
            active_B=active_B,
            **shared,
        )
        out = jax.device_get(
            _rollout(graphdef, params, requests, group=len(sample_G), max_new_tokens=T, law=law)
        )
        row = (prompt_B * group + sample_B)[active_B]
        response[row], logp[row], length[row], done[row] = (x[active_B] for x in out)
    mask_BT = np.arange(T)[None] < length[:, None]
    return types.Rollout(response, mask_BT, logp, ~done)


def _plan(prompts: int, group: int, slots: int | None):
    """(prompt indices [C], sample indices [G']) of each jitted call, all of one shape.

    Indices past the end fill the last call.
    """
    slots = min(slots or prompts * group, prompts * group)
    if slots >= group:
        width = slots // group
        return [
            (np.arange(start, start + width), np.arange(group, dtype=np.int32))
            for start in range(0, prompts, width)
        ]
    return [
        (np.arange(q, q + 1), np.arange(start, start + slots, dtype=np.int32))
        for q in range(prompts)
        for start in range(0, group, slots)
    ]


@functools.partial(jax.jit, static_argnames=("graphdef", "group", "max_new_tokens", "law"))
def _rollout(graphdef, params, requests: Requests, *, group, max_new_tokens, law):
    """(response_BT, logp_BT, length_B, done_B) of Q * group rows."""
    model = nnx.merge(graphdef, params)
    T = max_new_tokens
    key_B = sampling.row_keys(requests.key, requests.prompt_id_B, requests.sample_B)
    prompt_len_B = jnp.repeat(requests.prompt_mask_QS.sum(axis=1), group)
    column_1T = jnp.arange(T)[None]
    layers = model.decode_layers()

    def append(loop, logits_BV):
        uniform_B2 = sampling.uniforms(key_B, loop.token_index)
        token_B, logp_B = _draw(logits_BV, uniform_B2, requests, law)
        token_B = jnp.where(loop.done_B, 0, token_B)
        logp_B = jnp.where(loop.done_B, 0.0, logp_B)
        at = (0, loop.token_index)
        return loop._replace(
            token_index=loop.token_index + 1,
            token_B=token_B,
            done_B=loop.done_B | requests.stop_V[token_B],
            length_B=loop.length_B + ~loop.done_B,
            response_BT=jax.lax.dynamic_update_slice(loop.response_BT, token_B[:, None], at),
            logp_BT=jax.lax.dynamic_update_slice(loop.logp_BT, logp_B[:, None], at),
        )

    def step(loop):
        column = loop.token_index - 1
        visible_BT = jnp.broadcast_to(column_1T <= column, loop.response_BT.shape)
        hidden_BD, cache = model.decode(
            loop.token_B, prompt_len_B + column, column, visible_BT, loop.cache, layers
        )
        return append(loop._replace(cache=cache), model.head(hidden_BD))

    hidden_QD, cache = model.prefill(requests.prompt_QS, requests.prompt_mask_QS, group, T)
    logits_BV = jnp.repeat(model.head(hidden_QD), group, axis=0)
    loop = append(_start(requests.active_B, T, cache), logits_BV)
    loop = jax.lax.while_loop(lambda s: (s.token_index < T) & ~s.done_B.all(), step, loop)
    return loop.response_BT, loop.logp_BT, loop.length_B, loop.done_B


def _start(active_B, T: int, cache) -> _Loop:
    B = len(active_B)
    zero_B, zero_BT = jnp.zeros(B, jnp.int32), jnp.zeros((B, T))
    return _Loop(jnp.int32(0), zero_B, ~active_B, zero_B, zero_BT.astype(jnp.int32), zero_BT, cache)


def _draw(logits_BV, uniform_B2, requests: Requests, law: Law):
    if law.use_forbidden:
        logits_BV = jnp.where(requests.forbidden_V[None], -jnp.inf, logits_BV)
    return sampling.sample_token(
        logits_BV,
        uniform_B2,
        temperature=requests.temperature,
        top_k=law.top_k,
        top_p=requests.top_p if law.use_top_p else None,
        greedy=law.greedy,
    )


def _key(key):
    if isinstance(key, tuple):
        seed, step = key
        return jax.random.fold_in(jax.random.key(seed), step)
    return key


def _vocab_size(graphdef, params) -> int:
    return jax.eval_shape(lambda p: nnx.merge(graphdef, p).head_VD, params).shape[0]


def _table(ids, vocab_size: int) -> np.ndarray:
    table_V = np.zeros(vocab_size, bool)
    table_V[list(ids)] = True
    return table_V
