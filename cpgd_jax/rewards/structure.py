r"""Compares what `equality.quick` left open: lists, sets, tuples, intervals, relations, matrices.

Runs in a worker process. A normalised text is read to a small node by its outermost structure:

    ("set" | "union", items)      order-free      ("seq", open, close, items)   tuple or interval
    ("matrix", kind, rows)                        ("ratio", parts)
    ("relation", operators, sides)                ("leaf", text)

The leaves are compared by `leaves`.
"""

import re

from cpgd_jax.rewards import intervals, leaves, numbers, relations
from cpgd_jax.rewards.arithmetic import TooLarge
from cpgd_jax.rewards.equality import Verdict
from cpgd_jax.rewards.normalise import normalise, strip_ends, tokens
from cpgd_jax.rewards.split import BRACKETS, enclosed, split

MAX_ITEMS = 60
MAX_NESTING = 12

_OR = frozenset([r"\text{or}", "or", "或", "或者"])
_LIST = _OR | frozenset([",", ";", r"\text{and}", "and", "和", "与", "且", "及"])
_MATRIX = re.compile(
    r"[(\[]?\s*\\begin\{(\w*matrix|array|cases)\*?\}(.*)\\end\{\1\*?\}\s*[)\]]?", re.DOTALL
)
_R = r"(?:\\mathbb\s*)?\{?\s*R\s*\}?"
_REALS = re.compile(_R)
_PUNCTURED = re.compile(rf"{_R}\s*(?:\\setminus|-)\s*\\\{{([^,]*)\\\}}")  # R \ {1}
_IS_REAL = re.compile(rf"[A-Za-z]\s*\\in\s*{_R}")
_BUILDER = re.compile(rf"[A-Za-z]\s*(?:\\in\s*{_R})?\s*[|:]\s*(.*)", re.DOTALL)
_POINT = re.compile(r"[A-Z]\s*(\([^()]*,[^()]*\))")  # P(1, 2)
_LABELS = re.compile(r"(?:\(\d\)\s*){2,}")  # (1)(3): numbered statements, no product
_DOMAIN = re.compile(  # k pi (k in Z)
    r"[,\s]*\(?\s*[kmn]\s*(?:\\in\s*(?:\\mathbb\s*)?\{?\s*([ZN])\s*\}?|为整数|是整数)\s*\)?"
)


def warm_up() -> None:
    """First uses whose imports and tables would otherwise count against an answer."""
    from cpgd_jax.rewards import symbolic

    symbolic.warm_up()
    compare(r"\frac{x}{2}", r"0.5x")


def compare(answer: str, gold: str) -> Verdict:
    """The verdict on a raw answer and a raw gold, both within the bounds of `equality`."""
    try:
        equal = same(*_without_domain(normalise(answer), normalise(gold)))
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
        return _bare(a if len(left) > 1 else g) and _same_point(left, right, depth)
    if len(left) != len(right) or not 1 <= len(left) <= MAX_ITEMS:
        return False
    if len(left) > 1:
        return _same_items(left, right, depth)
    if intervals.variable(a) and intervals.variable(g) not in ("", intervals.variable(a)):
        return False
    return _same_node(read(left[0]), read(right[0]), depth)


def items(text: str) -> list[str]:
    r"""The values that a text lists: by commas, "or", `\pm`; those of a set or of a union."""
    if numbers.read(text) is not None:
        return [text]
    if _LABELS.fullmatch(text):
        return re.findall(r"\d", text)
    parts = [strip_ends(part) for part in split(text, _LIST)]
    if len(parts) == 2 and len(split(text, _OR)) == 1 and (one := intervals.merged(parts)):
        return [one]
    listed = [value for part in parts if part for value in _plus_minus(part)]
    if len(listed) == 1 and (node := read(listed[0]))[0] in ("set", "union"):
        return [value for part in node[1] for value in _plus_minus(part)]
    return listed


def _plus_minus(text: str) -> list[str]:
    if r"\pm" not in text and r"\mp" not in text:
        return [text]
    return [
        text.replace(r"\pm", first).replace(r"\mp", second)
        for first, second in (("+", "-"), ("-", "+"))
    ]


def read(text: str) -> tuple:
    """The outermost structure of one value."""
    text = strip_ends(text)
    if match := _MATRIX.fullmatch(text):
        return _matrix(match.group(1), match.group(2))
    if match := _POINT.fullmatch(text):
        return read(match.group(1))
    operators, sides = relations.split_sides(text)
    if operators and not (len(parts := _cups(text)) > 1 and all(map(intervals.variable, parts))):
        return _relation(operators, sides)
    if len(parts := _cups(text)) > 1:
        return ("union", parts)
    if brackets := enclosed(text):
        return _bracketed(text, *brackets)
    if 2 <= len(parts := split(text, frozenset([":", r"\text{to}"]))) <= 4:
        return ("ratio", parts)
    if _REALS.fullmatch(text):
        return ("seq", "(", ")", [r"-\infty", r"\infty"])
    if match := _PUNCTURED.fullmatch(text):
        return intervals.without(match.group(1))
    return ("leaf", text)


def _cups(text: str) -> list[str]:
    return split(text, frozenset([r"\cup"]))


def _bracketed(text: str, opening: str, closing: str) -> tuple:
    inside = text[len(opening) : -len(closing)].strip()
    parts = split(inside, frozenset([",", ";"]))
    if opening == r"\{":
        if match := _BUILDER.fullmatch(inside):
            return _built(match.group(1))
        return ("set", list({tokens(part): part for part in split(inside, _LIST)}.values()))
    if len(parts) < 2:
        return ("leaf", text)
    return ("seq", BRACKETS.get(opening, opening), BRACKETS.get(closing, closing), parts)


def _built(condition: str) -> tuple:
    r"""The set that a condition describes: `x > 1, x < 2`, `x \in \mathbb{R}, x \ne 1`."""
    parts = [part for part in split(condition, _LIST) if not _IS_REAL.fullmatch(part)]
    if len(split(condition, _OR)) == 1 and (one := intervals.merged(parts)):
        return read(one)
    return read(parts[0]) if len(parts) == 1 else ("union", parts)


def _matrix(kind: str, body: str) -> tuple:
    body = re.sub(r"^\s*\{[lcr|\s]*\}", "", body) if kind == "array" else body
    rows = [split(row, frozenset("&")) for row in split(body, frozenset([r"\\"])) if row.strip()]
    if kind == "cases":
        return ("set", [" ".join(row) for row in rows])
    return ("matrix", kind if kind in ("vmatrix", "Vmatrix") else "matrix", rows)


def _relation(operators: list[str], sides: list[str]) -> tuple:
    if operators == [r"\in"] and relations.is_name(sides[0]):
        return read(sides[1])
    return intervals.read(operators, sides) or ("relation", operators, sides)


def _bare(text: str) -> bool:
    """A list with commas or "and", or a system of equations, without brackets of its own."""
    if text.startswith(r"\begin{cases}"):
        return True
    return 1 < len(split(text, _LIST)) == len(split(text, _LIST - _OR)) == len(items(text))


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
        left, right = (_rows(node) for node in (a, g))
        return len(left) == len(right) and all(
            _all_same(x, y, depth) for x, y in zip(left, right, strict=True)
        )
    if a[0] != g[0]:
        return False
    if a[0] == "leaf":
        return leaves.same_leaf(a[1], g[1])
    if a[0] == "seq":
        return a[1:3] == g[1:3] and _all_same(a[3], g[3], depth)
    if a[0] == "matrix":
        return (
            a[1] == g[1]
            and len(a[2]) == len(g[2])
            and all(_all_same(x, y, depth) for x, y in zip(a[2], g[2], strict=True))
        )
    return len(a[1]) == len(g[1]) and _same_items(a[1], g[1], depth)


def _rows(node: tuple) -> list[list[str]]:
    """The rows of a matrix, one row as a column; of a tuple, or of a list of lists, the same."""
    if node[0] == "matrix":
        return [[cell] for cell in node[2][0]] if len(node[2]) == 1 else node[2]
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
