"""A run's programs, traced for devices that need not be there: train step, scoring, rollout.

They are the functions that training calls, of the shapes that its longest batch would have: every
prompt of `max_prompt_len` tokens and every response of `max_response_len`. Where the model sees,
each prompt holds one image that leaves `TEXT` tokens for the question.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from cpgd_jax import checkpoint, flops, initial, optim, packing, sharding, train
from cpgd_jax.config import Config
from cpgd_jax.models import chunked_attention, kv_cache, seeing
from cpgd_jax.models import decoder as decoder_lib
from cpgd_jax.plan import work as work_lib
from cpgd_jax.rollout import memory, programs, scoring
from cpgd_jax.rollout import shapes as shapes_lib
from cpgd_jax.rollout.records import Dials, Law
from cpgd_jax.rollout.shard import Shard
from cpgd_jax.rollout.stores import join
from cpgd_jax.run import Run
from cpgd_jax.types import Patches, Seen, Sight, Spans, TrainBatch

SPLASH_BLOCK = 512
TEXT = 128  # tokens of a prompt with an image that are not the image's


class Traced(NamedTuple):
    """A program before it is compiled."""

    program: Any  # what `jit(...).trace` gives
    needed_flops: float  # model FLOPs that it cannot do without, of all devices
    live: float  # share of the blocks of attention in which something is seen
    tokens: int  # trained, scored or sampled by one call
    calls: float  # in a rollout
    beside: int  # bytes a device that stay there meanwhile


class Parts(NamedTuple):
    run: Run
    row: Any  # of ALGORITHMS
    state: Any  # TrainState of ShapeDtypeStructs
    sizes: Any  # ModelConfig


def parts(config: Config, mesh) -> Parts:
    """What training would build; allocates nothing."""
    row, _ = train.algorithm_row(config)
    optimizer = optim.make_optimizer(config.optim, config.total_steps, config.seed)
    graphdef, state = initial.shapes(config, mesh, optimizer)
    places = jax.tree.map(lambda x: x.sharding, state)
    run = Run(config, None, None, None, [], mesh, graphdef, optimizer, places)
    return Parts(run, row, state, checkpoint.model_config(config.model))


def train_step(p: Parts) -> Traced:
    config, mesh = p.run.config, p.run.mesh
    batch = longest_batch(config, p.row, config.train.minibatch_size)
    with jax.set_mesh(mesh):
        row_len = p.run.row_len
    ways, size = sharding.row_ways(mesh), config.train.microbatch_size
    micro = packing.pack(batch, size, ways, row_len, _seen(config, batch.group_B))
    placed = _placed(micro, sharding.batch_sharding(mesh, axis=1))
    step = train.make_step(p.run, p.row).jitted
    with jax.set_mesh(mesh):
        traced = step.trace(p.state, placed)
    work = _work(batch)
    needed = flops.train_step(config.model, work)
    live = _live(micro.packed.spans)
    return Traced(traced, needed, live, work.head_tokens, config.steps_per_rollout, 0)


def score(p: Parts) -> Traced:
    """A microbatch of `old` log-probabilities."""
    config, mesh = p.run.config, p.run.mesh
    size = config.train.microbatch_size
    batch = longest_batch(config, p.row, size)
    with jax.set_mesh(mesh):
        row_len = p.run.row_len
    ways, seen = sharding.row_ways(mesh), _seen(config, batch.group_B)
    packed = packing.lay_out(batch, [np.arange(size)], ways, row_len, seen)
    packed = jax.tree.map(lambda x: x[0], packed)
    placed = _placed(packed, sharding.batch_sharding(mesh))
    temperature = float(config.rollout.temperature)
    with jax.set_mesh(mesh):
        traced = scoring.score.trace(
            p.run.graphdef, p.state.params, placed, temperature=temperature
        )
    work, calls = _work(batch), config.rollout.prompts * config.rollout.samples_per_prompt / size
    needed = flops.forward(config.model, work)
    beside = bytes_a_device(p.state.opt_state)
    return Traced(traced, needed, _live(packed.spans), work.head_tokens, calls, beside)


def see(p: Parts) -> Traced:
    """The vision tower, an image on each row of the mesh."""
    config, mesh, v = p.run.config, p.run.mesh, p.sizes.vision
    ways, side = sharding.row_ways(mesh), v.window_size // v.patch_size
    patches, units = side**2, (side // v.merge_size) ** 2  # of a window
    N = shapes_lib.power_of_two(-(-_image_tokens(config) // units))
    shape, C = jax.ShapeDtypeStruct, 3 * v.temporal_patch_size * v.patch_size**2
    arrays = Patches(
        shape((ways, N, patches, C), np.float32),
        shape((ways, N, patches, 2), np.int32),
        shape((ways, N, patches), np.bool_),
        shape((ways, N), np.int32),
        shape((ways, N * units), np.int32),
    )
    arrays = _placed(arrays, sharding.batch_sharding(mesh))
    with jax.set_mesh(mesh):
        traced = seeing.see.trace(p.run.graphdef, p.state.params, arrays)
    needed, calls = work_lib.flops(traced.jaxpr.jaxpr), config.rollout.prompts / ways
    beside = bytes_a_device(p.state.opt_state)
    return Traced(traced, needed, 1.0, ways * _image_tokens(config), calls, beside)


def prefill(p: Parts, memory_bytes: float) -> Traced:
    """A batch of prompts."""
    r, mesh, sizes = p.run.config.rollout, p.run.mesh, _rollout_shapes(p, memory_bytes)
    ways, S = sharding.row_ways(mesh), sizes.columns
    C = ways * sizes.prefill_batch(S)
    shape = jax.ShapeDtypeStruct
    arrays = (
        shape((C, S), np.int32),
        shape((C, S), np.bool_),
        shape((C,), np.uint32),
        shape((C, sizes.lanes), np.int32),
    )
    model = p.run.config.model
    sight = Sight(shape((C, S, 3), np.int32), shape((C, S, model.hidden_size), model.dtype))
    sight = sight if model.vision else None
    arrays, sight = _placed((arrays, sight), sharding.batch_sharding(mesh))
    with jax.set_mesh(mesh):
        traced = programs.prefill.trace(
            p.run.graphdef, p.state.params, *arrays, sight=sight, dials=_dials(p), law=_law(p)
        )
    pairs = C * r.max_prompt_len * (r.max_prompt_len + 1) // 2
    work = flops.Work(C * r.max_prompt_len, pairs, C)
    beside = bytes_a_device(p.state.opt_state) + bytes_a_device(_weights(p))
    beside += bytes_a_device(_stores(p, sizes))
    needed = flops.forward(p.run.config.model, work)
    live = (S // SPLASH_BLOCK + 1) / (2 * S / SPLASH_BLOCK)
    return Traced(traced, needed, live, C * r.max_prompt_len, r.prompts / C, beside)


def decode(p: Parts, memory_bytes: float) -> Traced:
    """One step of the loop, every slot at its length cap."""
    config, mesh, sizes = p.run.config, p.run.mesh, _rollout_shapes(p, memory_bytes)
    ways = sharding.row_ways(mesh)
    pages = sizes.slots * sizes.pages_a_slot
    queue = shapes_lib.power_of_two(3 * sizes.slots + sizes.lanes)
    account = join(
        [Shard(sizes.slots, sizes.places).account(pages, sizes.pages_a_slot, queue)] * ways
    )
    traced = programs.decode.trace(
        _decoder(p),
        _law(p),
        mesh,
        sizes.lanes,
        _weights(p),
        *_stores(p, sizes),
        _placed(account, sharding.batch_sharding(mesh)),
        _dials(p),
        np.int32(0),
        np.int32(0),
    )
    B, r = sizes.slots * ways, config.rollout
    seen = B * (r.max_prompt_len + r.max_response_len)
    needed = flops.forward(config.model, flops.Work(B, seen, B))
    steps = math.ceil(r.prompts * r.samples_per_prompt / B) * r.max_response_len
    beside = bytes_a_device(p.state)
    return Traced(traced, needed, 1.0, B, steps, beside)


def longest_batch(config: Config, row, count: int) -> TrainBatch:
    """`count` responses of full length in groups, on the host."""
    r = config.rollout
    S, T = r.max_prompt_len, r.max_response_len
    zero_BT = np.zeros((count, T), np.float32)
    return TrainBatch(
        prompt_BS=np.zeros((count, S), np.int32),
        prompt_mask_BS=np.ones((count, S), bool),
        response_BT=np.zeros((count, T), np.int32),
        mask_BT=np.ones((count, T), bool),
        old_logp_BT=zero_BT,
        advantage_BT=zero_BT,
        group_B=np.arange(count, dtype=np.int32) // r.samples_per_prompt,
        ref_logp_BT=zero_BT if row.kl_coef > 0 and row.kl_in == "loss" else None,
        sampler_logp_BT=zero_BT if row.sampler_is_cap > 0 else None,
    )


def _image_tokens(config: Config) -> int:
    return max(config.rollout.max_prompt_len - TEXT, 1)


def _seen(config: Config, group_B) -> tuple:
    """Of the prompt of each group; () for a text model."""
    model, S = config.model, config.rollout.max_prompt_len
    if not model.vision:
        return ()
    at_F = np.arange(_image_tokens(config), dtype=np.int32)
    feature_FD = np.zeros((len(at_F), model.hidden_size), jnp.dtype(model.dtype))
    return (Seen(np.zeros((S, 3), np.int32), at_F, feature_FD, None),) * (int(group_B.max()) + 1)


def bytes_a_device(tree) -> int:
    """Of arrays or ShapeDtypeStructs with shardings."""
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree)
    )


def _work(batch: TrainBatch) -> flops.Work:
    return flops.work(batch.prompt_mask_BS, batch.mask_BT, batch.group_B)


def _live(spans: Spans) -> float:
    U = spans.first_WU.shape[-1]
    first_WU = spans.first_WU.reshape(-1, U)
    added = np.broadcast_to(np.arange(U, U + -U % SPLASH_BLOCK), (len(first_WU), -U % SPLASH_BLOCK))
    blocks = (
        jnp.asarray(np.concatenate([x.reshape(-1, U), added], axis=1).reshape(-1, SPLASH_BLOCK))
        for x in spans
    )
    key_ZX, count_Z = chunked_attention.live(Spans(*blocks), len(first_WU))
    return float(count_Z.sum()) / key_ZX.size


def _placed(tree, place):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree)


def _rollout_shapes(p: Parts, memory_bytes: float) -> shapes_lib.Shapes:
    """As `rollout.engine` chooses them on devices with so much memory."""
    r, mesh = p.run.config.rollout, p.run.mesh
    asked = shapes_lib.Requests(
        r.prompts, r.samples_per_prompt, r.max_prompt_len, r.max_response_len
    )
    free = memory_bytes - bytes_a_device(p.state) - bytes_a_device(_weights(p))
    config = _decoder(p).config
    cache_dtype = r.cache_dtype or config.dtype
    plan = memory.plan(
        config, mesh, asked, r.slots, cache_dtype, there=int((1 - memory.SPARE) * free)
    )
    return shapes_lib.shapes(asked, plan.slots, sharding.row_ways(mesh))


def _decoder(p: Parts) -> decoder_lib.Decoder:
    return decoder_lib.decoder(p.run.graphdef, p.state.params, p.run.config.rollout.decode_dtype)


def _weights(p: Parts):
    dtype, mesh = _decoder(p).config.dtype, p.run.mesh
    found = decoder_lib.weights.trace(p.run.graphdef, p.state.params, dtype, mesh).out_info
    rules = decoder_lib.DECODE_RULES

    def place(axes, x):
        spec = sharding.partition_spec(axes, rules)
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec))

    def layer(state):
        return jax.tree.map(
            lambda v: v.replace(place(v.get_metadata()["logical_axes"][1:], v.get_raw_value())),
            state,
            is_leaf=lambda x: isinstance(x, nnx.Variable),
        )

    table = ("vocab", "embed")
    return dataclasses.replace(
        found,
        embed_VD=place(table, found.embed_VD),
        unembed_VD=None if found.unembed_VD is None else place(table, found.unembed_VD),
        final_norm_D=place(("norm",), found.final_norm_D),
        layers=tuple(map(layer, found.layers)),
    )


def _stores(p: Parts, sizes: shapes_lib.Shapes) -> tuple:
    """(prompts, pages, recent) as `rollout.stores` lays them out."""
    c, mesh, ways = p.sizes, p.run.mesh, sharding.row_ways(p.run.mesh)
    dtype = p.run.config.rollout.cache_dtype or _decoder(p).config.dtype
    heads = "tensor" if c.num_kv_heads % mesh.shape["tensor"] == 0 else None
    place = NamedSharding(mesh, P(sharding.RULES["batch"], heads))

    def store(entries, columns):
        shape = (ways * entries, c.num_kv_heads, c.head_dim, columns, dtype)
        one = jax.eval_shape(lambda: kv_cache.empty(*shape))
        return (_placed(one, place),) * c.num_layers

    prompts, recent = store(sizes.places, sizes.columns), store(sizes.slots, sizes.page)
    return prompts, store(sizes.slots * sizes.pages_a_slot, sizes.page), recent


def _dials(p: Parts) -> Dials:
    place = sharding.replicated(p.run.mesh)
    table = jax.ShapeDtypeStruct((p.sizes.vocab_size,), np.bool_, sharding=place)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return Dials(key, table, table, np.float32(1), np.float32(1))


def _law(p: Parts) -> Law:
    r = p.run.config.rollout
    return Law(r.temperature == 0, r.top_k, r.top_p < 1.0, p.sizes.vision is not None)
