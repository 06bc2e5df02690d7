"""Compares what `equality.quick` left open: lists, sets, tuples, intervals, relations, matrices.

Runs in a worker process. `structure` says what the nodes are.
"""

import re
from collections.abc import Sequence

from cpgd_jax.rewards import intervals, leaves, relations, tolerance
from cpgd_jax.rewards.arithmetic import TooLarge
from cpgd_jax.rewards.equality import Verdict, other_currency
from cpgd_jax.rewards.normalise import normalise, tokens
from cpgd_jax.rewards.structure import bare_list, items, read

MAX_ITEMS = 60
MAX_NESTING = 12

_DOMAIN = re.compile(  # k pi (k in Z)
    r"[,\s]*\(?\s*[kmn]\s*(?:\\in\s*(?:\\mathbb\s*)?\{?\s*([ZN])\s*\}?|为整数|是整数)\s*\)?"
)


def warm_up() -> None:
    """First uses whose imports and tables would otherwise count against an answer."""
    from cpgd_jax.rewards import symbolic

    symbolic.warm_up()
    compare(r"\frac{x}{2}", r"0.5x")


def compare(answer: str, gold: str, errors: Sequence[float] = ()) -> Verdict:
    """The verdict on a raw answer and a raw gold, both within the bounds of `equality`.

    `errors`: absolute errors that the gold's numbers may have, see `tolerance`.
    """
    if other_currency(answer, gold):
        return Verdict(False, "another currency")
    answer, gold = normalise(answer), normalise(gold)
    if errors and tolerance.within(answer, gold, errors):
        return Verdict(True, "same value within its error")
    try:
        equal = same(*_without_domain(answer, gold))
    except TooLarge as error:
        return Verdict(False, f"not computed: {error}")
    return Verdict(equal, "same value" if equal else "another value")


def _without_domain(a: str, g: str) -> tuple[str, str]:
    r"""Without a closing `k \in \mathbb{Z}`, unless the two name different domains."""
    found = [re.search(_DOMAIN.pattern + "$", text) for text in (a, g)]
    if all(found) and found[0].group(1) != found[1].group(1):
        return a, g
    a, g = (t[: m.start()] if m else t for t, m in zip((a, g), found, strict=True))
    return a, g


def same(a: str, g: str, depth: int = 0) -> bool:
    """Two normalised texts mean the same. Order-free where the text has no brackets or is a set."""
    if tokens(a) == tokens(g):
        return True
    if depth > MAX_NESTING or not a or not g:
        return False
    left, right = items(a), items(g)
    if min(len(left), len(right)) == 1 < max(len(left), len(right)):
        return bare_list(a if len(left) > 1 else g) and _same_point(left, right, depth)
    if len(left) != len(right) or not 1 <= len(left) <= MAX_ITEMS:
        return False
    if len(left) > 1:
        return _same_items(left, right, depth)
    if intervals.variable(a) and intervals.variable(g) not in ("", intervals.variable(a)):
        return False
    return _same_node(read(left[0]), read(right[0]), depth)


def _same_point(left: list[str], right: list[str], depth: int) -> bool:
    """A tuple and its entries without brackets: in the answer in order (1, 2) or by name, in the
    gold by name only (x = 1, y = 2)."""
    listed, point = (left, right[0]) if len(right) == 1 else (right, left[0])
    node = read(relations.name_and_value(point)[1])
    named = [relations.name_and_value(text) for text in listed]
    names = [name for name, _ in named]
    if all(names) and len(set(names)) == len(names):
        values = [value for _, value in sorted(named)]
    elif any(names) or listed is right or node[1:3] != ("(", ")"):
        return False
    else:
        values = listed
    if node[0] != "seq":
        return False
    return _all_same(*((values, node[3]) if listed is left else (node[3], values)), depth)


def _same_items(left: list[str], right: list[str], depth: int) -> bool:
    """The same values in any order; in this order where only one side names them (x=1, y=2)."""
    if relations.named_on_one_side(left, right):
        return all(same(a, g, depth + 1) for a, g in zip(left, right, strict=True))
    rest = list(left)
    for gold in sorted(right, key=lambda text: text not in rest):
        found = next((a for a in rest if same(a, gold, depth + 1)), None)
        if found is None:
            return False
        rest.remove(found)
    return True


def _same_node(a: tuple, g: tuple, depth: int) -> bool:
    if a[0] == "relation" or g[0] == "relation":
        return relations.same(a, g, lambda x, y: same(x, y, depth + 1))
    if a[0] == g[0] == "ratio":
        return leaves.same_ratio(a[1], g[1])
    if {a[0], g[0]} == {"ratio", "leaf"}:
        return leaves.same_value(_quotient(a), _quotient(g))
    if {a[0], g[0]} == {"matrix", "seq"}:
        return _same_rows(_rows(a), _rows(g), depth)
    if a[0] != g[0]:
        return False
    if a[0] == "leaf":
        return leaves.same_leaf(a[1], g[1])
    if a[0] == "seq":
        return a[1:3] == g[1:3] and _all_same(a[3], g[3], depth)
    if a[0] == "matrix":
        return a[1] == g[1] and _same_rows(a[2], g[2], depth)
    return len(a[1]) == len(g[1]) and _same_items(a[1], g[1], depth)


def _same_rows(left: list[list[str]], right: list[list[str]], depth: int) -> bool:
    return 0 < len(left) == len(right) and all(
        _all_same(x, y, depth) for x, y in zip(left, right, strict=True)
    )


def _rows(node: tuple) -> list[list[str]]:
    """The rows of a matrix, one row as a column; of a tuple, or of a list of lists, the same."""
    if node[0] == "matrix":
        rows = [[cell] for cell in node[2][0]] if len(node[2]) == 1 else node[2]
        return rows if node[1] == "matrix" else []  # a determinant is a number
    if node[1] + node[2] not in ("()", "[]"):
        return []
    inner = [read(part) for part in node[3]]
    if all(part[0] == "seq" and part[1:3] == node[1:3] for part in inner):
        return [part[3] for part in inner]
    return [[part] for part in node[3]]


def _all_same(left: list[str], right: list[str], depth: int) -> bool:
    return len(left) == len(right) <= MAX_ITEMS and all(
        same(a, g, depth + 1) for a, g in zip(left, right, strict=True)
    )


def _quotient(node: tuple) -> str:
    """A ratio of two as a division."""
    if node[0] == "leaf":
        return node[1]
    return "/".join(f"({part})" for part in node[1]) if len(node[1]) == 2 else ""
