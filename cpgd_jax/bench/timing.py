"""Programs timed in turn, so that a busy machine slows all alike; medians of what was found."""

import statistics
import time

import jax


def in_turn(programs: dict, repeats: int) -> dict[str, list[float]]:
    """Seconds of each call. Every program is called once before, which compiles it."""
    for program in programs.values():
        jax.block_until_ready(program())
    seconds = {name: [] for name in programs}
    for _ in range(repeats):
        for name, program in programs.items():
            seconds[name].append(once(program))
    return seconds


def once(program) -> float:
    """Seconds of one call, until its arrays are there."""
    start = time.perf_counter()
    jax.block_until_ready(program())
    return time.perf_counter() - start


def ratio(numerators: list[float], denominators: list[float]) -> float:
    """The median of the quotients of what was measured side by side."""
    return statistics.median(a / b for a, b in zip(numerators, denominators, strict=True))
