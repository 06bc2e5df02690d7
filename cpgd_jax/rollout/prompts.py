"""The prompts of a rollout: which go to which shard next, and as arrays for the prefill."""

from collections import deque
from typing import NamedTuple

import numpy as np

from cpgd_jax.models import seeing
from cpgd_jax.rollout.shapes import Requests, Shapes, power_of_two
from cpgd_jax.rollout.shard import Shard
from cpgd_jax.types import Sight


class Prompts(NamedTuple):
    """Q prompts and what is asked of them."""

    token: list  # of arrays of ids
    id_Q: np.ndarray  # uint32, for the random numbers
    limit_QG: np.ndarray  # int32, of tokens a response
    seen: tuple  # of `types.Seen` or None

    def requests(self) -> Requests:
        longest = max(len(ids) for ids in self.token)
        return Requests(*self.limit_QG.shape, longest, int(self.limit_QG.max()))

    def columns(self, prompt: int) -> int:
        return power_of_two(len(self.token[prompt]), 16)

    def first(self, prompt: int) -> int:
        """The place of a response's first token: images take up fewer places than tokens."""
        seen = self.seen[prompt]
        return len(self.token[prompt]) if seen is None else int(seen.position_S3[-1, 0]) + 1


class Unit(NamedTuple):
    """Samples of one prompt that share its keys on one shard."""

    prompt: int
    sample_G: np.ndarray


class Batch(NamedTuple):
    """What one prefill takes: C rows a shard, some of them filling."""

    token_CS: np.ndarray  # int32, left-padded
    mask_CS: np.ndarray  # bool, True = a prompt token
    id_C: np.ndarray  # uint32
    sample_CG: np.ndarray  # int32
    sight: Sight | None
    at_C: np.ndarray  # int32, where the prompt is kept; past the end = filling


def units(prompts: Prompts, parts: int) -> deque[Unit]:
    """Longest prompts first, so that those prefilled together are about equally long."""
    Q, G = prompts.limit_QG.shape
    longest_first = sorted(range(Q), key=lambda q: -prompts.columns(q))
    samples = np.array_split(np.arange(G, dtype=np.int32), parts)
    return deque(Unit(q, sample_G) for q in longest_first for sample_G in samples)


def deal(waiting: deque[Unit], shards: list[Shard], size: int, group: int, lookahead: int):
    """Takes the units that each shard prefills next, at most `size`: [(place, unit), ...] a shard.

    A shard is given units as long as it has a free place and fewer than `lookahead` requests would
    wait beside those for its idle slots.
    """
    free = [shard.free_places()[:size] for shard in shards]
    dealt = [[] for _ in shards]

    def would_wait(d):
        return shards[d].waiting + len(dealt[d]) * group

    while waiting:
        wants = [d for d in range(len(shards)) if free[d] and would_wait(d) < lookahead]
        if not wants:
            break
        d = min(wants, key=would_wait)
        dealt[d].append((free[d].pop(0), waiting.popleft()))
    return dealt


def batch(prompts: Prompts, dealt, shapes: Shapes, group: int) -> Batch:
    """Rows of shard d from d * C on; the samples of a unit that has fewer are filled up."""
    S = max(prompts.columns(unit.prompt) for of_shard in dealt for _, unit in of_shard)
    C = shapes.prefill_batch(S)
    rows = C * len(dealt)
    out = Batch(
        token_CS=np.zeros((rows, S), np.int32),
        mask_CS=np.broadcast_to(np.arange(S) == S - 1, (rows, S)).copy(),
        id_C=np.zeros(rows, np.uint32),
        sample_CG=np.zeros((rows, group), np.int32),
        sight=None,
        at_C=np.full(rows, shapes.places, np.int32),
    )
    seen = [None] * rows
    for d, of_shard in enumerate(dealt):
        for row, (place, unit) in enumerate(of_shard, start=d * C):
            ids = prompts.token[unit.prompt]
            out.token_CS[row, S - len(ids) :], out.mask_CS[row, S - len(ids) :] = ids, True
            out.id_C[row], out.at_C[row] = prompts.id_Q[unit.prompt], place
            out.sample_CG[row, : len(unit.sample_G)] = unit.sample_G
            seen[row] = prompts.seen[unit.prompt]
    return out._replace(sight=seeing.sight(seen, out.mask_CS))
