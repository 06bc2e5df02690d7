"""Compares what `equality.quick` left open; runs in a worker process only."""

from cpgd_jax.rewards.equality import Verdict


def warm_up() -> None:
    """Imports and first uses that would otherwise count against an answer."""
    import math_verify  # noqa: F401


def compare(answer: str, gold: str) -> Verdict:
    """The verdict on a raw answer and a raw gold."""
    from math_verify import parse, verify

    a = parse(f"${answer}$", parsing_timeout=None)
    g = parse(f"${gold}$", parsing_timeout=None)
    same = bool(verify(g, a, timeout_seconds=None))
    return Verdict(same, "same value" if same else "another value")
