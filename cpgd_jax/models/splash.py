"""Attention over packed rows on a TPU: JAX's splash kernel, its mask made of `Spans`.

The mask of a row is [U, U] booleans, the same for all heads; scores exist only inside the kernel,
and a block in which the mask is all False is neither read nor computed.
"""

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels

from cpgd_jax.models.chunked_attention import visible
from cpgd_jax.types import Spans

LANES = 128  # a block is a multiple of these


def attend(q_WUNH, k_WUKH, v_WUKH, spans: Spans, interpret: bool = False):
    """[W, U, N, H]; see `attention.over`. interpret: run the kernel's steps without a TPU."""
    U, H = q_WUNH.shape[1], q_WUNH.shape[3]
    padding = -U % LANES
    slot_u = jnp.arange(U + padding)

    def padded(x):
        return jnp.pad(x, [(0, 0), (0, padding)] + [(0, 0)] * (x.ndim - 2))

    def one_row(row):
        q_uNH, k_uKH, v_uKH, spans = row
        mask_uu = visible(spans, slot_u[:, None], slot_u[None])
        kernel = _kernel(mask_uu, interpret)
        q, k, v = (x.swapaxes(0, 1) for x in (q_uNH * H**-0.5, k_uKH, v_uKH))
        return kernel(q, k, v).swapaxes(0, 1)

    rows = (*map(padded, (q_WUNH, k_WUKH, v_WUKH)), Spans(*map(padded, spans)))
    return jax.lax.map(one_row, rows)[:, :U]


def _kernel(mask_uu, interpret: bool):
    size = next(s for s in (512, 256, LANES) if len(mask_uu) % s == 0)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    sizes = kernels.BlockSizes(**{f"block_{name}": size for name in names})
    kernel = kernels.make_splash_mha(
        mask_uu[None], block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
    )
    for name in ("fwd_mask_info", "dq_mask_info", "dkv_mask_info"):
        # a traced flag that only chooses a name for profiles, which fails inside jit
        setattr(kernel, name, getattr(kernel, name)._replace(is_dynamic_mask=None))
    return kernel
