"""Images as transformers' processor cuts them; every mode becomes RGB, what is clear is white."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from cpgd_jax.data import images, rows
from cpgd_jax.errors import UserError
from cpgd_jax.sizes import SIZES

PUBLISHED = images.Settings()
MEAN = np.array([0.48145466, 0.4578275, 0.40821073])  # of CLIP's images, per colour
STD = np.array([0.26862954, 0.26130258, 0.27577711])


def encoded(image, form="PNG", **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def noise(width, height, mode="RGB", seed=0):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels).convert(mode)


def pixels(data):
    return np.asarray(images.decode(data))


def test_transparent_lies_on_white():
    layer = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    layer.putpixel((1, 0), (0, 0, 0, 51))  # a fifth of black over white
    assert pixels(encoded(layer)).tolist() == [[[255] * 3, [204] * 3]]
    palette = Image.new("P", (2, 1))
    palette.putpalette([0, 0, 0, 10, 20, 30])
    palette.putpixel((1, 0), 1)
    shown = pixels(encoded(palette, transparency=0))
    assert shown.tolist() == [[[255] * 3, [10, 20, 30]]]
    assert pixels(encoded(palette)).tolist() == [[[0] * 3, [10, 20, 30]]]


@pytest.mark.parametrize("mode", ["L", "1", "LA", "I;16", "CMYK"])
def test_other_modes_become_rgb(mode):
    form = "JPEG" if mode == "CMYK" else "PNG"
    image = Image.new(mode, (40, 30)) if mode == "I;16" else noise(40, 30, "L").convert(mode)
    shown = images.decode(encoded(image, form))
    assert shown.mode == "RGB" and shown.size == (40, 30)


def test_an_image_is_turned_as_its_exif_says():
    image, exif = noise(40, 30), Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    data = encoded(image, exif=exif)
    np.testing.assert_array_equal(pixels(data), np.rot90(np.asarray(image), -1))
    assert images.size(data) == images.decode(data).size == (30, 40)


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_counts(form):
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    data = encoded(frames[0], form, save_all=True, append_images=frames[1:])
    shown = pixels(data).reshape(-1, 3)
    assert (shown[:, 0] > 200).all() and (shown[:, 2] < 50).all()


def test_patches_are_cut_as_by_hand():
    """56 x 84 needs no resizing: neighbours of a 2 x 2 unit follow each other, frames are equal."""
    image = noise(84, 56)
    found = images.patches(image, PUBLISHED)
    assert found.grid == (1, 4, 6)
    scaled = (np.asarray(image) / 255 - MEAN) / STD
    at = 0
    for row in range(2):
        for column in range(3):
            for down in range(2):
                for right in range(2):
                    y, x = (row * 2 + down) * 14, (column * 2 + right) * 14
                    colours = scaled[y : y + 14, x : x + 14].transpose(2, 0, 1)
                    twice = np.stack([colours, colours], axis=1).reshape(-1)
                    np.testing.assert_allclose(found.patch_XC[at], twice, atol=1e-5)
                    at += 1
    assert at == len(found.patch_XC)


@pytest.mark.parametrize("size", [(1, 1), (10, 1999), (57, 300), (700, 30), (199, 3)])
def test_tokens_are_known_from_the_size(size):
    image = noise(*size)
    tokens = images.tokens(images.size(encoded(image)), PUBLISHED)
    t, h, w = images.patches(image, PUBLISHED).grid
    assert tokens == t * h * w // 4 >= 4


def test_the_limits_on_pixels():
    few = PUBLISHED._replace(max_pixels=28 * 28 * 12)
    assert images.tokens((2000, 1500), few) == 12
    assert images.tokens((10, 10), PUBLISHED._replace(min_pixels=28 * 28 * 25)) == 25


def test_too_long_an_image_is_broken():
    with pytest.raises(rows.Broken, match="2010 x 10 is over 1:200") as error:
        images.patches(noise(2010, 10), PUBLISHED)
    assert error.value.kind == "image too long"


def test_a_blank_image_is_white_and_as_large():
    data = encoded(noise(84, 56))
    reader = images.Reader(lambda name: data, PUBLISHED)
    seen, blank = reader("a"), reader._replace(blank=True)("a")
    assert seen.grid == blank.grid
    white = np.repeat((1 - MEAN) / STD, 2 * 14 * 14)
    np.testing.assert_allclose(blank.patch_XC, np.tile(white, (24, 1)), atol=1e-5)


def test_a_model_that_sees_nothing_or_knows_other_ids():
    vision = SIZES["qwen2.5-vl-7b"].vision
    images.check_model(vision, 151_655)
    with pytest.raises(UserError, match="a text model"):
        images.check_model(None, 151_655)
    with pytest.raises(UserError, match="id None in the tokenizer and 151655 in the model"):
        images.check_model(vision, None)
    assert images.settings(vision) == PUBLISHED


def test_a_thumbnail_is_small_and_safe():
    shown = images.thumbnail(encoded(noise(1000, 500)))
    head, _, body = shown.partition(",")
    assert head == "data:image/jpeg;base64"
    image = Image.open(io.BytesIO(base64.b64decode(body)))
    assert image.size == (images.THUMBNAIL, images.THUMBNAIL // 2)


def test_token_counts_of_real_images(shared):
    """Least, median, 90th of 100, most: those of transformers' processor at published limits."""
    files = sorted((shared / "data/mmk12_k12_500/images").iterdir())
    counts = sorted(images.tokens(images.size(file.read_bytes()), PUBLISHED) for file in files)
    assert len(counts) == 500
    assert (counts[0], counts[250], counts[450], counts[-1]) == (4, 42, 874, 3302)


@pytest.mark.slow
def test_real_images_are_those_of_the_processor(shared):
    """Opaque ones: the same grid, and pixels within 2 of 255. All: what the header promises."""
    from transformers.models.qwen2_vl import image_processing_pil_qwen2_vl

    # as Qwen2.5-VL's preprocessor_config.json sets it up
    published = dict(min_pixels=3136, max_pixels=12_845_056)
    processor = image_processing_pil_qwen2_vl.Qwen2VLImageProcessorPil(**published)
    std = np.repeat(STD, 2 * 14 * 14)
    for file in sorted((shared / "data/mmk12_k12_500/images").iterdir()):
        data = file.read_bytes()
        found = images.patches(images.decode(data, file.name), PUBLISHED)
        assert int(np.prod(found.grid)) == 4 * images.tokens(images.size(data), PUBLISHED)
        with Image.open(file) as image:
            clear = image.has_transparency_data and image.convert("RGBA").getextrema()[3][0] < 255
            theirs = processor(images=[image], return_tensors="np")
        assert found.grid == tuple(theirs["image_grid_thw"][0]), file.name
        if not clear:
            apart = np.abs(found.patch_XC - theirs["pixel_values"]) * std * 255
            assert apart.max() <= 2, file.name
