"""Images on the host: the windows that the vision tower attends in, places of tokens for M-RoPE.

A unit is what becomes one token of the prompt: merge_size x merge_size patches, which the processor
puts side by side.
"""

import numpy as np

from cpgd_jax.errors import UserError
from cpgd_jax.sizes import Vision
from cpgd_jax.types import ImagePatches, Patches


def never_sampled(vision: Vision) -> tuple[int, ...]:
    """Ids that stand for images and what surrounds them."""
    return (vision.image_id, *vision.other_ids)


def units(grid, vision: Vision) -> tuple[int, int, int]:
    """(frames, rows, columns) of an image's units."""
    t, h, w = map(int, grid)
    return t, h // vision.merge_size, w // vision.merge_size


def tokens(grid, vision: Vision) -> int:
    """Of a prompt that an image takes."""
    return int(np.prod(units(grid, vision)))


def check(token_S, images, vision: Vision, name: str) -> None:
    """UserError unless the prompt holds the images' tokens, and text after them."""
    for n, image in enumerate(images):
        t, h, w = image.grid
        values = 3 * vision.temporal_patch_size * vision.patch_size**2
        whole = h % vision.merge_size == w % vision.merge_size == 0
        if image.patch_XC.shape != (t * h * w, values) or not whole:
            raise UserError(
                f"image {n} of {name}: patches {image.patch_XC.shape} do not fit its grid"
                f" {t} x {h} x {w} of patches of {values} values: give the processor's own"
            )
    found = int(np.sum(np.asarray(token_S) == vision.image_id))
    wanted = sum(tokens(image.grid, vision) for image in images)
    if found != wanted:
        raise UserError(
            f"{name} holds {found} image tokens (id {vision.image_id}), its {len(images)} images"
            f" take {wanted}: repeat the id once for each unit of {vision.merge_size} x"
            f" {vision.merge_size} patches"
        )
    if len(token_S) and token_S[-1] == vision.image_id:
        raise UserError(f"{name} ends in an image: put text after it")


def positions(token_S, grids, vision: Vision) -> np.ndarray:
    """[S, 3] int32: time, row and column of each token of a prompt (M-RoPE, arXiv 2409.12191).

    Text counts on in all three; the units of an image count from where the text has come to, and
    the text after it goes on behind the largest of rows and columns.
    """
    is_image_S = np.asarray(token_S) == vision.image_id
    position_S3 = np.zeros((len(token_S), 3), np.int32)
    done = place = 0
    for grid in grids:
        start = done + int(np.argmax(is_image_S[done:]))
        position_S3[done:start] = place + np.arange(start - done)[:, None]
        place += start - done
        size = units(grid, vision)
        done = start + int(np.prod(size))
        position_S3[start:done] = place + np.indices(size).reshape(3, -1).T
        place += max(size[1:])
    position_S3[done:] = place + np.arange(len(token_S) - done)[:, None]
    return position_S3


def windows(image: ImagePatches, vision: Vision) -> Patches:
    """An image's patches window by window; its F units in the prompt's order."""
    merge = vision.merge_size
    side = vision.window_size // vision.patch_size // merge  # of a window, in units
    _, rows, columns = size = units(image.grid, vision)
    frame_F, row_F, column_F = np.indices(size).reshape(3, -1)
    across, down = -(-columns // side), -(-rows // side)
    window_F = (frame_F * down + row_F // side) * across + column_F // side
    order_F = np.argsort(window_F, kind="stable")
    sorted_F = window_F[order_F]
    unit_F = np.empty(len(window_F), np.int32)
    nth_F = np.arange(len(sorted_F)) - np.searchsorted(sorted_F, sorted_F)
    unit_F[order_F] = sorted_F * side**2 + nth_F
    N, M = size[0] * down * across, merge**2
    unit_row_M, unit_column_M = np.divmod(np.arange(M), merge)
    patch_UMC = np.zeros((N * side**2, M, image.patch_XC.shape[1]), np.float32)
    patch_UMC[unit_F] = image.patch_XC.reshape(-1, M, image.patch_XC.shape[1])
    position_UM2 = np.zeros((N * side**2, M, 2), np.int32)
    position_UM2[unit_F, :, 0] = row_F[:, None] * merge + unit_row_M
    position_UM2[unit_F, :, 1] = column_F[:, None] * merge + unit_column_M
    mask_UM = np.zeros((N * side**2, M), bool)
    mask_UM[unit_F] = True
    return Patches(
        patch_UMC.reshape(N, side**2 * M, -1),
        position_UM2.reshape(N, -1, 2),
        mask_UM.reshape(N, -1),
        np.repeat(np.arange(size[0], dtype=np.int32), down * across),
        unit_F,
    )


def join(parts: list[Patches]) -> Patches:
    """The windows of several images as those of one row."""
    frames, outputs, shifted = 0, 0, []
    for part in parts:
        shifted.append(part._replace(frame_N=part.frame_N + frames, unit_F=part.unit_F + outputs))
        frames += int(part.frame_N.max()) + 1
        patches_a_unit = part.mask_NY.sum() // len(part.unit_F)
        outputs += part.mask_NY.size // patches_a_unit
    return Patches(*(np.concatenate(x) for x in zip(*shifted, strict=True)))


def fill(patches: Patches, windows: int, tokens: int) -> Patches:
    """Empty windows and unused tokens behind it, up to so many."""
    more = windows - len(patches.frame_N)

    def longer(x, count, value=0):
        return np.pad(x, [(0, count)] + [(0, 0)] * (x.ndim - 1), constant_values=value)

    return Patches(
        *(longer(x, more) for x in patches[:3]),
        longer(patches.frame_N, more, -1),
        longer(patches.unit_F, tokens - len(patches.unit_F)),
    )


def features(shown, slots: int) -> np.ndarray:
    """[M, W, slots, D]: features at their tokens' slots; shown: M lists of W lists of (first slot,
    `Seen`), of the prompts of each packed row that have images.
    """
    width = _first(shown).feature_FD.shape[1]
    shape = (len(shown), len(shown[0]), slots, width)
    feature_MWPD = np.zeros(shape, _first(shown).feature_FD.dtype)
    for m, rows in enumerate(shown):
        for w, row in enumerate(rows):
            for start, seen in row:
                feature_MWPD[m, w, start + seen.at_F] = seen.feature_FD
    return feature_MWPD


def patches(shown, slots: int) -> Patches:
    """The patches of each packed row, with leading axes M and W, and F = slots; shown: likewise."""
    nothing = Patches(*(x[:0] for x in _first(shown).patches))
    joined = [
        [join([seen.patches for _, seen in row]) if row else nothing for row in rows]
        for rows in shown
    ]
    most = max(len(part.frame_N) for rows in joined for part in rows)
    N = 1 << (most - 1).bit_length()

    def filled(part, row):
        unit_P = np.zeros(slots, np.int32)
        for start, seen in row:
            n = len(seen.at_F)
            unit_P[start + seen.at_F], rest = part.unit_F[:n], part.unit_F[n:]
            part = part._replace(unit_F=rest)
        return fill(part._replace(unit_F=unit_P), N, slots)

    rows = [
        [filled(*x) for x in zip(*pair, strict=True)] for pair in zip(joined, shown, strict=True)
    ]
    stacked = [[np.stack(x) for x in zip(*row, strict=True)] for row in rows]
    return Patches(*(np.stack(x) for x in zip(*stacked, strict=True)))


def _first(shown):
    return next(seen for rows in shown for row in rows for _, seen in row)
