"""Formulas as nested tuples (see `parser`): their symbols, substitution, other readings."""

from fractions import Fraction


def symbols(node: tuple) -> set[str]:
    """Names of the symbols in a formula."""
    if node[0] == "sym":
        return {node[1]}
    return set().union(*(symbols(part) for part in node[1:] if isinstance(part, tuple)))


def substitute(node: tuple, name: str, value: tuple) -> tuple:
    """The formula with a symbol replaced."""
    if node == ("sym", name):
        return value
    return tuple(
        substitute(part, name, value) if isinstance(part, tuple) else part for part in node
    )


def linear_slope(node: tuple, name: str) -> tuple:
    """The value at name=1 less that at name=0: the slope of a linear formula."""
    ends = [substitute(node, name, ("num", Fraction(end))) for end in (1, 0)]
    return ("sub", *ends)


def decimal_logs(node: tuple) -> tuple:
    """The formula with every `log` without a base as the logarithm to base 10."""
    parts = tuple(decimal_logs(part) if isinstance(part, tuple) else part for part in node)
    plain = parts[:2] == ("call", "log") and len(parts) == 3
    return (*parts, ("num", Fraction(10))) if plain else parts
