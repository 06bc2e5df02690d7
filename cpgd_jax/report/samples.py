"""Sample responses for the report: matched, clipped and made safe to look at."""

import unicodedata

MAX_PAIRS, MAX_RECENT = 12, 12  # problems before and after; last training responses
PARTS = ("accuracy", "format", "reward", "advantage")
MAX_TEXT = 4000  # characters shown of one prompt or response


def pairs(rollouts: list[dict]) -> list[dict]:
    """Problems sampled both before and after training: {prompt, gold, before, after}, by prompt."""
    found = {}
    for row in rollouts:
        kind = row.get("kind")
        if kind in ("before", "after"):
            pair = found.setdefault(row.get("prompt"), {"before": None, "after": None})
            if kind == "after" or pair[kind] is None:  # the latest after, the first before
                pair[kind] = sample(row)
    whole = [p for p in found.values() if p["before"] and p["after"]]
    half = [p for p in found.values() if not (p["before"] and p["after"])]
    return [
        {**p, **{k: (p["after"] or p["before"])[k] for k in ("prompt", "gold")}}
        for p in (whole + half)[:MAX_PAIRS]
    ]


def recent(rollouts: list[dict]) -> list[dict]:
    """The last responses of training, newest first."""
    trained = [row for row in rollouts if row.get("kind", "train") == "train"]
    return [sample(row) for row in reversed(trained[-MAX_RECENT:])]


def sample(row: dict) -> dict:
    """One response with its verdict and the numbers that it was trained on."""
    numbers = [(k, row[k]) for k in PARTS if isinstance(row.get(k), int | float)]
    mark, verdict = judge(row.get("accuracy"))
    return {
        "rollout": row.get("rollout"),
        "prompt": clip(visible(row.get("prompt", ""))),
        "response": clip(visible(row.get("response", ""))),
        "gold": clip(visible(row.get("gold", ""))),
        "mark": mark,
        "verdict": verdict,
        "numbers": [(k, f"{value:.3g}") for k, value in numbers],
        "truncated": bool(row.get("truncated")),
    }


def judge(accuracy) -> tuple[str, str]:
    """A symbol as well as a word, for those who do not see the colour."""
    if not isinstance(accuracy, int | float):
        return "?", "not scored"
    if accuracy in (0, 1):
        return ("✓", "right") if accuracy else ("✗", "wrong")
    return "◐", "partly right"


def clip(text: str) -> str:
    """Start and end of a long text: the answer is at the end."""
    if len(text) <= MAX_TEXT:
        return text
    left = MAX_TEXT * 2 // 5
    gone = len(text) - MAX_TEXT
    return f"{text[:left]}\n[… {gone:,} characters left out …]\n{text[-(MAX_TEXT - left) :]}"


def visible(text) -> str:
    """Control, direction and zero-width characters as something that can be seen."""
    return "".join(map(_show, str(text)))


def _show(char: str) -> str:
    code = ord(char)
    if char == "\n" or char.isprintable():
        return char
    if code < 0x20 or code == 0x7F:
        return chr(0x2400 + code) if code < 0x20 else "\u2421"
    if unicodedata.category(char) == "Zs":
        return char
    return f"⟨U+{code:04X}⟩"
