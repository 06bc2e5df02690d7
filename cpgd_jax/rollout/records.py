"""What the host and the jitted programs of a rollout tell each other.

On a mesh the leading axis of every array holds the shards' parts one after the other, and indices
count within a shard: each device decodes its own slots, prompts and pages.
"""

from typing import Any, NamedTuple

from cpgd_jax.types import Array


class Law(NamedTuple):
    """What is compiled in of the sampling law."""

    greedy: bool
    top_k: int  # 0 = off
    use_top_p: bool
    use_forbidden: bool


class Dials(NamedTuple):
    """What is not: a change of these compiles nothing."""

    key: Any  # of (seed, step)
    stop_V: Array  # bool, True = this id ends a response
    forbidden_V: Array  # bool, True = this id is never sampled
    temperature: Array  # float32
    top_p: Array  # float32


class Row(NamedTuple):
    """Responses in the making, of slots or of the queue; [B] each, int32."""

    request: Array  # index of the response; -1 = the slot is idle
    prompt_id: Array  # uint32, for the random numbers
    sample: Array  # within the group, for the random numbers
    prompt: Array  # its place in the store of prompts
    first: Array  # the place of its first token, in the sense of rotary embedding
    limit: Array  # of tokens
    count: Array  # of tokens sampled
    token: Array  # the last one; its keys are not in the cache yet


class Slots(NamedTuple):
    row: Row
    start_B: Array  # int32, first recent column that is the response's own
    pages_B: Array  # int32, pages it has


class Pages(NamedTuple):
    """Whose the pages are."""

    slot_U: Array  # int32
    order_U: Array  # int32, among its slot's pages; J = no one's
    start_U: Array  # int32, first column that is the response's own
    page_BJ: Array  # int32, a slot's pages in order; U = none


class Account(NamedTuple):
    """What the decode loop starts from."""

    slots: Slots
    pages: Pages
    queue: Row  # requests that wait, in order; then filling, request -1
    prompt_len_Q: Array  # int32, tokens


class Tape(NamedTuple):
    """What was sampled, a row a column of the cache; rows of columns not decoded are stale."""

    request_WB: Array  # int32, -1 = the slot was idle
    token_WB: Array  # int32
    logp_WB: Array  # float32
