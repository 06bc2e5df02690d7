"""A tiny Qwen2.5-VL, images as noise and prompts that hold them, for tests."""

import numpy as np
import tiny

from cpgd_jax import vision
from cpgd_jax.models import ModelConfig
from cpgd_jax.sizes import Vision
from cpgd_jax.types import ImagePatches

VOCAB, STOP, IMAGE, VIDEO, BEGIN, END = 96, 95, 90, 91, 92, 93
SIZES = Vision(
    num_layers=3,
    hidden_size=32,
    mlp_size=40,
    num_heads=2,
    full_attention=(1,),
    window_size=112,
    patch_size=14,
    temporal_patch_size=2,
    merge_size=2,
    rope_sections=(2, 3, 3),
    image_id=IMAGE,
    other_ids=(VIDEO, BEGIN, END),
)
CONFIG = ModelConfig(VOCAB, 2, 32, 64, 2, 1, 16, 1e4, vision=SIZES)
SMALL, WIDE, TALL = (1, 4, 4), (1, 4, 22), (1, 14, 10)  # one window; whole and cut windows


def random_model(config=CONFIG):
    return tiny.random_model(config)


def image(grid, seed=0):
    rng = np.random.default_rng([seed, *grid])
    shape = (int(np.prod(grid)), 3 * 2 * 14 * 14)
    return ImagePatches(rng.normal(size=shape).astype(np.float32), grid)


def prompt(grids, seed=0):
    """(ids, images): some text before, between and after the images."""
    rng = np.random.default_rng([seed, len(grids)])
    ids = [*rng.integers(1, IMAGE, 3)]
    for grid in grids:
        ids += [BEGIN, *[IMAGE] * vision.tokens(grid, SIZES), END, *rng.integers(1, IMAGE, 2)]
    return np.array(ids), tuple(image(grid, seed + n) for n, grid in enumerate(grids))


def padded(rows, side="right"):
    """(token_BT, mask_BT) of rows of ids."""
    T = max(map(len, rows))
    token_BT, mask_BT = np.zeros((len(rows), T), np.int32), np.zeros((len(rows), T), bool)
    for b, ids in enumerate(rows):
        at = slice(0, len(ids)) if side == "right" else slice(T - len(ids), T)
        token_BT[b, at], mask_BT[b, at] = ids, True
    return token_BT, mask_BT


def processed(images):
    """As the processor gives the images of all rows together; None = no image."""
    shown = [one for row in images for one in row]
    if not shown:
        return None
    return {
        "pixel_values": np.concatenate([one.patch_XC for one in shown]),
        "image_grid_thw": np.array([one.grid for one in shown]),
    }
