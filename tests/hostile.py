"""Answers that hang, crash or flood a parser that does not look before it reads."""

HOSTILE = {
    "tower": "9^{9^{9^{9}}}", "tower of factorials": "((99!)!)!", "bangs": "3" + "!" * 300,
    "factorial": "99999999!", "binomial": r"\binom{10^{9}}{10^{8}}", "tiny": "10^{-999999999}",
    "polynomial": "(x+1)^{100000}-(x-1)^{100000}", "power": r"(1+\frac{1}{10^9})^{10^{18}}",
    "exponentials": "e^{e^{e^{e^{10}}}}", "big sine": r"\sin(10^{10^{5}})",
    "root": r"\sqrt[10^{-30}]{2}", "digits": "7" * 200_000, "million": "1+" * 500_000 + "1",
    "braces": "{" * 2000 + "1" + "}" * 2000, "brackets": "(" * 1400 + "1" + ")" * 1400,
    "minuses": "-" * 2900 + "1", "bars": "|" * 2001, "roots": r"\sqrt{1+" * 300 + "1" + "}" * 300,
    "commas": "1," * 50_000 + "1", "underscores": "a_" * 1400, "carets": "2^" * 1400 + "2",
    "begins": r"\begin{cases}" * 200, "texts": r"\text{" * 400 + "}" * 400, "pm": r"\pm 1" * 500,
    "equals": "x=" * 1400 + "7", "backslashes": "\\\\" * 50_000, "nul": "\0" * 50,
    "surrogate": "\udc00 9", "printf": "%s%s%n%999999999d", "superscripts": "2" + "⁹" * 2000,
}  # fmt: skip
