"""policy_loss with gradient beside a simpler program on the same arrays."""

import functools
import statistics

import jax
import jax.numpy as jnp
import numpy as np

from cpgd_jax.bench import timing
from cpgd_jax.losses.policy import policy_loss
from cpgd_jax.ops import masked


def run(algorithm: str, batch: int, length: int, repeats: int) -> list[dict]:
    """policy_loss with gradient against the masked mean of exp(logp - old) with gradient."""
    arrays = _batch(batch, length)

    def ours(logp_BT, arrays):
        return policy_loss(algorithm, logp_BT=logp_BT, **arrays)

    def peer(logp_BT, arrays):
        ratio = masked.mean(jnp.exp(logp_BT - arrays["old_logp_BT"]), arrays["mask_BT"])
        return ratio.sum / ratio.count

    programs = {
        "policy_loss": jax.jit(jax.value_and_grad(lambda *args: ours(*args)[0])),
        "with_metrics": jax.jit(jax.value_and_grad(ours, has_aux=True)),
        "masked_mean_exp": jax.jit(jax.value_and_grad(peer)),
    }
    logp_BT = arrays.pop("logp_BT")
    seconds = timing.in_turn(
        {name: functools.partial(f, logp_BT, arrays) for name, f in programs.items()}, repeats
    )
    peer_s = seconds.pop("masked_mean_exp")
    ratio = {name: {"masked_mean_exp": timing.ratio(own, peer_s)} for name, own in seconds.items()}
    return [
        {
            "name": f"loss/{algorithm}",
            "seconds": statistics.median(seconds["policy_loss"]),
            "seconds_with_metrics": statistics.median(seconds["with_metrics"]),
            "ratio": ratio["policy_loss"],
            "ratio_with_metrics": ratio["with_metrics"],
            "shape": [batch, length],
        }
    ]


def _batch(B: int, T: int) -> dict:
    rng = np.random.default_rng(0)
    length_B = rng.integers(1, T + 1, B)
    old_BT = rng.normal(-1.0, 0.5, (B, T)).astype(np.float32)
    arrays = {
        "logp_BT": old_BT + rng.normal(0.0, 0.1, (B, T)).astype(np.float32),
        "old_logp_BT": old_BT,
        "advantage_B": rng.normal(size=B).astype(np.float32),
        "mask_BT": np.arange(T) < length_B[:, None],
        "group_B": np.arange(B) // 8,
    }
    return jax.tree.map(jnp.asarray, arrays)
