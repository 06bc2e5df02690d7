r"""A small parser of formulas: normalised TeX (or plain typing, `sqrt(2)/2`) to nested tuples.

Nodes: ("num", Fraction), ("sym", name), ("neg", a), ("add" | "sub" | "mul" | "div" | "pow", a, b),
("call", function, arguments...). Nothing is evaluated here and nothing outside the grammar passes:
text that is no formula raises `Unreadable`.
"""

import contextlib
import re
from fractions import Fraction

MAX_TOKENS = 1500
MAX_NESTING = 60

FUNCTIONS = frozenset(
    ["sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "arccot"]
    + ["sinh", "cosh", "tanh", "ln", "log", "exp"]
)
_WORDS = "arcsin|arccos|arctan|sinh|cosh|tanh|sqrt|sin|cos|tan|cot|sec|csc|log|ln|exp|pi"
_TOKEN = re.compile(
    rf"\\[a-zA-Z]+|\\.|\d+(?:\.\d+)?|\.\d+|(?:{_WORDS})(?![a-zA-Z])|\*\*|\S", re.DOTALL
)
_GREEK = re.compile(
    r"\\(alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau"
    r"|upsilon|phi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|hbar|ell|odot)$"
)
_CHOOSE = re.compile(r"C_(\d{1,4})")
_ACCENTS = frozenset(
    [r"\vec", r"\overrightarrow", r"\overline", r"\bar", r"\hat", r"\mathbb", r"\mathcal"]
)
_BRACKETS = {"(": ")", "[": "]", "{": "}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
_STARTS_NO_FACTOR = frozenset(
    ["+", "-", "*", "**", "/", "^", "!", "%", ")", "]", "}", ",", "|", "'", "_"]
)


class Unreadable(ValueError):
    """The text is no formula of this grammar."""


def parse(text: str) -> tuple:
    """The formula as nested tuples. Raises Unreadable."""
    parser = _Parser(_TOKEN.findall(text))
    node = parser.sum()
    if parser.at < len(parser.tokens):
        raise Unreadable(f"unexpected {parser.peek()!r}")
    return node


class _Parser:
    def __init__(self, tokens: list[str]):
        if len(tokens) > MAX_TOKENS:
            raise Unreadable("too long")
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0  # open |...|

    def peek(self, ahead: int = 0) -> str:
        at = self.at + ahead
        return self.tokens[at] if at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise Unreadable(f"expected {token!r}")

    @contextlib.contextmanager
    def nested(self):
        """Within: one level deeper. Every cycle of the grammar passes through it."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            raise Unreadable("nested too deeply")
        yield
        self.depth -= 1

    def sum(self) -> tuple:
        node = self.product()
        while self.peek() in ("+", "-"):
            kind = "add" if self.take() == "+" else "sub"
            node = (kind, node, self.product())
        return node

    def product(self) -> tuple:
        node = self.signed()
        while True:
            token = self.peek()
            if token in ("*", r"\cdot", r"\times"):
                self.take()
                node = ("mul", node, self.signed())
            elif token in ("/", r"\div"):
                self.take()
                node = ("div", node, self.signed())
            elif self.starts_factor():
                node = self.juxtaposed(node)
            else:
                return node

    def juxtaposed(self, left: tuple) -> tuple:
        """Two factors side by side: a product; a whole number before a proper fraction: a sum."""
        plain = self.tokens[self.at - 1].isdigit()
        if plain and (self.peek()[0].isdigit() or self.peek()[0] == "."):
            raise Unreadable("two numbers side by side")
        fraction = self.peek() == r"\frac"
        right = self.power()
        if plain and fraction and left[0] == "num" and _proper(right):
            return ("add", left, right)
        return ("mul", left, right)

    def starts_factor(self) -> bool:
        token = self.peek()
        if not token or token in _STARTS_NO_FACTOR:
            return token == "|" and not self.bars
        if token in (r"\rfloor", r"\rceil", r"\%"):
            return False
        return token[0].isalnum() or token in _BRACKETS or token.startswith("\\") and len(token) > 2

    def signed(self) -> tuple:
        if self.peek() not in ("+", "-"):
            return self.power()
        negative = self.take() == "-"
        with self.nested():
            node = self.signed()
        return ("neg", node) if negative else node

    def power(self) -> tuple:
        return self.raised(self.postfix(self.primary()))

    def raised(self, base: tuple) -> tuple:
        if self.peek() not in ("^", "**"):
            return base
        self.take()
        exponent = self.exponent()
        return self.postfix(_choose(base, exponent) or ("pow", base, exponent))

    def exponent(self) -> tuple:
        with self.nested():
            if self.peek() not in ("+", "-"):
                return self.raised(self.primary())
            negative = self.take() == "-"
            node = self.exponent()
            return ("neg", node) if negative else node

    def postfix(self, node: tuple) -> tuple:
        while self.peek() in ("!", "%", r"\degree", r"\%"):
            token = self.take()
            if token == "!":
                node = ("call", "factorial", node)
            elif token == r"\degree":
                node = ("mul", node, ("call", "degree"))
            else:
                node = ("div", node, ("num", Fraction(100)))
        return node

    def group(self, opening: str) -> tuple:
        node = self.sum()
        self.expect(_BRACKETS[opening])
        return node

    def argument(self) -> tuple:
        r"""The argument of `\frac` and the like: a braced group or one symbol."""
        if self.peek() == "{":
            self.take()
            return self.group("{")
        return self.primary()

    def primary(self) -> tuple:
        with self.nested():
            return self.atom(self.take())

    def atom(self, token: str) -> tuple:
        if token[:1].isdigit() or token[:1] == "." and token[1:].isdigit():
            if not token.isascii() or len(token) > 1000:
                raise Unreadable("no plain number")
            return ("num", Fraction(token))
        if token in _BRACKETS:
            inner = self.group(token)
            floor = {r"\lfloor": "floor", r"\lceil": "ceiling"}.get(token)
            return ("call", floor, inner) if floor else inner
        if token == "|":
            return self.absolute()
        if token.lstrip("\\") in FUNCTIONS and len(token) > 1:
            return self.function(token.lstrip("\\"))
        return self.named(token)

    def absolute(self) -> tuple:
        outer, self.bars = self.bars, 1
        inner = self.sum()
        self.bars = outer
        self.expect("|")
        return ("call", "abs", inner)

    def named(self, token: str) -> tuple:
        if token == r"\frac":
            return ("div", self.argument(), self.argument())
        if token == r"\binom":
            return ("call", "binomial", self.argument(), self.argument())
        if token in (r"\sqrt", "sqrt"):
            return self.root()
        if token in (r"\pi", "pi"):
            return ("call", "pi")
        if token in ("e", "i") and self.peek() != "_":
            return ("call", token)
        if token in _ACCENTS:
            return ("sym", token + self.raw_group() + self.subscript())
        if len(token) == 1 and token.isalpha() or _GREEK.match(token):
            return ("sym", token + self.subscript())
        raise Unreadable(f"no symbol: {token!r}")

    def root(self) -> tuple:
        index = ("num", Fraction(2))
        if self.peek() == "[":
            self.take()
            index = self.group("[")
        return ("call", "root", self.argument(), index)

    def function(self, name: str) -> tuple:
        """`sin x`, `\\sin^2 x`, `\\log_2 8`: the argument is a group or the product after it."""
        base = None
        if self.peek() == "_":
            self.take()
            base = self.argument()
        exponent = None
        if self.peek() == "^":
            self.take()
            exponent = self.exponent()
        inner = self.function_argument()
        if exponent == ("neg", ("num", Fraction(1))):
            return ("call", "arc" + name, inner)
        node = ("call", name, inner) if base is None else ("call", name, inner, base)
        return node if exponent is None else ("pow", node, exponent)

    def function_argument(self) -> tuple:
        if self.peek() in ("(", "[", "{", "|"):
            return self.postfix(self.primary())
        node = self.signed()
        while (
            self.starts_factor()
            and self.peek().lstrip("\\") not in FUNCTIONS
            and self.peek() != "("
        ):
            node = self.juxtaposed(node)
        return node

    def subscript(self) -> str:
        """The subscript and primes of a symbol, as part of its name."""
        name = ""
        while self.peek() in ("_", "'"):
            token = self.take()
            name += token if token == "'" else "_" + self.raw_group()
        if self.peek() == "^" and self.peek(1) in ("'", "*"):
            self.take()
            name += self.take()
        if (
            self.peek() == "^"
            and self.peek(1) == "{"
            and self.peek(2) == "'"
            and self.peek(3) == "}"
        ):
            self.at += 4
            name += "'"
        return name

    def raw_group(self) -> str:
        """The tokens of a braced group (or the one token) that is part of a name."""
        if self.peek() != "{":
            return self.take()
        depth, parts = 0, []
        while True:
            token = self.take()
            depth += {"{": 1, "}": -1}.get(token, 0)
            if not token:
                raise Unreadable("unclosed brace")
            if depth == 0:
                return "".join(parts[1:])
            parts.append(token)


def _choose(base: tuple, exponent: tuple) -> tuple | None:
    """`C_6^3`, six choose three."""
    match = _CHOOSE.fullmatch(base[1]) if base[0] == "sym" else None
    if not match or exponent[0] != "num" or exponent[1] > int(match.group(1)):
        return None
    return ("call", "binomial", ("num", Fraction(match.group(1))), exponent)


def _proper(node: tuple) -> bool:
    """A fraction of whole numbers between 0 and 1, as in 2 1/2."""
    if node[0] != "div" or node[1][0] != "num" or node[2][0] != "num":
        return False
    return 0 < node[1][1] < node[2][1] and node[1][1].denominator == node[2][1].denominator == 1
