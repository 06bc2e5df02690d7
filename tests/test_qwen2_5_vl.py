"""Qwen2.5-VL without an oracle: places, windows, mixed batches, rollouts with images."""

import jax
import numpy as np
import pytest
import tiny
import vl
from flax import nnx

from cpgd_jax import models, vision
from cpgd_jax.errors import UserError
from cpgd_jax.models import seeing
from cpgd_jax.rollout import generate

GRIDS = [[vl.WIDE], [], [vl.SMALL, vl.TALL], [vl.SMALL]]


@pytest.fixture(scope="module")
def model():
    return vl.random_model()


@pytest.fixture(scope="module")
def prompts():
    """(rows of ids, images of each)."""
    made = [vl.prompt(grids, seed) for seed, grids in enumerate(GRIDS)]
    return [ids for ids, _ in made], [images for _, images in made]


def test_places_by_hand():
    image = [vl.IMAGE]
    ids = [1, 2, *image * 6, 3, *image * 2, 4]
    expected = [[0, 0, 0], [1, 1, 1]]
    expected += [[2, row, column] for row in (2, 3) for column in (2, 3, 4)]  # 2 x 3 units
    expected += [[5, 5, 5], [6, 6, 6], [6, 7, 6], [8, 8, 8]]  # behind 3 columns; 2 rows
    found = vision.positions(ids, [(1, 4, 6), (1, 4, 2)], vl.SIZES)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("grid", [vl.SMALL, vl.WIDE, vl.TALL, (1, 18, 2), (2, 6, 10)])
def test_windows_hold_each_patch_once(grid):
    """The processor's order is (frame, unit row, unit column, row, column) of a 2 x 2 unit."""
    image = vl.image(grid)
    p = vision.windows(image, vl.SIZES)
    t, h, w = grid
    order = np.indices((t, h // 2, w // 2, 2, 2)).reshape(5, -1)
    row_X, column_X = order[1] * 2 + order[3], order[2] * 2 + order[4]
    window_N = [
        tuple(np.unique(p.position_NY2[n][p.mask_NY[n]] // 8, axis=0)) for n in range(len(p[0]))
    ]
    assert all(len(of) == 1 for of in window_N)  # 8 x 8 patches each
    slot_FM = p.unit_F[:, None] * 4 + np.arange(4)
    flat = [x.reshape(p.mask_NY.size, *x.shape[2:]) for x in p[:3]]
    patch, position, mask = (x[slot_FM.reshape(-1)] for x in flat)
    np.testing.assert_array_equal(patch, image.patch_XC)
    np.testing.assert_array_equal(position, np.stack([row_X, column_X], axis=1))
    assert mask.all() and p.mask_NY.sum() == t * h * w
    frame = np.repeat(p.frame_N, p.mask_NY.shape[1])[slot_FM.reshape(-1)]
    np.testing.assert_array_equal(frame, order[0])


def test_joined_images_do_not_see_each_other(model):
    """The tower's features of an image are the same alone, and among others of all sizes."""
    graphdef, params = nnx.split(model)
    grids = [vl.TALL, vl.SMALL, vl.WIDE, vl.SMALL]
    images = [vision.windows(vl.image(g, seed), vl.SIZES) for seed, g in enumerate(grids)]
    together = seeing._features(graphdef, params, images, None)
    for image, found_FD in zip(images, together, strict=True):
        (alone_FD,) = seeing._features(graphdef, params, [image], None)
        np.testing.assert_allclose(found_FD, alone_FD, rtol=1e-4, atol=1e-4)


def test_queries_some_windows_at_a_time(model, monkeypatch):
    graphdef, params = nnx.split(model)
    image = vision.windows(vl.image((1, 30, 30)), vl.SIZES)
    (whole,) = seeing._features(graphdef, params, [image], None)
    monkeypatch.setattr("cpgd_jax.models.vision_tower.MOST_SCORES", 2 * 2 * 64 * 16 * 64)
    jax.clear_caches()
    (cut,) = seeing._features(graphdef, params, [image], None)
    np.testing.assert_allclose(cut, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_mixed_batch_equals_single_rows(model, prompts, side):
    rows, images = prompts
    token_BT, mask_BT = vl.padded(rows, side)
    mixed = np.asarray(models.logits(model, token_BT, mask_BT, vl.processed(images)))
    for b, (ids, shown) in enumerate(zip(rows, images, strict=True)):
        (alone,) = np.asarray(models.logits(model, ids[None], None, vl.processed([shown])))
        np.testing.assert_allclose(mixed[b][mask_BT[b]], alone, rtol=0, atol=2e-4)


@pytest.mark.slow
def test_generated_among_others_as_alone(model, prompts):
    rows, images = prompts
    settings = dict(samples_per_prompt=2, max_new_tokens=12, seed=3, stop_ids=(vl.STOP,))
    together = generate(model, rows, images=images, slots=3, **settings)
    for q, (ids, shown) in enumerate(zip(rows, images, strict=True)):
        (alone,) = generate(model, [ids], images=[shown], **settings)
        assert [c.tokens for c in alone] == [c.tokens for c in together[q]]


def test_the_tower_runs_once_and_placeholders_are_never_sampled(model, prompts, monkeypatch):
    calls, see = [], seeing.see
    monkeypatch.setattr(seeing, "see", lambda *args: calls.append(1) or see(*args))
    graphdef, params = nnx.split(model)
    ids = [vl.IMAGE, *vl.SIZES.other_ids]
    params.embed[...] = params.embed[...].at[np.array(ids)].multiply(50.0)  # tied: the head too
    louder, (rows, images) = nnx.merge(graphdef, params), prompts
    token_BT, mask_BT = vl.padded(rows, "left")
    last_BV = models.logits(louder, token_BT, mask_BT, vl.processed(images))[:, -1]
    assert np.isin(np.argmax(last_BV, axis=-1), ids).any()
    calls.clear()
    sampled = generate(louder, rows, samples_per_prompt=6, max_new_tokens=40, images=images)
    assert len(calls) == 1
    assert not {t for of_q in sampled for c in of_q for t in c.tokens} & set(ids)
    assert generate(louder, [rows[1]], samples_per_prompt=2, temperature=0.0)  # text alone


def test_other_images_compile_nothing_new(model):
    def run(seed, grids):
        made = [vl.prompt([grid], seed) for grid in grids]
        rows, images = zip(*made, strict=True)
        generate(model, rows, samples_per_prompt=2, max_new_tokens=8, images=images)

    run(0, [vl.WIDE, vl.TALL])
    with tiny.compilations() as compiled:
        run(1, [vl.TALL, (1, 12, 12)])
        run(2, [(1, 10, 14), (1, 22, 6)])
    assert not compiled


@pytest.mark.parametrize(
    ("ids", "grids", "told"),
    [
        ([1, vl.IMAGE, 2], [vl.SMALL], "prompt 0 holds 1 image tokens .* its 1 images take 4"),
        ([1, *[vl.IMAGE] * 4, 2], [], "prompt 0 holds 4 image tokens .* its 0 images take 0"),
        ([1, *[vl.IMAGE] * 4], [vl.SMALL], "prompt 0 ends in an image"),
    ],
)
def test_images_that_do_not_fit_their_prompt(model, ids, grids, told):
    images = [tuple(map(vl.image, grids)), (vl.image(vl.SMALL),)]
    with pytest.raises(UserError, match=told):
        generate(model, [ids, [1, *[vl.IMAGE] * 4, 2]], images=images)


def test_images_given_to_a_text_model():
    text = tiny.random_model(models.ModelConfig(96, 1, 32, 64, 2, 1, 16))
    with pytest.raises(UserError, match="images given to a text model"):
        generate(text, [[1, 2]], images=[(vl.image(vl.SMALL),)])
