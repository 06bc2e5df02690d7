"""The key/value cache of a rollout: keys rotated, stores that stay where they are.

A slot decodes one response. What a slot may attend to lies in three stores a layer:

    prompts  one copy a prompt, its columns at the right end; its samples read it together, each on
             a lane of its own
    recent   the last columns of every slot; all slots write at one common column (keys carry their
             rotation, so any column will do), hence a write is one slice
    pages    what was recent earlier, W columns at a time; a page belongs to one slot

Only pages that are in use are computed, so a response costs what it is long, not its cap. Heads
stand before columns and keys are transposed: as the matmuls of a decode step read them.

Axes beside those of `types`: Q prompts in the store, G lanes, U pages, J pages a slot at most, W
columns of a page or of the recent ones. An index past the end of a store stands for none.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Store(NamedTuple):
    """One store of one layer: X entries of C columns."""

    k_XKHC: jax.Array
    v_XKCH: jax.Array


class Cache(NamedTuple):
    """Three stores a layer."""

    prompts: tuple[Store, ...]  # X = Q, C = S
    pages: tuple[Store, ...]  # X = U, C = W
    recent: tuple[Store, ...]  # X = B, C = W


class Visible(NamedTuple):
    """What each slot may attend to, and which slot each lane and each page belongs to."""

    prompt_mask_QS: jax.Array  # bool
    lane_B: jax.Array  # int32, prompt * G + lane
    lane_slot_QG: jax.Array  # int32, B = the lane is free
    page_mask_UW: jax.Array  # bool, all False = a page that no slot reads
    page_slot_U: jax.Array  # int32
    page_BJ: jax.Array  # int32, U = none
    recent_mask_BW: jax.Array  # bool


def empty(X: int, K: int, H: int, columns: int, dtype) -> Store:
    return Store(jnp.zeros((X, K, H, columns), dtype), jnp.zeros((X, K, columns, H), dtype))


def write(store: Store, column, k_BKH, v_BKH) -> Store:
    """One token of every slot, at a common column."""
    k_BKH1, v_BK1H = (x.astype(store.k_XKHC.dtype) for x in (k_BKH[..., None], v_BKH[:, :, None]))
    return Store(
        jax.lax.dynamic_update_slice(store.k_XKHC, k_BKH1, (0, 0, 0, column)),
        jax.lax.dynamic_update_slice(store.v_XKCH, v_BK1H, (0, 0, column, 0)),
    )


def put(store: Store, index_N, new: Store) -> Store:
    """The store with entries `index_N` replaced by the N entries of `new`."""
    return Store(*(x.at[index_N].set(y, mode="drop") for x, y in zip(store, new, strict=True)))


def take(store: Store, index_N) -> Store:
    """A store of N of the entries; an index past the end gives any."""
    return Store(*(x.at[index_N].get(mode="clip") for x in store))
