"""Answers a second by two verifier workers, and a batch of which 5% hang."""

import time

from cpgd_jax.rewards import Verifier


def run() -> list[dict]:
    """A ratio is the time over what is allowed: hanging / workers * limit + 5 s."""
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
        return [
            {
                "name": "reward",
                "answers_per_s": 3 * 999 / mixed,
                "answers_per_s_in_workers": 999 / worked,
                "seconds": seconds,
                "timeouts": verifier.timeouts,
                "ratio": {"bound_with_5_percent_hanging": seconds / bound},
            }
        ]


def _seconds(verifier, pairs) -> float:
    """Seconds to score (answer, gold) pairs."""
    responses = [rf"<think>a</think><answer>\boxed{{{answer}}}</answer>" for answer, _ in pairs]
    start = time.perf_counter()
    verifier.score_batch(responses, [gold for _, gold in pairs])
    return time.perf_counter() - start
