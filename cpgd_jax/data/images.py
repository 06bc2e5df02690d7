"""Encoded images -> what Qwen2-VL's processor makes of them, by transformers, without torch.

Rules: an image is turned as its EXIF data says; of an animated one the first frame counts; what is
transparent lies on white; every mode becomes RGB. What cannot be used raises `rows.Broken`.
"""

import base64
import functools
import io
import os
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cpgd_jax.data.rows import Broken
from cpgd_jax.errors import UserError
from cpgd_jax.sizes import Vision
from cpgd_jax.types import ImagePatches

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # others may start programs or read other files
MOST_ASPECT = 200  # longer over shorter side, as the processor has it
MIN_PIXELS, MAX_PIXELS = 56 * 56, 28 * 28 * 16_384
THUMBNAIL = 192  # pixels a side at most


class Settings(NamedTuple):
    """How images are cut; the defaults are those published with Qwen2.5-VL."""

    min_pixels: int = MIN_PIXELS
    max_pixels: int = MAX_PIXELS
    patch_size: int = 14
    temporal_patch_size: int = 2
    merge_size: int = 2

    @property
    def unit(self) -> int:
        """Pixels a side of what becomes one token."""
        return self.patch_size * self.merge_size


class Reader(NamedTuple):
    """Images of a source, as its model takes them."""

    fetch: Callable[[str], bytes]  # the encoded image of a reference in an Example; raises Broken
    settings: Settings
    blank: bool = False  # white images of the same sizes instead: what does the text alone give?

    def __call__(self, reference: str) -> ImagePatches:
        image = decode(self.fetch(reference), reference)
        if self.blank:
            image.paste("white", (0, 0, *image.size))
        return patches(image, self.settings)

    def tokens(self, reference: str) -> int:
        """Of a prompt, without decoding the image."""
        return tokens(size(self.fetch(reference), reference), self.settings)


def settings(vision: Vision, min_pixels: int = MIN_PIXELS, max_pixels: int = MAX_PIXELS):
    """As a model takes images."""
    sides = vision.patch_size, vision.temporal_patch_size, vision.merge_size
    return Settings(min_pixels, max_pixels, *sides)


def check_model(vision: Vision | None, image_id: int | None) -> None:
    """UserError: a model that sees no images, or knows them by another id than the tokenizer."""
    if vision is None:
        raise UserError(
            "there are images, and the model is a text model: give a Qwen2.5-VL (a run:"
            " config.model.size, init_from or vision)"
        )
    if image_id != vision.image_id:
        raise UserError(
            f"<|image_pad|> has the id {image_id} in the tokenizer and {vision.image_id} in the"
            " model (image_id of its vision): give the tokenizer it was trained with"
        )


def thumbnail(data: bytes, name: str = "image") -> str:
    """A small copy for a page, as a data: address. Raises Broken."""
    image, file = decode(data, name), io.BytesIO()
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    image.save(file, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()


def decode(data: bytes, name: str = "image"):
    """The RGB `PIL.Image` of an encoded image, every pixel read. Raises Broken, by `name`."""
    from PIL import ImageOps

    try:
        with _open(data) as image:
            image.verify()  # checksums
        with _open(data) as image:
            image.seek(0)
            image.load()
            return _on_white(ImageOps.exif_transpose(image))
    except Broken:
        raise
    except Exception as error:  # Pillow raises what its decoders come upon
        raise _corrupt(name, error) from error


def size(data: bytes, name: str = "image") -> tuple[int, int]:
    """(width, height) as it is shown, of its header alone. Raises Broken."""
    try:
        with _open(data) as image:
            turned = image.getexif().get(0x0112, 1) in (5, 6, 7, 8)  # Orientation
            return image.size[::-1] if turned else image.size
    except Broken:
        raise
    except Exception as error:
        raise _corrupt(name, error) from error


def resized(width_height: tuple[int, int], settings: Settings) -> tuple[int, int]:
    """(width, height) in pixels after resizing; the processor's own rule. Raises Broken."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    width, height = width_height
    if max(width, height) > MOST_ASPECT * min(width, height):
        raise Broken("image too long", f"an image of {width} x {height} is over 1:{MOST_ASPECT}")
    limits = settings.min_pixels, settings.max_pixels
    height, width = smart_resize(height, width, settings.unit, *limits)
    return width, height


def tokens(width_height: tuple[int, int], settings: Settings) -> int:
    """Of a prompt that an image of this size takes. Raises Broken."""
    width, height = resized(width_height, settings)
    return width * height // settings.unit**2


def patches(image, settings: Settings) -> ImagePatches:
    """Of a `PIL.Image`. Raises Broken where one side is over MOST_ASPECT times the other."""
    resized(image.size, settings)
    found = _processor(settings)(images=[image], return_tensors="np")
    grid = tuple(int(n) for n in found["image_grid_thw"][0])
    return ImagePatches(np.asarray(found["pixel_values"], np.float32), grid)


@functools.cache
def _processor(settings: Settings):
    # transformers advises to install torch, which is not needed here
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

    return image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(**settings._asdict())


def _open(data: bytes):
    """A `PIL.Image` whose pixels are not yet read. Raises Broken for a decompression bomb."""
    from PIL import Image

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # ours is the lower limit
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    if image.width * image.height > Image.MAX_IMAGE_PIXELS:
        raise ValueError(f"{image.width} x {image.height} pixels are too many")
    return image


def _on_white(image):
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    layer = image.convert("RGBA")
    ground = Image.new("RGBA", layer.size, "white")
    return Image.alpha_composite(ground, layer).convert("RGB")


def _corrupt(name: str, error: Exception) -> Broken:
    detail = f"image {name!r} is no sound {', '.join(FORMATS)} file ({error})"
    return Broken("image corrupt", detail)
