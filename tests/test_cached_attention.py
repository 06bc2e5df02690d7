"""Attention over the cache of a rollout against a NumPy twin that gathers each slot's own keys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from cpgd_jax.models import cached_attention, kv_cache
from cpgd_jax.models.kv_cache import Store, Visible

Q, G, S, U, J, W, B, K, R, H = 3, 2, 6, 7, 3, 4, 5, 2, 3, 8
PROMPT_LEN = [6, 2, 4]
PLACE, LANE = [2, 0, 2, 0, 1], [1, 0, 0, 1, 0]  # of the slots; one lane of prompt 1 is free
PAGES = [[], [4], [6, 0], [], [1, 2, 5]]  # of the slots; page 3 is no one's
PAGE_START = [0, 2, 0, 1, 3, 0, 1]
START = [2, 0, 0, 1, 0]  # first recent column of the slots
COLUMN = 2


def arrays(dtype="float32"):
    rng = np.random.default_rng(0)
    store = lambda n, c: Store(  # noqa: E731
        *(jnp.asarray(rng.normal(size=s), dtype) for s in ((n, K, H, c), (n, K, c, H)))
    )
    return jnp.asarray(rng.normal(size=(B, K * R, H)), dtype), store(Q, S), store(U, W), store(B, W)


def visible():
    lane_B = np.array(PLACE) * G + LANE
    lane_slot = np.zeros(Q * G, int)
    lane_slot[lane_B] = np.arange(B)
    page_slot, used, page_BJ = np.zeros(U, int), np.zeros(U, bool), np.full((B, J), U)
    for slot, pages in enumerate(PAGES):
        page_slot[pages], used[pages], page_BJ[slot, : len(pages)] = slot, True, pages
    column_W = np.arange(W)
    see = Visible(
        prompt_mask_QS=np.arange(S) >= S - np.array(PROMPT_LEN)[:, None],
        lane_B=lane_B,
        lane_slot_QG=lane_slot.reshape(Q, G),
        page_mask_UW=used[:, None] & (column_W >= np.array(PAGE_START)[:, None]),
        page_slot_U=page_slot,
        page_BJ=page_BJ,
        recent_mask_BW=(column_W >= np.array(START)[:, None]) & (column_W <= COLUMN),
    )
    return jax.tree.map(jnp.asarray, see)


def twin(q_BNH, prompts, pages, recent):
    """[B, N, H] float64, a slot and a head at a time."""
    q_BNH, *stores = jax.tree.map(
        lambda x: np.asarray(x, np.float64), (q_BNH, prompts, pages, recent)
    )
    out = np.zeros(q_BNH.shape)
    for b in range(B):
        place = PLACE[b]
        seen = [(stores[0], place, slice(S - PROMPT_LEN[place], S))]
        seen += [(stores[1], page, slice(PAGE_START[page], W)) for page in PAGES[b]]
        seen += [(stores[2], b, slice(START[b], COLUMN + 1))]
        for n in range(K * R):
            keys = np.concatenate([s.k_XKHC[x, n // R][:, c] for s, x, c in seen], axis=1)
            values = np.concatenate([s.v_XKCH[x, n // R][c] for s, x, c in seen])
            score = q_BNH[b, n] @ keys / H**0.5
            weight = np.exp(score - score.max())
            out[b, n] = weight @ values / weight.sum()
    return out


@pytest.mark.parametrize(("dtype", "atol"), [("float32", 1e-5), ("bfloat16", 0.03)])
def test_each_slot_attends_to_its_prompt_its_pages_and_its_recent_columns(dtype, atol):
    given = arrays(dtype)
    out = jax.jit(cached_attention.attend)(*given, visible())
    assert out.dtype == jnp.dtype(dtype)
    np.testing.assert_allclose(np.asarray(out, np.float64), twin(*given), rtol=0, atol=atol)


def test_what_no_slot_sees_changes_nothing():
    q, prompts, pages, recent = arrays()
    before = cached_attention.attend(q, prompts, pages, recent, visible())
    pages = Store(pages.k_XKHC.at[3].set(1e4), pages.v_XKCH.at[3].set(jnp.inf))
    later = slice(COLUMN + 1, None)
    recent = Store(recent.k_XKHC.at[..., later].set(1e4), recent.v_XKCH.at[:, :, later].set(1e4))
    after = cached_attention.attend(q, prompts, pages, recent, visible())
    np.testing.assert_array_equal(before, after)


def test_bfloat16_keys_under_float32_queries():
    q, *stores = arrays()
    low = [jax.tree.map(lambda x: x.astype(jnp.bfloat16), store) for store in stores]
    out = cached_attention.attend(q, *low, visible())
    assert out.dtype == jnp.float32
    np.testing.assert_allclose(out, twin(q, *low), rtol=0, atol=0.03)


def test_stores_write_put_and_take():
    _, _, pages, recent = arrays()
    k_BKH, v_BKH = (jnp.full((B, K, H), x) for x in (7.0, 8.0))
    written = kv_cache.write(recent, 1, k_BKH, v_BKH)
    assert (written.k_XKHC[..., 1] == 7).all() and (written.v_XKCH[:, :, 1] == 8).all()
    np.testing.assert_array_equal(written.k_XKHC[..., 2:], recent.k_XKHC[..., 2:])
    at_B = jnp.array([6, 0, U, 2, U])
    out = kv_cache.put(pages, at_B, recent)
    for page in range(U):
        source = recent if page in (6, 0, 2) else pages
        index = {6: 0, 0: 1, 2: 3}.get(page, page)
        np.testing.assert_array_equal(out.k_XKHC[page], source.k_XKHC[index])
        np.testing.assert_array_equal(out.v_XKCH[page], source.v_XKCH[index])
    np.testing.assert_array_equal(
        kv_cache.take(pages, jnp.array([5, 5, 1])).v_XKCH[2], pages.v_XKCH[1]
    )
