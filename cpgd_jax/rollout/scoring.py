"""The trainer's own ln-probabilities of sampled responses: policy, `old` and reference.

They are those of softmax(logits / temperature), without top-k, top-p or forbidden ids. Training
scores `old` again under this same law after a rollout, so the on-policy ratio is 1 whatever law the
sampler drew from; the sampler's own ln-probability is kept beside it and the gap is a metric.
"""

import functools

import jax
import numpy as np
from flax import nnx

from cpgd_jax import distributed, packing, sharding
from cpgd_jax.ops import logprobs
from cpgd_jax.types import Packed, TrainBatch


def packed_logprobs(model, packed: Packed, *, temperature: float):
    """(logp_WC, entropy_WC) of the packed rows' targets, float32 in nats; differentiable.

    Only trained slots meet the head. Padding holds finite numbers. temperature must be positive.
    """
    hidden_WUD = model.packed_hidden(packed)
    hidden_WCD = hidden_WUD[:, -packed.target_WC.shape[1] :]
    return logprobs.token_logprobs(
        hidden_WCD, model.head_VD, packed.target_WC, temperature=temperature
    )


@functools.partial(jax.jit, static_argnames=("graphdef", "temperature"))
def score(graphdef, params, packed: Packed, *, temperature: float):
    """`packed_logprobs` of `nnx.merge(graphdef, params)`, jitted; one compilation a shape."""
    return packed_logprobs(nnx.merge(graphdef, params), packed, temperature=temperature)


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
    group_B=None,
    mesh=None,
    row_len: int = 0,
    seen=(),
):
    """NumPy (logp_BT, entropy_BT), 0 where masked, of host arrays, some responses at a time.

    group_B: rows of one number have one prompt; None = each has its own. mesh: the parameters' if
    they are on several devices. row_len, seen: see `packing.lay_out`.
    """
    mesh = mesh or sharding.make_mesh(devices=jax.devices()[:1])
    group_B = np.arange(len(response_BT)) if group_B is None else group_B
    batch = TrainBatch(prompt_BS, prompt_mask_BS, response_BT, mask_BT, None, None, group_B)
    order_MB = packing.microbatches(batch, microbatch_size)
    packed = packing.lay_out(batch, order_MB, sharding.row_ways(mesh), row_len, seen)
    out_2BT = np.zeros((2, *mask_BT.shape), np.float32)
    for m, order_B in enumerate(order_MB):
        one = jax.tree.map(lambda x, m=m: x[m], packed)
        with jax.set_mesh(mesh):
            placed = distributed.to_devices(one, sharding.batch_sharding(mesh))
            found = score(graphdef, params, placed, temperature=float(temperature))
        for out_BT, x_WC in zip(out_2BT, distributed.to_host(found), strict=True):
            row, column = np.divmod(one.place_WC, mask_BT.shape[1])
            real = row < len(order_B)
            out_BT[order_B[row[real]], column[real]] = x_WC[real]
    return tuple(out_2BT)
