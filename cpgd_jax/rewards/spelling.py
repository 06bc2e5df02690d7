"""The tables of `normalise`: Unicode characters and TeX commands and what they are written as."""

SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n", strict=True))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_VULGAR = "½1/2 ⅓1/3 ⅔2/3 ¼1/4 ¾3/4 ⅕1/5 ⅖2/5 ⅗3/5 ⅘4/5 ⅙1/6 ⅚5/6 ⅛1/8 ⅜3/8 ⅝5/8 ⅞7/8"
CIRCLED = {c: f"({n})" for n, c in enumerate("①②③④⑤⑥⑦⑧⑨", 1)}
VULGAR = {item[0]: rf"\frac{{{item[1]}}}{{{item[3]}}}" for item in _VULGAR.split()}

SYMBOLS = {
    "−": "-", "–": "-", "—": "-", "﹣": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ",
    "∙": r"\cdot ", "÷": r"\div ", "√": r"\sqrt ", "∛": r"\sqrt[3]", "π": r"\pi ",
    "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ",
    "±": r"\pm ", "∓": r"\mp ", "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ",
    "°": r"\degree ", "∘": r"\circ ", "∼": r"\sim ", "≅": r"\cong ", "△": r"\triangle ",
    "∠": r"\angle ", "→": r"\to ", "≈": r"\approx ", "′": "'", "、": ",", "。": ".",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "θ": r"\theta ",
    "λ": r"\lambda ", "μ": r"\mu ", "µ": r"\mu ", "σ": r"\sigma ", "φ": r"\phi ", "ω": r"\omega ",
    "ρ": r"\rho ", "ε": r"\epsilon ", "η": r"\eta ", "τ": r"\tau ", "ψ": r"\psi ", "χ": r"\chi ",
    "ξ": r"\xi ", "ν": r"\nu ", "κ": r"\kappa ", "ζ": r"\zeta ", "ϕ": r"\phi ", "Δ": r"\Delta ",
    "Ω": r"\Omega ", "Σ": r"\Sigma ", "Γ": r"\Gamma ", "Φ": r"\Phi ", "Λ": r"\Lambda ",
    "‐": "-", "‑": "-", "∶": ":", "∣": "|", "∥": r"\parallel ", "⊥": r"\perp ", "∽": r"\sim ",
    "≌": r"\cong ", "≡": r"\equiv ", "≦": r"\le ", "≧": r"\ge ", "º": r"\degree ",
    "˚": r"\degree ", "∫": r"\int ", "∑": r"\sum ", "∏": r"\prod ", "⟨": r"\langle ",
    "⟩": r"\rangle ", "…": r"\dots ", "∖": r"\setminus ", "⊂": r"\subset ", "⊆": r"\subseteq ",
    "⁄": "/", "∕": "/", "ℂ": r"\mathbb{C}", "ℚ": r"\mathbb{Q}", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}",
    "\u200b": "", "\ufeff": "", "\u2061": "", "“": '"', "”": '"', "‘": "'", "’": "'",
}  # fmt: skip

RENAMED = {
    "dfrac": r"\frac", "tfrac": r"\frac", "cfrac": r"\frac", "leq": r"\le", "leqslant": r"\le",
    "geq": r"\ge", "geqslant": r"\ge", "neq": r"\ne", "lt": "<", "gt": ">", "ast": r"\cdot",
    "lbrace": r"\{", "rbrace": r"\}", "lvert": "|", "rvert": "|", "vert": "|", "mid": "|",
    "lbrack": "[", "rbrack": "]", "infin": r"\infty", "rightarrow": r"\to",
    "varnothing": r"\emptyset", "dbinom": r"\binom", "tbinom": r"\binom", "lg": r"\log_{10}",
    "arctg": r"\arctan", "tg": r"\tan", "ctg": r"\cot", "varepsilon": r"\epsilon",
    "varphi": r"\phi", "langle": r"\langle", "colon": ":", "percent": "%", "euro": "",
    "pounds": "", "land": r"\text{and}", "lor": r"\text{or}", "vee": r"\text{or}",
    "wedge": r"\text{and}", "lnot": r"\neg", "times": r"\times", "ldots": r"\dots",
    "cdots": r"\dots", "prime": "'", "overrightarrow": r"\vec", "circ": r"\circ",
    "degree": r"\degree", "backslash": r"\setminus",
}  # fmt: skip

DROPPED = frozenset(
    ["left", "right", "middle", "big", "Big", "bigg", "Bigg", "bigl", "bigr", "Bigl", "Bigr"]
    + ["biggl", "biggr", "displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "quad"]
    + [
        "qquad",
        "hfill",
        "smallskip",
        "rm",
        "bf",
        "it",
        "boldsymbol",
        "thinspace",
        "mathstrut",
        "mathrm",
    ]
    + ["underline", "mathbf", "mathit", "operatorname"]
)
