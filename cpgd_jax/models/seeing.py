"""What a model sees of the images of prompts: the vision tower is run once an image.

Compiled: a tower for each power of two of windows, up to `WINDOWS` or the largest image.
"""

import functools

import jax
import numpy as np
from flax import nnx

from cpgd_jax import sharding, vision
from cpgd_jax.errors import UserError
from cpgd_jax.types import Patches, Seen, Sight

WINDOWS = 128  # of images seen together, on each device; 64 patches each in the published models


def look(graphdef, params, tokens, images, mesh=None, keep_patches: bool = False):
    """What is seen of each of Q prompts, a `Seen`, or None where it holds no image.

    tokens: Q arrays of ids. images: Q tuples of `ImagePatches`, or () = none at all. mesh: see
    `rollout.scoring`. keep_patches: for a tower that is trained; features are there in any case.
    UserError: images and their tokens in the prompt do not fit, or a text model.
    """
    config = nnx.merge(graphdef, params).config
    images = images or ((),) * len(tokens)
    if len(images) != len(tokens):
        raise UserError(
            f"images hold {len(images)} tuples for {len(tokens)} prompts: give one each"
        )
    if not any(images):
        return (None,) * len(tokens)
    check_sees(config)
    sizes = config.vision
    for q, (ids, shown) in enumerate(zip(tokens, images, strict=True)):
        vision.check(ids, shown, sizes, f"prompt {q}")
    windows = [[vision.windows(image, sizes) for image in shown] for shown in images]
    features = iter(_features(graphdef, params, [p for of_q in windows for p in of_q], mesh))
    return tuple(
        _seen(ids, shown, of_q, features, sizes, keep_patches) if shown else None
        for ids, shown, of_q in zip(tokens, images, windows, strict=True)
    )


def check_sees(config) -> None:
    """UserError for a model without a vision tower."""
    if config.vision is None:
        raise UserError("images given to a text model: only a Qwen2.5-VL model takes images")


def sight(seen, mask_BT) -> Sight | None:
    """The prompts' `Seen` at their places in padded rows; None where none has an image."""
    example = next((one for one in seen if one is not None), None)
    if example is None:
        return None
    count_BT = np.maximum(np.cumsum(mask_BT, axis=1) - 1, 0).astype(np.int32)
    position_BT3 = np.repeat(count_BT[..., None], 3, axis=-1)
    width, dtype = example.feature_FD.shape[1], example.feature_FD.dtype
    feature_BTD = np.zeros((*mask_BT.shape, width), dtype)
    for b, one in enumerate(seen):
        if one is not None:
            (column_S,) = np.nonzero(mask_BT[b])
            position_BT3[b, column_S] = one.position_S3
            feature_BTD[b, column_S[one.at_F]] = one.feature_FD
    return Sight(position_BT3, feature_BTD)


def _seen(ids, shown, windows: list[Patches], features, sizes, keep_patches: bool) -> Seen:
    return Seen(
        vision.positions(ids, [image.grid for image in shown], sizes),
        np.flatnonzero(np.asarray(ids) == sizes.image_id).astype(np.int32),
        np.concatenate([next(features) for _ in shown]),
        vision.join(windows) if keep_patches else None,
    )


@functools.partial(jax.jit, static_argnames="graphdef")
def see(graphdef, params, patches: Patches):
    """What the tower makes of rows of images, [W, F, D]."""
    return nnx.merge(graphdef, params).see(patches)


def _features(graphdef, params, images: list[Patches], mesh) -> list[np.ndarray]:
    """[F, D] of each image; several are seen together, on each device."""
    mesh = mesh or sharding.make_mesh(devices=jax.devices()[:1])
    ways, found = sharding.row_ways(mesh), [None] * len(images)
    rows = _rows([len(image.frame_N) for image in images])
    for first in range(0, len(rows), ways):
        some = rows[first : first + ways]
        parts = [vision.join([images[i] for i in row]) for row in some]
        N = 1 << (max(len(part.frame_N) for part in parts) - 1).bit_length()
        F = N * parts[0].mask_NY.shape[1]
        parts += [parts[-1]] * (ways - len(parts))
        filled = [vision.fill(part, N, F) for part in parts]
        patches = Patches(*(np.stack(x) for x in zip(*filled, strict=True)))
        with jax.set_mesh(mesh):
            placed = jax.device_put(patches, sharding.batch_sharding(mesh))
            out_WFD = jax.device_get(see(graphdef, params, placed))
        for row, out_FD in zip(some, out_WFD, strict=False):
            ends = np.cumsum([len(images[i].unit_F) for i in row])
            for i, feature_FD in zip(row, np.split(out_FD, ends)[:-1], strict=True):
                found[i] = feature_FD
    return found


def _rows(windows: list[int]) -> list[list[int]]:
    """Images that are seen together: the largest first, up to `WINDOWS` windows, or one image."""
    rows, held = [], WINDOWS
    for i in sorted(range(len(windows)), key=lambda i: -windows[i]):
        if held + windows[i] > WINDOWS:
            rows.append([])
            held = 0
        rows[-1].append(i)
        held += windows[i]
    return rows
