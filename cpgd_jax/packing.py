"""A batch of responses laid out in full rows, each prompt once a row; on the host, in NumPy.

Everything is dealt out in descending order of its tokens to the part that has the fewest so far:
units of a group's responses to microbatches of equally many responses, and within a microbatch
prompts with their responses to rows. Widths are rounded up by `bucket`, which bounds the number of
shapes that a run can see: eight prompt widths and eight response widths a doubling.
"""

import math

import jax
import numpy as np

from cpgd_jax import vision
from cpgd_jax.types import Microbatches, Packed, Seen, Spans, TrainBatch

STEP = 64  # slots: the least width, and what every width is a multiple of


def pack(batch: TrainBatch, size: int, ways: int = 1, row_len: int = 0, seen=()) -> Microbatches:
    """An optimiser step of microbatches of `size` responses; see `microbatches` and `lay_out`."""
    order_MB = np.stack(microbatches(batch, size))
    rows = jax.tree.map(lambda x: np.asarray(x)[order_MB], batch)
    return Microbatches(rows, lay_out(batch, order_MB, ways, row_len, seen))


def microbatches(batch: TrainBatch, size: int) -> list:
    """For each microbatch the `size` rows of the batch that it holds, about equally many tokens.

    A group stays together where `size` is a multiple of its responses. If `size` does not divide
    the batch some microbatches hold fewer.
    """
    slots = _Slots(batch)
    _, count_Q = np.unique(slots.group_B, return_counts=True)
    unit = math.gcd(size, *count_Q)
    by_length = np.lexsort((-slots.length_B, slots.group_B))
    units = []
    for group in np.split(by_length, np.cumsum(count_Q)[:-1]):
        parts = len(group) // unit
        units += [group[i::parts] for i in range(parts)]
    costs = [slots.of(piece[slots.length_B[piece] > 0]) for piece in units]
    dealt = _deal(units, costs, math.ceil(len(slots.group_B) / size), size // unit)
    return [np.concatenate(pieces) for pieces in dealt]


def lay_out(batch: TrainBatch, order_MB, ways: int = 1, row_len: int = 0, seen=()) -> Packed:
    """The microbatches packed into rows: arrays with a leading axis M.

    Masked tokens leave, and so do responses and prompts of which nothing is left. Rows of one group
    have one prompt. The number of packed rows is a multiple of `ways` (devices), the least for
    which they have about `row_len` slots; 0 = no limit. seen: what the prompt of each group shows,
    by the group's number, a `Seen` or None; () = no images. Patches are packed where a `Seen` has
    them, else features.
    """
    slots = _Slots(batch)
    total = max(sum(map(slots.of, slots.by_group(order_B))) for order_B in order_MB)
    count = ways * max(1, math.ceil(total / (ways * row_len)) if row_len else 1)
    plan = [_rows(slots, order_B, count) for order_B in order_MB]
    P = bucket(max(sum(map(slots.of_prompt, row)) for rows in plan for row in rows))
    C = bucket(max(sum(map(slots.of_responses, row)) for rows in plan for row in rows))
    seen = {q: seen[q] for q in np.unique(batch.group_B) if seen and seen[q] is not None}
    packed = [_fill(batch, *parts, P, C, seen) for parts in zip(order_MB, plan, strict=True)]
    packed = jax.tree.map(lambda *x: np.stack(x), *packed)
    shown = [[_shown(slots, pieces, seen) for pieces in rows] for rows in plan]
    if not any(row for rows in shown for row in rows):
        return packed
    if all(one.patches is None for one in seen.values()):
        return packed.replace(feature_WPD=vision.features(shown, P))
    return packed.replace(patches=vision.patches(shown, P))


def bucket(count: int) -> int:
    """The least width of at least `count` slots."""
    step = max(STEP, 2 ** (max(count, 1) - 1).bit_length() // 16)
    return max(1, -(-count // step)) * step


class _Slots:
    """How many slots things take. A piece is an array of the batch's rows, all of one group."""

    def __init__(self, batch: TrainBatch):
        self.length_B = np.asarray(batch.mask_BT).sum(axis=1)
        self.prompt_B = np.asarray(batch.prompt_mask_BS).sum(axis=1) - 1
        self.group_B = np.asarray(batch.group_B)

    def of_responses(self, piece) -> int:
        return int(self.length_B[piece].sum())

    def of_prompt(self, piece) -> int:
        return int(self.prompt_B[piece[0]])

    def of(self, piece) -> int:
        return self.of_prompt(piece) + self.of_responses(piece) if len(piece) else 0

    def by_group(self, rows_B) -> list:
        """Pieces: the rows that have tokens, longest first, group by group."""
        rows_B = rows_B[self.length_B[rows_B] > 0]
        rows_B = rows_B[np.argsort(-self.length_B[rows_B], kind="stable")]
        groups = np.unique(self.group_B[rows_B])
        return [rows_B[self.group_B[rows_B] == group] for group in groups]


def _rows(slots: _Slots, order_B, count: int) -> list:
    """For each of `count` packed rows its pieces. Where there are several, groups are cut into
    quarters of a row, each dealt to the row that is the shortest with it: a prompt is repeated
    where that costs less than an uneven row."""
    groups = slots.by_group(order_B)
    if count == 1:
        return [groups]
    share = max(sum(map(slots.of, groups)) / count / 4, 1)
    parts = []
    for group in groups:
        n = min(math.ceil(slots.of(group) / share), len(group))
        parts += [group[i::n] for i in range(n)]
    rows, length = [{} for _ in range(count)], np.zeros(count)
    for part in sorted(parts, key=slots.of_responses, reverse=True):
        group = slots.group_B[part[0]]
        new = [0 if group in row else slots.of_prompt(part) for row in rows]
        w = int(np.argmin(length + new))
        length[w] += new[w] + slots.of_responses(part)
        rows[w].setdefault(group, []).append(part)
    return [[np.concatenate(parts) for parts in row.values()] for row in rows]


def _deal(items: list, costs: list, parts: int, room: int) -> list:
    """Items in descending order of cost, each to the cheapest part with room for one more."""
    dealt, total = [[] for _ in range(parts)], np.zeros(parts)
    for i in np.argsort(-np.asarray(costs), kind="stable"):
        part = min((p for p in range(parts) if len(dealt[p]) < room), key=lambda p: total[p])
        dealt[part].append(items[i])
        total[part] += costs[i]
    return dealt


def _shown(slots: _Slots, pieces: list, seen: dict) -> list:
    """(first slot, `Seen`) of the prompts of one packed row that have images."""
    starts = np.cumsum([0, *map(slots.of_prompt, pieces)])
    groups = [slots.group_B[piece[0]] for piece in pieces]
    return [(u, seen[q]) for u, q in zip(starts, groups, strict=False) if q in seen]


def _places(prompt_len: int, seen: Seen | None, axes: int) -> np.ndarray:
    """Of a prompt's tokens: [S], or where images are about [S, 3]."""
    if seen is not None:
        return seen.position_S3
    return np.arange(prompt_len) if axes == 1 else np.arange(prompt_len)[:, None]


def _fill(batch: TrainBatch, order_B, rows: list, P: int, C: int, seen: dict) -> Packed:
    """The arrays of one microbatch: prompts in the first P slots, responses in the last C."""
    T, U, W = batch.mask_BT.shape[1], P + C, len(rows)
    place_of = {b: i for i, b in enumerate(order_B)}
    token_WU = np.zeros((W, U), np.int32)
    position_WU = np.zeros((W, U, 3) if seen else (W, U), np.int32)
    spans = Spans(*(np.tile(np.arange(U, dtype=np.int32), (W, 1)) for _ in Spans._fields))
    target_WC = np.zeros((W, C), np.int32)
    place_WC = np.full((W, C), len(order_B) * T, np.int32)
    for w, pieces in enumerate(rows):
        u, c = 0, P
        for piece in pieces:
            prompt = batch.prompt_BS[piece[0]][batch.prompt_mask_BS[piece[0]]]
            n = len(prompt) - 1
            place = _places(n + 1, seen.get(batch.group_B[piece[0]]), position_WU.ndim - 1)
            token_WU[w, u : u + n], position_WU[w, u : u + n] = prompt[:-1], place[:-1]
            segments = [slice(u, u + n)]
            for b in piece:
                (column,) = np.nonzero(batch.mask_BT[b])
                response, m = batch.response_BT[b][column], len(column)
                here, trained = slice(c, c + m), slice(c - P, c - P + m)
                token_WU[w, here] = np.append(prompt[-1], response[:-1])
                count = np.arange(m).reshape(-1, *[1] * (place.ndim - 1))
                position_WU[w, here] = place[-1] + count
                target_WC[w, trained] = response
                place_WC[w, trained] = place_of[b] * T + column
                segments.append(here)
                c += m
            for here in segments:
                for x, value in zip(spans, (here.start, u, u + n), strict=True):
                    x[w, here] = value
            u += n
    return Packed(token_WU, position_WU, spans, target_WC, place_WC)
