"""The tiny policy of the study: the project's Qwen2, sampled and scored as one traced function.

Functions are of one policy; `trial` maps them over many. Prompts of a task have one length, so
nothing is padded but the ends of responses.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from cpgd_jax.models import attention, rope
from cpgd_jax.models.layers import rms_norm
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2
from cpgd_jax.rollout import sampling
from cpgd_jax.stability.tasks import STOP, VOCABULARY

MODEL = ModelConfig(
    vocab_size=len(VOCABULARY),
    num_layers=2,
    hidden_size=32,
    mlp_size=64,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    rope_theta=10_000.0,
    init_std=0.18,
    attention="dense",
)


class Sampled(NamedTuple):
    """Responses of one policy; B = Q * G rows, group by group."""

    response_BT: jax.Array  # int32
    mask_BT: jax.Array  # bool, True up to the stop token, which it includes
    logp_BT: jax.Array  # float32, 0 where masked


def graphdef():
    return nnx.graphdef(nnx.eval_shape(lambda: Qwen2(MODEL, nnx.Rngs(0))))


def init(key):
    """Random parameters; a traced key will do."""
    return nnx.split(Qwen2(MODEL, nnx.Rngs(key)))[1]


def sample(graphdef, params, prompt_QS, uniform_TB2, group: int) -> Sampled:
    """`group` responses to each prompt, at temperature 1; uniforms: two a token."""
    model = nnx.merge(graphdef, params)
    Q, S = prompt_QS.shape
    T, B = uniform_TB2.shape[:2]
    hidden_QD, k, v = model.prefill(prompt_QS, jnp.ones((Q, S), bool))
    room = ((0, 0), (0, 0), (0, T - 1), (0, 0), (0, 0))
    cache = tuple(jnp.pad(jnp.repeat(x, group, axis=1), room) for x in (k, v))
    logits_BV = jnp.repeat(model.head(hidden_QD), group, axis=0)

    def step(state, xs):
        logits_BV, cache, going_B = state
        t, uniform_B2 = xs
        token_B, logp_B = sampling.inverse_cdf(logits_BV, uniform_B2)
        token_B = jnp.where(going_B, token_B, STOP)
        found = token_B, going_B, jnp.where(going_B, logp_B, 0.0)
        logits_BV, cache = _next(model, token_B, S + t, cache)
        return (logits_BV, cache, going_B & (token_B != STOP)), found

    state = (logits_BV, cache, jnp.ones(B, bool))
    _, (token_TB, mask_TB, logp_TB) = jax.lax.scan(step, state, (jnp.arange(T), uniform_TB2))
    return Sampled(token_TB.T, mask_TB.T, logp_TB.T)


def _next(model, token_B, column, cache):
    """(logits_BV, cache) after one more token of every row, written at `column`."""
    cos, sin = rope.angles(jnp.full((1, 1), column), MODEL.head_dim, MODEL.rope_theta)
    visible_11U = (jnp.arange(cache[0].shape[2]) <= column)[None, None]
    graphdef, layers = nnx.split(model.blocks)
    written = []

    def layer(x, index):
        def attend(q, k, v):
            at = (0, column, 0, 0)
            pair = (
                jax.lax.dynamic_update_slice(old[index], new, at)
                for old, new in zip(cache, (k, v), strict=True)
            )
            written.append(tuple(pair))
            return attention.attend(q, *written[-1], visible_11U)

        block = nnx.merge(graphdef, jax.tree.map(lambda x: x[index], layers))
        return block(x, cos, sin, attend)

    x = model.embed[...][token_B][:, None]
    for index in range(MODEL.num_layers):
        x = layer(x, index)
    x = rms_norm(x, model.final_norm[...], MODEL.norm_eps)
    return model.head(x[:, 0]), tuple(jnp.stack(part) for part in zip(*written, strict=True))


def logprobs(graphdef, params, token_BU, first: int):
    """ln-probability of tokens `first`… of rows [B, U], each by those before it: [B, U - first]."""
    model = nnx.merge(graphdef, params)
    inputs_BU, target_BT = token_BU[:, :-1], token_BU[:, first:]
    hidden_BUD = model.hidden(inputs_BU, jnp.ones(inputs_BU.shape, bool))
    logp_BTV = jax.nn.log_softmax(model.head(hidden_BUD[:, first - 1 :]))
    return jnp.take_along_axis(logp_BTV, target_BT[..., None], axis=-1)[..., 0]
