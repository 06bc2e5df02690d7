"""Responses in full rows: every token once, at its position, seeing what it must; few shapes."""

import jax
import numpy as np
import pytest
from batches import train_batch

from cpgd_jax import packing

RAGGED = train_batch([5, 1, 30, 9], [[3, 70, 1, 8], [2, 2, 2, 2], [40, 0, 7, 100], [0, 0, 0, 0]])


def visible(packed, m, w):
    """bool [U, U] of one row, slot by slot, from the fields' description."""
    first, prompt_first, prompt_end = (x[m, w] for x in packed.spans)
    slot = np.arange(len(first))
    own, prompt = slot >= first[:, None], slot >= prompt_first[:, None]
    return (own | (prompt & (slot < prompt_end[:, None]))) & (slot <= slot[:, None])


@pytest.mark.parametrize(
    ("size", "ways", "row_len"), [(16, 1, 0), (8, 1, 0), (4, 1, 64), (2, 4, 0)]
)
def test_every_trained_token_once_and_its_context_is_its_prompt_and_what_came_before(
    size, ways, row_len
):
    batch, T = RAGGED, RAGGED.mask_BT.shape[1]
    micro = packing.pack(batch, size, ways, row_len)
    packed, rows = micro.packed, micro.rows
    M, W, U = packed.token_WU.shape
    C = packed.target_WC.shape[2]
    assert 16 // size == M and W % ways == 0
    seen = []
    for m, w, c in np.ndindex(M, W, C):
        if packed.place_WC[m, w, c] == size * T:
            continue
        b, t = divmod(int(packed.place_WC[m, w, c]), T)
        seen.append((m, b, t))
        context = np.flatnonzero(visible(packed, m, w)[U - C + c])
        prompt = rows.prompt_BS[m, b][rows.prompt_mask_BS[m, b]]
        whole = np.append(prompt, rows.response_BT[m, b, :t])
        np.testing.assert_array_equal(packed.token_WU[m, w, context], whole)
        np.testing.assert_array_equal(packed.position_WU[m, w, context], np.arange(len(whole)))
        assert packed.target_WC[m, w, c] == rows.response_BT[m, b, t]
    assert sorted(seen) == [tuple(map(int, at)) for at in np.argwhere(rows.mask_BT)]


def test_rows_keep_their_arrays():
    micro = packing.pack(RAGGED, 4)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), micro.rows)
    order = [
        int(np.flatnonzero((RAGGED.response_BT == row).all(axis=1))[0]) for row in flat.response_BT
    ]
    assert sorted(order) == list(range(16))
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x, y[order]), flat, RAGGED)


def test_a_group_stays_together_and_its_prompt_is_there_once():
    batch = train_batch([20] * 4, [[5, 6, 7, 8]] * 4)
    micro = packing.pack(batch, 8)
    for m in range(2):
        assert len(set(micro.rows.group_B[m].tolist())) == 2
        used = (
            micro.packed.spans.first_WU[m, 0] != np.arange(micro.packed.token_WU.shape[2])
        ).sum()
        segments = 2 * (1 + 4)
        assert used == 2 * (19 + 26) - segments  # all but the first slot of each segment


def test_microbatches_and_rows_are_balanced():
    rng = np.random.default_rng(1)
    lengths = np.minimum(rng.geometric(1 / 64, (32, 8)), 512)
    batch = train_batch([64] * 32, lengths.tolist(), T=512)
    orders = packing.microbatches(batch, 64)
    tokens = [batch.mask_BT[order].sum() for order in orders]
    assert [len(order) for order in orders] == [64] * 4
    assert max(tokens) < 1.05 * np.mean(tokens)
    packed = packing.lay_out(batch, orders, ways=4)
    filled_MW = (packed.place_WC < 64 * 512).sum(axis=2)
    assert packed.token_WU.shape[:2] == (4, 4)
    assert filled_MW.max() < 1.08 * filled_MW.mean()


def test_the_order_of_groups_and_rows_does_not_matter_to_the_widths():
    shuffled = np.random.default_rng(0).permutation(16)
    other = jax.tree.map(lambda x: x[shuffled], RAGGED)
    shapes = lambda b: [x.shape for x in jax.tree.leaves(packing.pack(b, 8, 2))]  # noqa: E731
    assert shapes(other) == shapes(RAGGED)


def test_masked_responses_and_groups_leave():
    mask_BT = RAGGED.mask_BT.copy()
    mask_BT[:8] = mask_BT[11] = False  # two groups and the longest response
    small = packing.pack(RAGGED.replace(mask_BT=mask_BT), 16).packed
    assert small.token_WU.shape[2] == 2 * packing.STEP
    assert (small.place_WC < 16 * RAGGED.mask_BT.shape[1]).sum() == 47
    nothing = packing.pack(RAGGED.replace(mask_BT=np.zeros_like(mask_BT)), 4).packed
    assert (nothing.place_WC == 4 * mask_BT.shape[1]).all()


def test_holes_in_a_mask_are_closed():
    mask_BT = RAGGED.mask_BT.copy()
    mask_BT[1, [0, 4, 5]] = False
    micro = packing.pack(RAGGED.replace(mask_BT=mask_BT), 16)
    (b,) = np.flatnonzero((micro.rows.response_BT[0] == RAGGED.response_BT[1]).all(axis=1))
    here = micro.packed.place_WC[0, 0] // mask_BT.shape[1] == b
    np.testing.assert_array_equal(
        micro.packed.target_WC[0, 0][here], RAGGED.response_BT[1][mask_BT[1]]
    )


def test_widths_are_few():
    widths = sorted({packing.bucket(n) for n in range(8193)})
    assert widths[:4] == [64, 128, 192, 256] and widths[-1] == 8192
    assert len(widths) == 16 + 8 * 3  # by 64 up to 1024, then eight a doubling
    assert all(packing.bucket(n) >= n for n in range(8193))
    assert max(packing.bucket(n) / n for n in range(1024, 8193)) < 1.125


def test_rows_that_do_not_divide_are_dealt_too():
    orders = packing.microbatches(train_batch([3] * 5, [[2]] * 5), 2)
    assert sorted(np.concatenate(orders).tolist()) == list(range(5))
    assert sorted(map(len, orders)) == [1, 2, 2]
