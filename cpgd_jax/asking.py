"""Items of benchmarks as a model's prompts: text in the chat template, images cut for its tower."""

import json
from pathlib import Path
from typing import NamedTuple

from cpgd_jax.benchmarks import reading
from cpgd_jax.benchmarks.records import Item
from cpgd_jax.data import images, rows
from cpgd_jax.data.tokenizer import Tokenizer
from cpgd_jax.errors import UserError
from cpgd_jax.sizes import Vision
from cpgd_jax.types import ImagePatches


class Prompt(NamedTuple):
    """An item as the model reads it; its images are cut only when it is asked."""

    tokens: list[int]
    images: tuple[str | bytes, ...]


class Asker(NamedTuple):
    """What makes the prompts of one benchmark."""

    tokenizer: Tokenizer
    system_prompt: str  # a key of data.prompts.SYSTEM_PROMPTS
    root: Path  # where image paths start
    max_tokens: int
    settings: images.Settings | None  # None: the text alone is asked

    def prompts(self, items) -> tuple[dict[str, Prompt], dict[str, str]]:
        """({item id: its prompt}, {item id: why it can't be asked})."""
        prompts, errors = {}, {}
        for item in items:
            try:
                prompts[item.id] = self.prompt(item)
            except rows.Broken as error:
                errors[item.id] = error.kind
        return prompts, errors

    def prompt(self, item: Item) -> Prompt:
        """Of an image the header is read. Raises rows.Broken."""
        shown = item.images if self.settings else ()
        if not (shown or item.prompt.strip()):
            raise rows.Broken("no text", "its question is an image")
        sizes = [images.size(reading.image_bytes(image, self.root)) for image in shown]
        counts = tuple(images.tokens(size, self.settings) for size in sizes)
        tokens = self.tokenizer.encode_prompt(item.prompt, self.system_prompt, counts)
        if len(tokens) > self.max_tokens:
            raise rows.Broken("prompt too long", f"{len(tokens)} tokens")
        return Prompt(tokens, shown)

    def patches(self, prompt: Prompt) -> tuple[ImagePatches, ...]:
        """The prompt's images. Raises rows.Broken: one that can't be decoded after all."""
        found = (images.decode(reading.image_bytes(one, self.root)) for one in prompt.images)
        return tuple(images.patches(image, self.settings) for image in found)


def check_sees(loaded, vision: Vision | None, image_id: int | None) -> None:
    """UserError: items have images, and the model or its tokenizer knows none."""
    first = next((i.id for found in loaded.values() for i in found.items if i.images), None)
    if first is None:
        return
    if vision is None:
        raise UserError(
            f"item {first!r} has an image, which this model can't see: give a Qwen2.5-VL, or"
            " --without_images to ask the text alone"
        )
    if image_id != vision.image_id:
        raise UserError(
            f"<|image_pad|> has the id {image_id} in the tokenizer and {vision.image_id} in the"
            " model: give the tokenizer that it was trained with"
        )


def pixels(folder: str | Path) -> tuple[int, int]:
    """(fewest, most) pixels of an image, of a model folder's preprocessor_config.json; else the
    published ones. UserError: the file can't be read."""
    default = images.Settings()
    path = Path(folder) / "preprocessor_config.json"
    if not path.is_file():
        return default.min_pixels, default.max_pixels
    try:
        found = json.loads(path.read_text())
        size = found.get("size") or {}
        least = found.get("min_pixels") or size.get("shortest_edge") or default.min_pixels
        most = found.get("max_pixels") or size.get("longest_edge") or default.max_pixels
        return int(least), int(most)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{str(path)!r} cannot be read: {error}") from error
