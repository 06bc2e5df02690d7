"""Sample responses for the report: matched, clipped and made safe to look at."""

import re
from collections import deque

MAX_PAIRS, MAX_RECENT = 12, 12  # problems before and after; last training responses
PARTS = ("accuracy", "format", "reward", "advantage")
MAX_IMAGES = 8  # shown of one prompt
_IMAGE = re.compile(r"data:image/jpeg;base64,[A-Za-z0-9+/]+={0,2}")
MAX_TEXT = 4000  # characters shown of one prompt or response


def select(rows) -> tuple[list[dict], list[dict]]:
    """(problems sampled before and after training, last training responses, newest first).

    One pass: of a problem, its first `before` and its last `after` row.
    """
    problems, trained = {}, deque(maxlen=MAX_RECENT)
    for row in rows:
        kind = row.get("kind", "train")
        if kind == "train":
            trained.append(row)
        elif kind in ("before", "after"):
            asked = str(row.get("prompt")), *_images(row)
            problem = problems.setdefault(asked, {"before": None, "after": None})
            if kind == "after" or problem[kind] is None:
                problem[kind] = row
    whole = sorted(problems.values(), key=lambda p: None in p.values())  # stable
    return [_pair(p) for p in whole[:MAX_PAIRS]], [sample(row) for row in reversed(trained)]


def _pair(problem: dict) -> dict:
    shown = {kind: row and sample(row) for kind, row in problem.items()}
    either = shown["after"] or shown["before"]
    return {**shown, **{name: either[name] for name in ("prompt", "images", "gold")}}


def sample(row: dict) -> dict:
    """One response with its verdict and the numbers that it was trained on."""
    numbers = [(k, row[k]) for k in PARTS if isinstance(row.get(k), int | float)]
    mark, verdict = judge(row.get("accuracy"))
    return {
        "rollout": row.get("rollout"),
        "prompt": clip(visible(row.get("prompt", ""))),
        "images": _images(row),
        "response": clip(visible(row.get("response", ""))),
        "gold": clip(visible(row.get("gold", ""))),
        "mark": mark,
        "verdict": verdict,
        "tone": verdict if verdict in ("right", "wrong") else "",
        "numbers": [(k, f"{value:.3g}") for k, value in numbers],
        "truncated": bool(row.get("truncated")),
    }


def _images(row: dict) -> list[str]:
    """Those that hold their own pixels: no page of ours loads anything."""
    found = row.get("images")
    found = found if isinstance(found, list) else []
    return [one for one in found[:MAX_IMAGES] if isinstance(one, str) and _IMAGE.fullmatch(one)]


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
    if char == "\n" or char.isprintable():
        return char
    return "⇥" if char == "\t" else f"⟨U+{ord(char):04X}⟩"
