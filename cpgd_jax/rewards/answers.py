r"""Finds a response's answer: the last `<answer>` block after the last `</think>`, its last box.

Everything here is linear in the length of the response and reads untrusted text.
"""

import re

STOP_TOKENS = (
    *("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<end_of_turn>", "</s>"),
    "<\uff5cend\u2581of\u2581sentence\uff5c>",
)
MAX_LEAD_IN = 16  # characters before the reasoning that are no fault of format: a word or two
MAX_SENTENCE = 300  # characters of an unboxed answer that is read as a sentence
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
ANSWER_OPEN, ANSWER_CLOSE = "<answer>", "</answer>"

_BOX_OR_BRACE = re.compile(r"\\{1,2}(?:boxed|fbox|framebox)\s*\{|\\.|[{}]", re.DOTALL)
_BRACELESS_BOX = re.compile(r"\\boxed(?:\s+|(?=\d))([^\s{}$\\]+)")
_LEAD_IN = re.compile(
    r"(?:\bthe\s+)?\b(?:(?:final|correct|right)\s+)?(?:answer|result|option|choice)\b"
    r"(?:\s+is\b\s*:?|\s*[:=]|\*\*\s*[:=\n])[\s*]*"
    r"|(?:最终)?答案(?:是|为)?\s*[:\uff1a]?\s*|[故应]选(?:择)?\s*[:\uff1a]?\s*|####\s*",
    re.IGNORECASE,
)
_SO = re.compile(r"^(?:so|thus|therefore|hence|finally)\b[\s,:]*", re.IGNORECASE)
_CONCLUSION = re.compile(r"\b(?:is|are|equals|be)\s+(\S+(?:\s+[^\s.]+)?)\.?$")
_DOUBT = re.compile(
    r"\b(?:not|no|never|cannot|nor|or|if|unsure|whether|may|might|maybe|could|perhaps|possibly|either"
    r"|n't)\b|n't\b",
    re.IGNORECASE,
)
_BEFORE_BOX = r"(?:\b(?:not|isn't|never|neither)|n't|不是|并非)\s*(?:be\s+|equal\s+to\s+)?[$*\s]*$"
_AFTER_BOX = (
    r"[$*\s]*(?:\b(?:is|was|are)\s+(?:wrong|incorrect|false|not)\b|\bis\s*n't\b"
    r"|(?:是错|不对|不正确|错误))"
)
_TAKEN_BACK = re.compile(_BEFORE_BOX, re.IGNORECASE), re.compile(_AFTER_BOX, re.IGNORECASE)
MAX_BESIDE = 40  # characters beside a box that may take it back
_NUMBER = re.compile(r"\d+(?:[.,/]\d+)*")
_SENTENCE_END = re.compile(r"\n|\.\s|。")


def until_stop(response: str) -> str:
    """The response up to its first stop token: what follows was never said."""
    cuts = [at for token in STOP_TOKENS if (at := response.find(token)) >= 0]
    return response[: min(cuts)] if cuts else response


def answer_block(response: str) -> tuple[str, bool]:
    """The text that may hold the answer, and whether answer tags enclose it.

    Reasoning that was cut off (no `</think>`) holds no answer.
    """
    text = until_stop(response)
    close = text.rfind(THINK_CLOSE)
    if close < 0 and THINK_OPEN in text:
        return "", False
    text = text[close + len(THINK_CLOSE) :] if close >= 0 else text
    text = text.split(THINK_OPEN, 1)[0]
    start = text.rfind(ANSWER_OPEN)
    if start < 0:
        return text, False
    block, tag, _ = text[start + len(ANSWER_OPEN) :].partition(ANSWER_CLOSE)
    return block, bool(tag)


def boxes(text: str) -> list[tuple[int, int, int]]:
    """Every box opener, in order: (start, start of the content, end of the content or -1)."""
    found: list[tuple[int, int, int]] = []
    stack: list[int] = []  # index into `found`, or -1 for an ordinary brace
    for match in _BOX_OR_BRACE.finditer(text):
        piece = match.group()
        if piece == "}":
            if stack and (box := stack.pop()) >= 0:
                found[box] = (*found[box][:2], match.start())
        elif piece == "{":
            stack.append(-1)
        elif piece.endswith("{") and len(piece) > 2:
            stack.append(len(found))
            found.append((match.start(), match.end(), -1))
    return found


def last_box(text: str) -> str | None:
    """Content of the last box; "" if that box was never closed, None if there is no box.

    Of boxes within boxes it is the outermost complete one, its inner boxes opened.
    """
    nest = _last_nest(text)
    if not nest:
        return None
    return "" if nest[-1][2] < 0 else _open_inner(text, nest)


def _last_nest(text: str) -> list[tuple[int, int, int]]:
    """The last box and those round it, the outermost complete one first."""
    found = boxes(text)
    if not found or found[-1][2] < 0:
        return found[-1:]
    first = next(n for n, box in enumerate(found) if box[2] >= found[-1][2])
    return found[first:]


def _open_inner(text: str, nest: list[tuple[int, int, int]]) -> str:
    r"""The content of nest[0] with `\boxed{x}` inside it replaced by `{x}`."""
    _, at, end = nest[0]
    pieces = []
    for start, content, _ in nest[1:]:
        pieces += [text[at:start], "{"]
        at = content
    return "".join([*pieces, text[at:end]]).strip()


def extract(response: str) -> str:
    """The answer as the response wrote it; "" where it gave none."""
    block, tagged = answer_block(response)
    box = last_box(block)
    if box is not None:
        return "" if _taken_back(block) else box
    if braceless := _BRACELESS_BOX.findall(block):
        return braceless[-1].rstrip(".,;")
    return unboxed(block) if tagged else ""


def _taken_back(block: str) -> bool:
    r"""The words next to the last box deny it: `not \boxed{5}`, `\boxed{5} is wrong`."""
    start, _, end = _last_nest(block)[0]
    before, after = block[max(0, start - MAX_BESIDE) : start], block[end + 1 : end + 1 + MAX_BESIDE]
    return bool(end >= 0 and (_TAKEN_BACK[0].search(before) or _TAKEN_BACK[1].match(after)))


def unboxed(block: str) -> str:
    """The answer of a block without a box: what follows the last lead-in ("the answer is"), or the
    end of a sentence that gives a single value ("so she has 5 left" does not, "the sum is 5" does).
    """
    end = 0
    for match in _LEAD_IN.finditer(block):
        end = match.end()
    said = _SO.sub("", block[end:].strip())
    if end:
        return _SENTENCE_END.split(said, maxsplit=1)[0].strip(" *\n")
    match = _CONCLUSION.search(said) if len(said) < MAX_SENTENCE else None
    if match and not _DOUBT.search(said) and len(_NUMBER.findall(said)) < 2:
        return match.group(1).rstrip(".")
    return said


def follows_format(response: str) -> bool:
    """`<think>reasoning</think><answer>answer</answer>`: each tag once, neither part empty, nothing
    between or after them, at most a word or two (MAX_LEAD_IN characters) before.
    """
    text = until_stop(response).strip()
    tags = (THINK_OPEN, THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE)
    if any(text.count(tag) != 1 for tag in tags):
        return False
    head, _, rest = text.partition(THINK_OPEN)
    reasoning, _, rest = rest.partition(THINK_CLOSE)
    between, _, rest = rest.partition(ANSWER_OPEN)
    answer, _, tail = rest.partition(ANSWER_CLOSE)
    return (
        len(head) <= MAX_LEAD_IN
        and not (between + tail).strip()
        and bool(reasoning.strip())
        and bool(answer.strip())
    )
