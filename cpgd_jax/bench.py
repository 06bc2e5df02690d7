"""Benchmarks: functions that return one JSON-able row {name, seconds or a rate, ratio: {peer: x}}.

A ratio compares with a simpler program of the same inputs, timed in turn in the same run.
"""

import functools
import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np

from cpgd_jax.losses.policy import policy_loss
from cpgd_jax.ops import masked
from cpgd_jax.rewards import Verifier


def loss(algorithm: str, batch: int, length: int, repeats: int) -> dict:
    """policy_loss with gradient against the masked mean of exp(logp - old) with gradient."""
    arrays = _loss_batch(batch, length)

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
    seconds = time_in_turn(
        {name: functools.partial(f, logp_BT, arrays) for name, f in programs.items()}, repeats
    )
    return {
        "name": f"loss/{algorithm}",
        "seconds": seconds["policy_loss"],
        "seconds_with_metrics": seconds["with_metrics"],
        "ratio": {"masked_mean_exp": seconds["policy_loss"] / seconds["masked_mean_exp"]},
        "ratio_with_metrics": {
            "masked_mean_exp": seconds["with_metrics"] / seconds["masked_mean_exp"]
        },
        "shape": [batch, length],
    }


def reward() -> dict:
    """Answers a second by two verifier workers, and a batch of which 5% hang.

    A ratio is the time over what the requirement allows: hanging / workers * limit + 5 s.
    """
    hanging, answers = 51, 1024
    numbers = [(rf"{n}.0", str(n)) for n in range(1, 1000)]
    formulas = [
        (rf"\frac{{{n}x}}{{7}}+\sqrt{{{n}}}", rf"\sqrt{{{n}}}+{n}x/7") for n in range(1, 1000)
    ]
    choices = [("ABCD"[n % 4], "B") for n in range(1, 1000)]
    endless = [(r"\sum_{k=1}^{10^{9}} \frac{1}{k^{k}}", "2")] * hanging
    with Verifier(workers=2) as verifier:
        verifier.warm_up()
        mixed = _seconds(verifier, numbers + formulas + choices)
        worked = _seconds(verifier, formulas)
        seconds = _seconds(verifier, endless + formulas[: answers - hanging])
        bound = hanging / 2 * verifier.timeout_s + 5
        return {
            "name": "reward",
            "answers_per_s": 3 * 999 / mixed,
            "answers_per_s_in_workers": 999 / worked,
            "seconds": seconds,
            "timeouts": verifier.timeouts,
            "ratio": {"bound_with_5_percent_hanging": seconds / bound},
        }


def _seconds(verifier, pairs) -> float:
    """Seconds to score (answer, gold) pairs."""
    responses = [rf"<think>a</think><answer>\boxed{{{answer}}}</answer>" for answer, _ in pairs]
    start = time.perf_counter()
    verifier.score_batch(responses, [gold for _, gold in pairs])
    return time.perf_counter() - start


def _loss_batch(B, T):
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


def time_in_turn(programs, repeats) -> dict[str, float]:
    """Median seconds of each program; they run in turn, so that a busy machine slows all alike."""
    for program in programs.values():
        jax.block_until_ready(program())
    seconds = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            start = time.perf_counter()
            jax.block_until_ready(program())
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}
