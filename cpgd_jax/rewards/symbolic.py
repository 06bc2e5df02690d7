"""Sums, integrals and limits, by math-verify and sympy. Runs in a worker process only."""

import logging


def warm_up() -> None:
    """Imports sympy and the TeX grammar, and parses once."""
    same(r"\int_0^1 x dx", r"\frac{1}{2}")


def same(a: str, g: str) -> bool:
    """Two formulas are equal, as far as math-verify knows; the caller bounds length and time."""
    from latex2sympy2_extended import latex2sympy
    from math_verify import verify

    logging.disable(logging.CRITICAL)
    try:
        left, right = latex2sympy(a), latex2sympy(g)
    except Exception:  # of many kinds: the text is no formula
        return False
    return bool(verify(right, left, timeout_seconds=None))
