"""The rollout: prompts prefilled once, slots that refill, a batch that narrows at the end.

`sample` is what training calls: host arrays in, a `types.Rollout` of host arrays out. The decode
loop (`programs.decode`) runs on the device; the host looks in when its recent columns are full, to
page them out, or when slots stand idle, to bring the next prompts in or to narrow the batch.

What is compiled, however many rollouts of whatever lengths follow: a prefill for each power of two
of prompt lengths, another for those with images, and a decode loop for each power of two of the
longest prompt, of the slots (from those asked for down to 8) and of the pages in use. Weights,
keys, temperature, top-p, stop and forbidden ids and the length caps are arguments.
"""

import jax
import numpy as np
from jax.sharding import Mesh

from cpgd_jax import distributed, sharding, types, vision
from cpgd_jax.models import decoder as decoder_lib
from cpgd_jax.rollout import memory, programs
from cpgd_jax.rollout import prompts as prompts_lib
from cpgd_jax.rollout.answers import Answers
from cpgd_jax.rollout.prompts import Prompts, Unit
from cpgd_jax.rollout.records import Dials, Law, Row
from cpgd_jax.rollout.shapes import NARROWEST, power_of_two, shapes
from cpgd_jax.rollout.shard import Shard
from cpgd_jax.rollout.stores import Stores, join, part


def sample(
    graphdef,
    params,
    prompt_QS,
    prompt_mask_QS,
    *,
    prompt_id_Q,
    group: int,
    max_new_tokens,
    key,
    stop_ids: tuple[int, ...],
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    forbidden_ids: tuple[int, ...] = (),
    slots: int | None = None,
    dtype: str = "",
    cache_dtype: str = "",
    seen: tuple = (),
) -> types.Rollout:
    """Samples `group` responses to each of Q left-padded prompts.

    graphdef, params: `nnx.split(model)`; on a mesh, the rows are split over its data axes. key:
    (seed, step) or a jax random key. prompt_id_Q: ints that name the prompts for the random
    numbers; the text of (key, prompt id, sample) depends on nothing else. max_new_tokens: the cap,
    or one a response, [Q, G]. stop_ids: each ends a response and belongs to it. forbidden_ids:
    never sampled, as if their logits were -inf. temperature 0: greedy, ln-probabilities reported at
    temperature 1. slots: at most so many responses are decoded at a time; None or 0: see `memory`.
    dtype, cache_dtype: of decoding and of its keys and values; "" = the model's. seen: of each
    prompt, from `models.seeing.look`; () = text only. What stands for images is never sampled.
    sampler_logp_BT is that of the law sampled: after temperature, top-k, top-p and forbidden ids.
    Columns past the end hold id 0 and are masked out. UserError when the slots do not fit.
    """
    decoder = decoder_lib.decoder(graphdef, params, dtype)
    if sizes := decoder.config.vision:
        forbidden_ids = (*forbidden_ids, *vision.never_sampled(sizes))
    dials = Dials(
        _key(key),
        _table(stop_ids, decoder.config.vocab_size),
        _table(forbidden_ids, decoder.config.vocab_size),
        np.float32(temperature or 1.0),
        np.float32(top_p),
    )
    prompts = Prompts(
        [np.asarray(ids)[mask] for ids, mask in zip(prompt_QS, prompt_mask_QS, strict=True)],
        (np.asarray(prompt_id_Q).astype(np.int64) & 0xFFFFFFFF).astype(np.uint32),
        np.broadcast_to(max_new_tokens, (len(prompt_QS), group)).astype(np.int32),
        seen or (None,) * len(prompt_QS),
    )
    law = Law(temperature == 0, int(top_k), top_p < 1.0, bool(forbidden_ids))
    return _Engine(graphdef, params, decoder, law, dials, prompts, slots, cache_dtype).run()


class _Engine:
    """One rollout."""

    def __init__(self, graphdef, params, decoder, law, dials, prompts, slots, cache_dtype):
        self.graphdef, self.params, self.decoder = graphdef, params, decoder
        self.law, self.dials, self.prompts = law, dials, prompts
        self.mesh = mesh_of(params)
        self.weights = decoder_lib.weights(graphdef, params, decoder.config.dtype, self.mesh)
        config, asked = decoder.config, prompts.requests()
        cache_dtype, ways = cache_dtype or config.dtype, sharding.row_ways(self.mesh)
        slots = memory.plan(config, self.mesh, asked, slots, cache_dtype).slots
        sizes = shapes(asked, slots, ways)
        self.stores = Stores(self.mesh, config, sizes, ways, cache_dtype)
        self.shards = [Shard(sizes.slots, sizes.places) for _ in range(ways)]
        self.units = prompts_lib.units(prompts, asked.parts(ways))
        self.group = max(len(unit.sample_G) for unit in self.units)
        self.answers = Answers(prompts.limit_QG.reshape(-1), dials.stop_V)
        self.queue_rows = power_of_two(3 * sizes.slots + self.group)
        self.lookahead = max(self.group, sizes.slots // 4)  # requests that should be waiting

    def run(self) -> types.Rollout:
        while True:
            distributed.pulse()
            self._load()
            if not self._busy():
                return self.answers.rollout()
            if not self.units and not any(shard.queue for shard in self.shards):
                self._narrow()
            self._decode()
            if self.stores.column == self.stores.shapes.page:
                self.stores.page_out(self.shards)

    def _busy(self) -> int:
        """Busy slots of the busiest shard."""
        return max(len(shard.busy) for shard in self.shards)

    def _narrow(self) -> None:
        slots = power_of_two(self._busy(), NARROWEST)
        if slots < self.stores.shapes.slots:
            self.stores.narrow(self.shards, slots)

    # ---- prompts

    def _load(self) -> None:
        """Prefills prompts until enough requests wait, and gives them to idle slots."""
        while self.units:
            columns = self.prompts.columns(self.units[0].prompt)
            size = self.stores.shapes.prefill_batch(columns)
            dealt = prompts_lib.deal(self.units, self.shards, size, self.group, self.lookahead)
            if not any(dealt):
                break
            self._prefill(dealt)
        for shard in self.shards:
            shard.fill(self.stores.column)

    def _prefill(self, dealt) -> None:
        *arrays, at_C = prompts_lib.batch(self.prompts, dealt, self.stores.shapes, self.group)
        arrays = distributed.to_devices(arrays, sharding.batch_sharding(self.mesh))
        with jax.set_mesh(self.mesh):  # as in training, attention sees where it is
            k, v, token_CG, logp_CG = programs.prefill(
                self.graphdef, self.params, *arrays, dials=self.dials, law=self.law
            )
        self.stores.place(k, v, at_C)
        rows = len(at_C) // len(dealt)
        token_CG, logp_CG = distributed.to_host((token_CG, logp_CG))
        for d, (shard, of_shard) in enumerate(zip(self.shards, dealt, strict=True)):
            for row, (place, unit) in enumerate(of_shard, start=d * rows):
                self._enqueue(shard, place, unit, token_CG[row], logp_CG[row])

    def _enqueue(self, shard: Shard, place: int, unit: Unit, token_G, logp_G) -> None:
        """The samples of a prompt whose first token did not end them."""
        q, (ids, id_Q, limit_QG, _) = unit.prompt, self.prompts
        request_G = q * limit_QG.shape[1] + unit.sample_G
        token_G, logp_G = token_G[: len(request_G)], logp_G[: len(request_G)]
        self.answers.add(request_G, token_G, logp_G)
        shard.prompt_len_Q[place] = len(ids[q])
        for g in np.flatnonzero(~self.answers.ended(request_G)):
            row = Row(
                request=request_G[g],
                prompt_id=id_Q[q],
                sample=unit.sample_G[g],
                prompt=place,
                first=self.prompts.first(q),
                limit=limit_QG[q, unit.sample_G[g]],
                count=1,
                token=token_G[g],
            )
            shard.queue.append(row)

    # ---- decoding

    def _decode(self) -> None:
        """Runs the loop until the host has something to do."""
        stores, since = self.stores, self.stores.column
        sizes = (stores.page_count, stores.shapes.pages_a_slot, self.queue_rows)
        recent, slots, tape, taken, column = programs.decode(
            self.decoder,
            self.law,
            self.mesh,
            stores.shapes.lanes,
            self.weights,
            stores.prompts,
            stores.pages,
            stores.recent,
            join([shard.account(*sizes) for shard in self.shards]),
            self.dials,
            np.int32(since),
            np.int32(self._floor()),
        )
        stores.recent = recent
        slots, tape, taken, column = distributed.to_host((slots, tape, taken, column))
        stores.column = int(column)
        self.answers.add(*(x[since : stores.column] for x in tape))
        for shard, own, count in zip(self.shards, part(slots, len(taken)), taken, strict=True):
            shard.update(own, int(count))
        rate = taken.max() / (stores.column - since) * stores.shapes.page
        self.lookahead = int(np.clip(1.5 * rate, self.group, 2 * stores.shapes.slots))

    def _floor(self) -> int:
        """With so many busy slots the loop returns: prompts are to be loaded, or it narrows."""
        busy = self._busy()
        if self.units:
            return busy * 3 // 4
        return power_of_two(busy) // 2 if busy > NARROWEST else 0


def mesh_of(params) -> Mesh:
    """The mesh that the parameters are on, or one that splits rows over their devices."""
    placed = jax.tree.leaves(params)[0].sharding
    mesh = getattr(placed, "mesh", None)
    if mesh is None:
        return sharding.make_mesh(devices=list(placed.device_set)[:1])
    if set(sharding.MESH_AXES) <= set(mesh.axis_names):
        return mesh
    return sharding.make_mesh(devices=list(mesh.devices.flat))


def _key(key):
    if isinstance(key, tuple):
        seed, step = key
        return jax.random.fold_in(jax.random.key(seed), step)
    return key


def _table(ids, vocab_size: int) -> np.ndarray:
    table_V = np.zeros(vocab_size, bool)
    table_V[list(ids)] = True
    return table_V
