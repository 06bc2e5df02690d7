"""A generated task: sums and differences of two or three numbers, imperfectly demonstrated.

Training and held-out problems are disjoint by a hash of the problem's text. Everything is a pure
function of (seed, position), so a resumed run reads what the uninterrupted one would have read.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from cpgd_jax.config import Arithmetic
from cpgd_jax.errors import UserError
from cpgd_jax.types import Example

MOST_REPEATS = 1000  # draws without a new held-out problem before there are said to be no more


@dataclass(frozen=True)
class ArithmeticSource:
    config: Arithmetic
    seed: int

    def train(self, position: int) -> Example:
        """The training stream's example number `position`."""
        return self._draw("train", position)

    def held_out(self, count: int) -> list[Example]:
        """`count` distinct held-out problems, the same for every seed of a run."""
        chosen: dict[str, Example] = {}
        source, position, last_new = ArithmeticSource(self.config, 0), 0, 0
        while len(chosen) < count and position - last_new < MOST_REPEATS:
            example = source._draw("held_out", position)
            position += 1
            if example.prompt not in chosen:
                chosen[example.prompt], last_new = example, position
        if len(chosen) == count:
            return list(chosen.values())
        raise UserError(
            f"config.eval.problems is {count}, but the arithmetic task yields only {len(chosen)}"
            " distinct held-out problems: lower it, or raise data.arithmetic.max_operand or"
            " held_out_frac"
        )

    def longest(self) -> list[Example]:
        """The longest problem, and the longest demonstration: one that slips."""
        self.train(0)  # UserError if there are none
        most, more = self.config.max_operand, self.config.three_operand_frac > 0
        operands, signs = [most] * (3 if more else 2), [1] * (2 if more else 1)
        totals = [most, 2 * most, 3 * most][: len(operands)]
        steps = [f"{a}+{most}={b}" for a, b in zip(totals, totals[1:], strict=False)]
        target = _tagged(", ".join(steps), totals[-1] + 1)
        question = _expression(operands, signs) + "=?"
        return [Example(question, question, str(sum(operands)), target)]

    def fetch(self, reference: str) -> bytes:
        raise ValueError(f"no images here: {reference!r}")

    def _draw(self, split: str, position: int) -> Example:
        rng = np.random.default_rng([self.seed, position, split == "held_out"])
        for _ in range(10_000):
            operands, signs = self._problem(rng)
            question = _expression(operands, signs) + "=?"
            if self._is_held_out(question) == (split == "held_out"):
                return self._example(rng, question, operands, signs)
        raise UserError(
            f"config.data.arithmetic.held_out_frac {self.config.held_out_frac} leaves no {split}"
            " problems"
        )

    def _problem(self, rng) -> tuple[list[int], list[int]]:
        """Operands and signs such that no intermediate result is negative."""
        count = 3 if rng.random() < self.config.three_operand_frac else 2
        total = int(rng.integers(0, self.config.max_operand + 1))
        operands, signs = [total], []
        for _ in range(count - 1):
            operand = int(rng.integers(0, self.config.max_operand + 1))
            sign = 1 if rng.random() < 0.5 or operand > total else -1
            total += sign * operand
            operands.append(operand)
            signs.append(sign)
        return operands, signs

    def _is_held_out(self, question: str) -> bool:
        digest = hashlib.blake2b(question.encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") < self.config.held_out_frac * 2**32

    def _example(self, rng, question, operands, signs) -> Example:
        gold = operands[0] + sum(s * o for s, o in zip(signs, operands[1:], strict=True))
        target = self._demonstration(rng, operands, signs)
        return Example(id=question, prompt=question, gold=str(gold), target=target)

    def _demonstration(self, rng, operands, signs) -> str:
        """Right reasoning; but `slip_frac` answer one too many, `bad_format_frac` lack tags."""
        total, steps = operands[0], []
        for sign, operand in zip(signs, operands[1:], strict=True):
            result = total + sign * operand
            steps.append(f"{_expression([total, operand], [sign])}={result}")
            total = result
        reasoning, answer = ", ".join(steps), total + (rng.random() < self.config.slip_frac)
        if rng.random() < self.config.bad_format_frac:
            choices = (
                f"<answer>\\boxed{{{answer}}}</answer>",
                f"<think>{reasoning}</think>{answer}",
            )
            return choices[int(rng.integers(2))]
        return _tagged(reasoning, answer)


def _tagged(reasoning: str, total: int) -> str:
    return f"<think>{reasoning}</think><answer>\\boxed{{{total}}}</answer>"


def _expression(operands, signs) -> str:
    terms = [str(operands[0])]
    terms += [f"{'+' if s > 0 else '-'}{o}" for s, o in zip(signs, operands[1:], strict=True)]
    return "".join(terms)
