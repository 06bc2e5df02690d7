"""Attention of one new token a slot over the cache: queries go to the keys, keys stay.

The queries of a prompt's samples are brought together on its lanes, so that the prompt's keys are
read once for all of them; a page is read with the query of its slot. What the stores give meets in
one softmax over all of them, in float32. M: queries of one key head in an entry of a store.
"""

from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp

from cpgd_jax.models.attention import MASKED
from cpgd_jax.models.kv_cache import Store, Visible


class _Route(NamedTuple):
    """How queries reach the entries of a store, and how the results come back to the slots."""

    go: Callable  # [B, K, R, ...] -> [X, K, M, ...]
    back: Callable  # ([X, K, M, ...], jnp.max or jnp.sum, its value of nothing) -> [B, K, R, ...]
    mask_XC: object


def attend(q_BNH, prompts: Store, pages: Store, recent: Store, visible: Visible):
    """[B, N, H]; head n = k * R + r reads key/value head k."""
    B, N, H = q_BNH.shape
    K = recent.k_XKHC.shape[1]
    q_BKRH = (q_BNH * H**-0.5).reshape(B, K, N // K, H)
    parts = [(recent, _recent(visible)), (prompts, _prompts(visible))]
    if len(pages.k_XKHC):
        parts.append((pages, _pages(visible)))

    scores = [_scores(route.go(q_BKRH), store, route.mask_XC) for store, route in parts]
    peaks = [
        route.back(score.max(axis=-1), jnp.max, MASKED)
        for score, (_, route) in zip(scores, parts, strict=True)
    ]
    peak_BKR = reduce(jnp.maximum, peaks)
    total_BKR, out_BKRH = 0.0, 0.0
    for score, (store, route) in zip(scores, parts, strict=True):
        # only what no slot reads can lie above the peak
        weight = jnp.exp(jnp.minimum(score - route.go(peak_BKR)[..., None], 0.0))
        total_BKR += route.back(weight.sum(axis=-1), jnp.sum, 0.0)
        out_BKRH += route.back(_mix(weight, store), jnp.sum, 0.0)
    return (out_BKRH / total_BKR[..., None]).reshape(B, N, H).astype(q_BNH.dtype)


def _scores(q_XKMH, store: Store, mask_XC):
    """[X, K, M, C] float32"""
    q_XKMH = q_XKMH.astype(store.k_XKHC.dtype)
    score = jnp.einsum("xkmh,xkhc->xkmc", q_XKMH, store.k_XKHC, preferred_element_type="float32")
    return jnp.where(mask_XC[:, None, None], score, MASKED)


def _mix(weight_XKMC, store: Store):
    """[X, K, M, H] float32"""
    weight_XKMC = weight_XKMC.astype(store.v_XKCH.dtype)
    return jnp.einsum(
        "xkmc,xkch->xkmh", weight_XKMC, store.v_XKCH, preferred_element_type="float32"
    )


def _recent(visible: Visible) -> _Route:
    return _Route(lambda x: x, lambda x, *_: x, visible.recent_mask_BW)


def _prompts(visible: Visible) -> _Route:
    slot_QG = visible.lane_slot_QG
    Q, G = slot_QG.shape

    def go(x):
        x_QKGR = x[slot_QG].swapaxes(1, 2)
        return x_QKGR.reshape(Q, x.shape[1], G * x.shape[2], *x.shape[3:])

    def back(x, *_):
        x_QKGR = x.reshape(Q, x.shape[1], G, -1, *x.shape[3:])
        return x_QKGR.swapaxes(1, 2).reshape(Q * G, *x_QKGR.shape[1:2], *x_QKGR.shape[3:])[
            visible.lane_B
        ]

    return _Route(go, back, visible.prompt_mask_QS)


def _pages(visible: Visible) -> _Route:
    def back(x, combine, nothing):
        at_BJ = visible.page_BJ
        return combine(jnp.take(x, at_BJ, 0, mode="fill", fill_value=nothing), axis=1)

    return _Route(lambda x: x[visible.page_slot_U], back, visible.page_mask_UW)
