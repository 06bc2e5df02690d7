"""The trainer's own ln-probabilities of sampled responses: policy, `old` and reference.

They are those of softmax(logits / temperature), without top-k, top-p or forbidden ids. Training
scores `old` again under this same law after a rollout, so the on-policy ratio is 1 whatever law the
sampler drew from; the sampler's own ln-probability is kept beside it and the gap is a metric.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from cpgd_jax.ops import logprobs, masked


def response_logprobs(
    model, prompt_BS, prompt_mask_BS, response_BT, mask_BT, *, temperature: float
):
    """(logp_BT, entropy_BT), float32 in nats, 0 where masked; differentiable in the model.

    prompt_BS: left-padded. response_BT: right-padded; mask_BT True = a sampled token. Column S-1+t
    of the row [prompt | response] predicts response token t. temperature must be positive.
    """
    chex.assert_equal_shape((prompt_BS, prompt_mask_BS))
    chex.assert_equal_shape((response_BT, mask_BT))
    S, T = prompt_BS.shape[1], response_BT.shape[1]
    token_BU = jnp.concatenate([prompt_BS, response_BT], axis=1)
    hidden_BUD = model.hidden(token_BU, jnp.concatenate([prompt_mask_BS, mask_BT], axis=1))
    logp_BT, entropy_BT = logprobs.token_logprobs(
        hidden_BUD[:, S - 1 : S + T - 1], model.head_VD, response_BT, temperature=temperature
    )
    return masked.fill(logp_BT, mask_BT), masked.fill(entropy_BT, mask_BT)


@functools.partial(jax.jit, static_argnames=("graphdef", "temperature"))
def score(graphdef, params, prompt_BS, prompt_mask_BS, response_BT, mask_BT, *, temperature: float):
    """`response_logprobs` of `nnx.merge(graphdef, params)`, jitted; one compilation a shape."""
    model = nnx.merge(graphdef, params)
    return response_logprobs(
        model, prompt_BS, prompt_mask_BS, response_BT, mask_BT, temperature=temperature
    )


def score_rollout(
    graphdef,
    params,
    prompt_BS,
    prompt_mask_BS,
    response_BT,
    mask_BT,
    *,
    temperature: float,
    microbatch_size: int = 16,
):
    """`score` of host arrays, `microbatch_size` rows at a time: NumPy (logp_BT, entropy_BT).

    The last microbatch is filled up with masked rows, so any number of rows shares one compilation.
    """
    rows = (prompt_BS, prompt_mask_BS, response_BT, mask_BT)
    B = len(response_BT)
    rows = [_fill_rows(np.asarray(x), -B % microbatch_size) for x in rows]
    parts = [
        score(
            graphdef,
            params,
            *(x[start : start + microbatch_size] for x in rows),
            temperature=float(temperature),
        )
        for start in range(0, B, microbatch_size)
    ]
    logp, entropy = (np.concatenate(x)[:B] for x in zip(*jax.device_get(parts), strict=True))
    return logp, entropy


def _fill_rows(x, extra: int):
    return np.pad(x, ((0, extra), (0, 0)))
