"""Two small tasks on token ids, whose rewards are computed on the device.

`sums`: `3+8=` -> `<think>3+8=11</think><answer>11</answer>`. `chain`: four numbers, reasoning by
running sums; its demonstrations hold short well-formed guesses, so the format reward can be farmed
by not reasoning. The rule on ids pays what `cpgd_jax.rewards` pays on the text, except that an
answer must be written in digits (the verifier also takes `5+6` for 11).
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
STOP, THINK, THINK_END, ANSWER, ANSWER_END = range(5)
ZERO = 5  # id of the digit 0; the other digits follow
PLUS, EQUALS, COMMA = range(ZERO + 10, ZERO + 13)
VOCABULARY = ("<|im_end|>", *TAGS, *"0123456789", "+", "=", ",")
MAX_LEAD_IN = 16  # characters before the reasoning that are no fault of format
MAX_DIGITS = 3  # of an answer


@dataclasses.dataclass(frozen=True)
class Task:
    """Sums of `operands` digits, and how imperfectly they are demonstrated."""

    name: str
    operands: int
    max_len: int  # tokens of a response
    slip: float  # demonstrations: share whose answer is one too many
    bad_format: float  # share (of those that reason) without one of the tags
    guess: float  # share that guess without reasoning, well-formed

    @property
    def prompt_len(self) -> int:
        return 2 * self.operands


TASKS = {
    "sums": Task("sums", operands=2, max_len=18, slip=0.5, bad_format=0.3, guess=0.0),
    "chain": Task("chain", operands=4, max_len=28, slip=0.2, bad_format=0.6, guess=0.4),
}


def prompts(task: Task, operand_QK):
    """(prompt_QS, gold_Q) of digits [Q, K]: `d+d+…=`."""
    plus_QK = jnp.full_like(operand_QK, PLUS).at[:, -1].set(EQUALS)
    pair_QK2 = jnp.stack([operand_QK + ZERO, plus_QK], axis=-1)
    return pair_QK2.reshape(len(operand_QK), task.prompt_len), operand_QK.sum(axis=1)


def rewards(response_BT, mask_BT, gold_B):
    """(accuracy_B, format_B), 0 or 1. mask_BT: True up to the stop token, which it includes."""
    id_BT = jnp.where(mask_BT, response_BT, STOP)
    return _accuracy(id_BT, gold_B).astype(jnp.float32), _format(id_BT).astype(jnp.float32)


def _format(id_BT):
    """One reasoning block, then one answer block, neither empty, nothing between or after."""
    end_B = (id_BT != STOP).sum(axis=1)
    once_B = jnp.ones(len(id_BT), bool)
    for tag in (THINK, THINK_END, ANSWER, ANSWER_END):
        once_B &= (id_BT == tag).sum(axis=1) == 1
    think_B, think_end_B, answer_B, answer_end_B = (
        jnp.argmax(id_BT == tag, axis=1) for tag in (THINK, THINK_END, ANSWER, ANSWER_END)
    )
    filled_B = (think_end_B > think_B + 1) & (answer_end_B > answer_B + 1)
    joined_B = (answer_B == think_end_B + 1) & (answer_end_B == end_B - 1)
    return once_B & filled_B & joined_B & (think_B <= MAX_LEAD_IN)


def _accuracy(id_BT, gold_B):
    """The last answer block after the last end of reasoning is the gold, in digits."""
    T = id_BT.shape[1]
    at_1T = jnp.arange(T)[None]

    def last(where_BT):
        return jnp.where(where_BT, at_1T, -1).max(axis=1, keepdims=True)

    def first(where_BT):
        return jnp.where(where_BT, at_1T, T).min(axis=1, keepdims=True)

    close_B1 = last(id_BT == THINK_END)
    cut_off_B1 = (close_B1 < 0) & (id_BT == THINK).any(axis=1, keepdims=True)
    stop_B1 = first((id_BT == THINK) & (at_1T > close_B1))
    seen_BT = (at_1T > close_B1) & (at_1T < stop_B1)
    start_B1 = last(seen_BT & (id_BT == ANSWER))
    end_B1 = first(seen_BT & (id_BT == ANSWER_END) & (at_1T > start_B1))
    block_BT = (at_1T > start_B1) & (at_1T < end_B1)
    digit_BT = id_BT - ZERO
    length_B1 = end_B1 - start_B1 - 1
    written_B1 = (start_B1 >= 0) & (end_B1 < T) & (length_B1 >= 1) & (length_B1 <= MAX_DIGITS)
    digits_BT = (digit_BT >= 0) & (digit_BT <= 9)
    place_BT = 10 ** jnp.clip(end_B1 - 1 - at_1T, 0, MAX_DIGITS)
    value_B = jnp.where(block_BT & digits_BT, digit_BT * place_BT, 0).sum(axis=1)
    sound_B = (written_B1 & ~cut_off_B1)[:, 0] & (digits_BT | ~block_BT).all(axis=1)
    return sound_B & (value_B == gold_B)


def demonstrations(task: Task, count: int, seed: int):
    """NumPy (token_BU, mask_BU): prompt and response; True where a token is to be learnt."""
    rng = np.random.default_rng([seed, 1])
    operand_BK = rng.integers(0, 10, (count, task.operands))
    prompt_BS = np.asarray(prompts(task, jnp.asarray(operand_BK))[0])
    token_BU = np.zeros((count, task.prompt_len + task.max_len), np.int32)
    mask_BU = np.zeros(token_BU.shape, bool)
    for row, mask, prompt, operands in zip(token_BU, mask_BU, prompt_BS, operand_BK, strict=True):
        ids = [*_demonstration(task, rng, operands.tolist()), STOP]
        row[: task.prompt_len] = prompt
        row[task.prompt_len : task.prompt_len + len(ids)] = ids
        mask[task.prompt_len : task.prompt_len + len(ids)] = True
    return token_BU, mask_BU


def encode(text: str) -> list[int]:
    """Ids of a text of the vocabulary."""
    ids = []
    while text:
        id = next(i for i, word in enumerate(VOCABULARY) if text.startswith(word))
        ids.append(id)
        text = text[len(VOCABULARY[id]) :]
    return ids


def decode(ids) -> str:
    """The text up to, and without, the stop token."""
    words = [VOCABULARY[int(i)] for i in ids]
    return "".join(words[: words.index("<|im_end|>")] if "<|im_end|>" in words else words)


def _demonstration(task: Task, rng, operands: list[int]) -> list[int]:
    if rng.random() < task.guess:
        guess = int(rng.integers(0, 9 * task.operands + 1))
        return encode(f"<think>{operands[0]}</think><answer>{guess}</answer>")
    answer = sum(operands) + int(rng.random() < task.slip)
    sums = [sum(operands[: k + 1]) for k in range(task.operands)]
    reasoning = ",".join(map(str, sums))
    if task.operands == 2:
        reasoning = f"{operands[0]}+{operands[1]}={sums[-1]}"
    pieces = ["<think>", reasoning, "</think>", "<answer>", str(answer), "</answer>"]
    if rng.random() < task.bad_format:
        pieces.pop((0, 5)[int(rng.integers(2))] if rng.random() < 0.9 else 2)
    return encode("".join(pieces))
