"""The cache on the devices, and how it moves; the host's account of it is in `shard`."""

import functools

import jax
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cpgd_jax.models import kv_cache
from cpgd_jax.rollout import programs
from cpgd_jax.rollout.shapes import NARROWEST, Shapes, power_of_two
from cpgd_jax.rollout.shard import Shard
from cpgd_jax.sharding import RULES


class Stores:
    """Prompts, pages and recent columns of all shards; `column` is the next to be written."""

    def __init__(self, mesh, config, shapes: Shapes, ways: int, dtype: str):
        self.mesh, self.config, self.shapes = mesh, config, shapes
        self.ways, self.dtype = ways, dtype
        self.prompts = self._empty(shapes.places, shapes.columns)
        self.recent = self._empty(shapes.slots, shapes.page)
        self.pages, self.page_count, self.column = self._empty(0, shapes.page), 0, 0

    def place(self, k_LCSKH, v_LCSKH, at_C) -> None:
        """Takes prefilled prompts in."""
        self.prompts = programs.place(self.mesh, self.prompts, k_LCSKH, v_LCSKH, at_C)

    def page_out(self, shards: list[Shard]) -> None:
        """The recent columns become pages; decoding starts again at column 0."""
        needed = max(len(shard.page_start) + len(shard.busy) for shard in shards)
        pages = min(power_of_two(needed, NARROWEST), self.shapes.slots * self.shapes.pages_a_slot)
        if pages > self.page_count or pages <= self.page_count // 4:
            self._resize_pages(shards, pages)
        at_B = [shard.page_out(self.shapes.page, self.page_count) for shard in shards]
        self.pages = programs.flush(self.mesh, self.pages, self.recent, join(at_B))
        self.column = 0

    def narrow(self, shards: list[Shard], slots: int) -> None:
        """Keeps the busy slots, their pages and prompts."""
        self.shapes = self.shapes.narrowed(slots)
        self.recent = self._take(self.recent, [shard.narrow(slots) for shard in shards])
        places = [shard.renumber_places(self.shapes.places) for shard in shards]
        self.prompts = self._take(self.prompts, places)
        used = max(len(shard.page_start) for shard in shards)
        if used and power_of_two(used, NARROWEST) < self.page_count:
            self._resize_pages(shards, power_of_two(used, NARROWEST))

    def _resize_pages(self, shards: list[Shard], pages: int) -> None:
        if self.page_count:
            self.pages = self._take(self.pages, [shard.renumber_pages(pages) for shard in shards])
        else:
            self.pages = self._empty(pages, self.shapes.page)
        self.page_count = pages

    def _take(self, stores, index) -> tuple:
        """Layer by layer, so that at most one is there twice."""
        stores, index = list(stores), join(index)
        for layer in range(len(stores)):
            stores[layer] = programs.take(self.mesh, stores[layer], index)
        return tuple(stores)

    def _empty(self, entries: int, columns: int) -> tuple:
        c = self.config
        heads = "tensor" if c.num_kv_heads % self.mesh.shape["tensor"] == 0 else None
        place = NamedSharding(self.mesh, P(RULES["batch"], heads))
        sizes = (self.ways * entries, c.num_kv_heads, c.head_dim, columns, self.dtype)
        return tuple(_maker(sizes, place)() for _ in range(c.num_layers))


@functools.cache
def _maker(sizes, place):
    return jax.jit(lambda: kv_cache.empty(*sizes), out_shardings=place)


def join(records):
    """The shards' records as one."""
    return jax.tree.map(lambda *x: np.concatenate(x), *records)


def part(record, ways: int) -> list:
    """A record a shard, of arrays that may be changed."""
    return [
        jax.tree.map(lambda x, d=d: np.array(np.split(x, ways)[d]), record) for d in range(ways)
    ]
