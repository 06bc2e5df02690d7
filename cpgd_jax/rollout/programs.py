"""The jitted programs of a rollout: prefill of a batch of prompts, and the decode loop with refill.

The loop runs on the device from one column of the cache to the end of the recent ones: a slot whose
response ends takes the next request of the queue in the same step. Sharded over the mesh's data
axes each device works on slots of its own; only `tensor` takes part in one device's work.
"""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from cpgd_jax.models import decoder as decoder_lib
from cpgd_jax.models import kv_cache
from cpgd_jax.models.kv_cache import Cache, Store, Visible
from cpgd_jax.rollout import sampling
from cpgd_jax.rollout.records import Account, Dials, Law, Pages, Row, Slots, Tape
from cpgd_jax.sharding import RULES

DATA = RULES["batch"]
ROWS = P(DATA)  # the leading axis split over the shards


@functools.partial(jax.jit, static_argnames=("graphdef", "law"))
def prefill(
    graphdef, params, token_CS, mask_CS, prompt_id_C, sample_CG, sight, dials: Dials, law: Law
):
    """Keys and values of left-padded prompts, [L, C, S, K, H], and the first token of each sample:
    (k, v, token_CG, logp_CG). sight: a `types.Sight`, None = no prompt has an image.
    """
    model = nnx.merge(graphdef, params)
    hidden_CD, k, v = model.prefill(token_CS, mask_CS, sight)
    G = sample_CG.shape[1]
    logits_BV = jnp.repeat(model.head(hidden_CD), G, axis=0)
    prompt_id_B, sample_B = jnp.repeat(prompt_id_C, G), sample_CG.reshape(-1)
    zero_B = jnp.zeros_like(sample_B)
    token_B, logp_B = _draw(logits_BV, prompt_id_B, sample_B, zero_B, dials, law)
    return k, v, token_B.reshape(sample_CG.shape), logp_B.reshape(sample_CG.shape)


@functools.partial(jax.jit, static_argnames="mesh", donate_argnames="prompts")
def place(mesh, prompts: tuple[Store, ...], k_LCSKH, v_LCSKH, at_C):
    """The stores with prefilled prompts at `at_C`, each at the right end of the columns."""

    def local(prompts, k_LCSKH, v_LCSKH, at_C):
        stores = []
        for store, k_CSKH, v_CSKH in zip(prompts, k_LCSKH, v_LCSKH, strict=True):
            pad = store.k_XKHC.shape[-1] - k_CSKH.shape[1]
            k, v = (
                jnp.pad(x, ((0, 0), (pad, 0), (0, 0), (0, 0))).astype(store.k_XKHC.dtype)
                for x in (k_CSKH, v_CSKH)
            )
            new = Store(k.transpose(0, 2, 3, 1), v.transpose(0, 2, 1, 3))
            stores.append(kv_cache.put(store, at_C, new))
        return tuple(stores)

    layers = P(None, DATA)
    return _by_shard(local, mesh, (ROWS, layers, layers, ROWS), ROWS)(
        prompts, k_LCSKH, v_LCSKH, at_C
    )


@functools.partial(jax.jit, static_argnames="mesh", donate_argnames="pages")
def flush(mesh, pages: tuple[Store, ...], recent: tuple[Store, ...], at_B):
    """The pages with every slot's recent columns as page `at_B`; past the end: dropped."""

    def local(pages, recent, at_B):
        pairs = zip(pages, recent, strict=True)
        return tuple(kv_cache.put(page, at_B, own) for page, own in pairs)

    return _by_shard(local, mesh, (ROWS, ROWS, ROWS), ROWS)(pages, recent, at_B)


@functools.partial(jax.jit, static_argnames="mesh")
def take(mesh, store: Store, index_N):
    """One layer's store with other entries: narrower, wider, or in another order."""
    return _by_shard(kv_cache.take, mesh, (ROWS, ROWS), ROWS)(store, index_N)


@functools.partial(
    jax.jit, static_argnames=("decoder", "law", "mesh", "lanes"), donate_argnames="recent"
)
def decode(
    decoder,
    law: Law,
    mesh,
    lanes: int,
    weights,
    prompts,
    pages,
    recent,
    account: Account,
    dials: Dials,
    column,
    floor,
):
    """Decodes from `column` on, until the recent columns are full or at most `floor` slots of any
    shard are busy: (recent, slots, tape, requests that each shard took from the queue, column).
    """

    def local(weights, prompts, pages, recent, account, dials, column, floor):
        slots, owners, queue, prompt_len_Q = account
        B, W = len(slots.start_B), recent[0].k_XKHC.shape[-1]
        S = prompts[0].k_XKHC.shape[-1]

        def step(state):
            column, slots, head, recent, tape, _ = state
            visible = _visible(slots, owners, prompt_len_Q, column, S, W, lanes)
            row, cache = slots.row, Cache(prompts, pages, recent)
            position_B = row.first + row.count - 1
            logits_BV, cache = decoder_lib.step(
                decoder, weights, row.token, position_B, column, cache, visible
            )
            drawn = _draw(logits_BV, row.prompt_id, row.sample, row.count, dials, law)
            tape = _record(tape, column, row.request, *drawn)
            slots, head = _advance(slots, drawn[0], queue, head, dials.stop_V, column)
            return column + 1, slots, head, cache.recent, tape, _most_busy(slots, mesh)

        def go_on(state):
            return (state[0] < W) & (state[-1] > floor)

        none = jnp.full((W, B), -1, jnp.int32)
        tape = Tape(none, none, none.astype(jnp.float32))
        state = (column, slots, jnp.int32(0), recent, tape, _most_busy(slots, mesh))
        column, slots, head, recent, tape, _ = jax.lax.while_loop(go_on, step, state)
        return recent, slots, tape, head[None], column

    whole = P()
    in_specs = (whole, ROWS, ROWS, ROWS, ROWS, whole, whole, whole)
    out_specs = (ROWS, ROWS, P(None, DATA), ROWS, whole)
    return _by_shard(local, mesh, in_specs, out_specs)(
        weights, prompts, pages, recent, account, dials, column, floor
    )


def _by_shard(fn, mesh, in_specs, out_specs):
    return jax.shard_map(
        fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=set(DATA), check_vma=False
    )


def _most_busy(slots: Slots, mesh):
    """Busy slots of the busiest shard; the shards go on together."""
    busy = jnp.sum(slots.row.request >= 0)
    return jax.lax.pmax(busy, DATA) if mesh.size > 1 else busy


def _visible(slots: Slots, owners: Pages, prompt_len_Q, column, S, W, G) -> Visible:
    row, (B, J), U = slots.row, owners.page_BJ.shape, len(owners.slot_U)
    slot_B, column_1W = jnp.arange(B), jnp.arange(W)[None]
    # a lane of its own for every slot where there are so many, else for every sample of a prompt
    lane_B = row.prompt * G + (slot_B if G == B else row.sample % G)
    lanes = len(prompt_len_Q) * G
    busy_lane_B = jnp.where(row.request >= 0, lane_B, lanes)
    lane_slot = jnp.zeros(lanes, jnp.int32).at[busy_lane_B].set(slot_B, mode="drop")
    used_U = owners.order_U < slots.pages_B[owners.slot_U]
    return Visible(
        prompt_mask_QS=jnp.arange(S)[None] >= S - prompt_len_Q[:, None],
        lane_B=lane_B,
        lane_slot_QG=lane_slot.reshape(-1, G),
        page_mask_UW=used_U[:, None] & (column_1W >= owners.start_U[:, None]),
        page_slot_U=owners.slot_U,
        page_BJ=jnp.where(jnp.arange(J)[None] < slots.pages_B[:, None], owners.page_BJ, U),
        recent_mask_BW=(column_1W >= slots.start_B[:, None]) & (column_1W <= column),
    )


def _record(tape: Tape, column, *values_B) -> Tape:
    """Idle slots are recorded too, as request -1."""
    return Tape(
        *(
            jax.lax.dynamic_update_slice(x_WB, value_B[None], (column, 0))
            for x_WB, value_B in zip(tape, values_B, strict=True)
        )
    )


def _advance(slots: Slots, token_B, queue: Row, head, stop_V, column):
    """(slots with their new token, or with the next request where a response ended; new head)."""
    row = slots.row
    row = row._replace(token=token_B, count=row.count + 1)
    free_B = (row.request < 0) | stop_V[token_B] | (row.count >= row.limit)
    next_B = head + jnp.cumsum(free_B) - 1
    waiting = jnp.sum(queue.request >= 0)
    takes_B = free_B & (next_B < waiting)
    row = row._replace(request=jnp.where(free_B, -1, row.request))
    row = Row(*(jnp.where(takes_B, q[next_B], x) for q, x in zip(queue, row, strict=True)))
    slots = Slots(
        row,
        start_B=jnp.where(takes_B, column + 1, slots.start_B),
        pages_B=jnp.where(free_B, 0, slots.pages_B),
    )
    return slots, head + takes_B.sum()


def _draw(logits_BV, prompt_id_B, sample_B, token_index_B, dials: Dials, law: Law):
    """(token_B, logp_B)"""
    key_B = sampling.row_keys(dials.key, prompt_id_B, sample_B)
    if law.use_forbidden:
        logits_BV = jnp.where(dials.forbidden_V[None], -jnp.inf, logits_BV)
    return sampling.sample_token(
        logits_BV,
        sampling.uniforms(key_B, token_index_B),
        temperature=dials.temperature,
        top_k=law.top_k,
        top_p=dials.top_p if law.use_top_p else None,
        greedy=law.greedy,
    )
