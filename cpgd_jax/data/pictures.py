"""A generated task for a model that sees: count the shapes of a kind, imperfectly demonstrated.

A picture of 56 x 56 pixels holds 4 x 4 places, each empty or with a shape. A demonstration counts
by quarters of the picture, each of which is one token of a Qwen2.5-VL. Training and held-out
pictures are disjoint by a hash, and everything is a pure function of (seed, position).
"""

import hashlib
import io
import re
from dataclasses import dataclass

import numpy as np

from cpgd_jax.config import Pictures
from cpgd_jax.data.rows import Broken
from cpgd_jax.errors import UserError
from cpgd_jax.types import Example

NAMES = {"o": "circles", "s": "squares", "x": "crosses"}
EMPTY = "."
SIDE, CELL = 4, 14  # places a side, pixels a side of a place
EMPTY_FRAC = 0.5
# What a picture is drawn from: its places row by row, and a seed of colours, sizes and offsets.
_RECIPE = re.compile(rf"(?P<cells>[{''.join(NAMES)}{EMPTY}]{{{SIDE**2}}}):(?P<seed>[0-9]{{1,9}})")


@dataclass(frozen=True)
class PictureSource:
    config: Pictures
    seed: int

    def train(self, position: int) -> Example:
        """The training stream's example number `position`."""
        return self._draw("train", position)

    def held_out(self, count: int) -> list[Example]:
        """`count` distinct held-out problems, the same for every seed of a run."""
        source, chosen, position = PictureSource(self.config, 0), {}, 0
        while len(chosen) < count:
            example = source._draw("held_out", position)
            chosen.setdefault(example.id, example)
            position += 1
        return list(chosen.values())

    def longest(self) -> list[Example]:
        """All of them are equally long, up to a digit."""
        full = "o" * SIDE**2
        target = _tagged(_quarters(full, "o"), SIDE**2 + 1)
        return [Example(full, f"{NAMES['o']}=?", str(SIDE**2), target, (f"{full}:0",))]

    def fetch(self, reference: str) -> bytes:
        """The picture as a PNG. Raises Broken."""
        return draw(reference)

    def _draw(self, split: str, position: int) -> Example:
        rng = np.random.default_rng([self.seed, position, split == "held_out"])
        for _ in range(10_000):
            kind = str(rng.choice(list(NAMES)))
            share = (1 - EMPTY_FRAC) / len(NAMES)
            chances = [share] * len(NAMES) + [EMPTY_FRAC]
            cells = "".join(rng.choice([*NAMES, EMPTY], SIDE**2, p=chances))
            if self._is_held_out(cells) == (split == "held_out"):
                return self._example(rng, cells, kind)
        raise UserError(
            f"config.data.pictures.held_out_frac {self.config.held_out_frac} leaves no {split}"
            " problems"
        )

    def _is_held_out(self, cells: str) -> bool:
        digest = hashlib.blake2b(cells.encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big") < self.config.held_out_frac * 2**32

    def _example(self, rng, cells: str, kind: str) -> Example:
        recipe = f"{cells}:{int(rng.integers(10**6))}"
        target = self._demonstration(rng, cells, kind)
        gold = str(cells.count(kind))
        return Example(f"{kind} {recipe}", f"{NAMES[kind]}=?", gold, target, (recipe,))

    def _demonstration(self, rng, cells: str, kind: str) -> str:
        """Right counts; but `slip_frac` answer one too many, `bad_format_frac` lack tags."""
        counts, answer = _quarters(cells, kind), cells.count(kind)
        answer += int(rng.random() < self.config.slip_frac)
        if rng.random() >= self.config.bad_format_frac:
            return _tagged(counts, answer)
        return (f"<answer>\\boxed{{{answer}}}</answer>", f"<think>{counts}</think>{answer}")[
            int(rng.integers(2))
        ]


def draw(recipe: str) -> bytes:
    """The PNG of a picture. Raises Broken: it is no recipe."""
    from PIL import Image, ImageDraw

    match = _RECIPE.fullmatch(recipe)
    if not match:
        raise Broken("image missing", f"{recipe[:60]!r} is no picture of the task")
    rng = np.random.default_rng(int(match["seed"]))
    image = Image.new("RGB", (SIDE * CELL, SIDE * CELL), "white")
    pen, file = ImageDraw.Draw(image), io.BytesIO()
    for place, kind in enumerate(match["cells"]):
        radius, (dx, dy) = int(rng.integers(4, 6)), rng.integers(-1, 2, 2)
        colour = tuple(int(v) for v in rng.integers(0, 140, 3))
        x, y = place % SIDE * CELL + CELL // 2 + int(dx), place // SIDE * CELL + CELL // 2 + int(dy)
        _shape(pen, kind, (x - radius, y - radius, x + radius, y + radius), colour)
    image.save(file, "PNG")
    return file.getvalue()


def _shape(pen, kind: str, box, colour) -> None:
    left, top, right, bottom = box
    if kind == "o":
        pen.ellipse(box, outline=colour, width=2)
    elif kind == "s":
        pen.rectangle(box, fill=colour)
    elif kind == "x":
        left, top, right, bottom = left + 1, top + 1, right - 1, bottom - 1  # a line has width
        pen.line((left, top, right, bottom), fill=colour, width=2)
        pen.line((left, bottom, right, top), fill=colour, width=2)


def _quarters(cells: str, kind: str) -> str:
    """Counts of the quarters of the picture: "1+0+2+1"."""
    found = np.array([cell == kind for cell in cells]).reshape(2, SIDE // 2, 2, SIDE // 2)
    return "+".join(str(n) for n in found.sum(axis=(1, 3)).reshape(-1))


def _tagged(counts: str, answer: int) -> str:
    return f"<think>{counts}</think><answer>\\boxed{{{answer}}}</answer>"
