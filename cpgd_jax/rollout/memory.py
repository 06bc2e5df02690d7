"""How much memory a rollout takes on each device and how many slots fit, before it allocates."""

import math
from typing import NamedTuple

import jax.numpy as jnp

from cpgd_jax import distributed, sharding
from cpgd_jax.errors import UserError
from cpgd_jax.rollout.shapes import Requests, Shapes, shapes

DEFAULT_SLOTS = 256  # on each device
SPARE = 0.1  # of what is there, left to the compiler and to fragmentation
GIB = 2**30


class Plan(NamedTuple):
    slots: int  # responses decoded at a time, by all devices together
    kv_bytes: int  # of keys and values on each device, with every response at its cap
    bytes: int  # and of what else the rollout holds beside the decoding weights
    available_bytes: int | None  # on each device; None = not known
    most_slots: int  # that fit


def plan(
    config, mesh, requests: Requests, slots: int | None, cache_dtype: str, there: int | None = None
) -> Plan:
    """slots None or 0: as many as fit, up to the responses asked for and `DEFAULT_SLOTS` a device.

    config: a `qwen2.ModelConfig`. there: bytes on each device, None = as the mesh's devices tell.
    UserError when there is no room for `slots`, or for one.
    """
    ways, responses = sharding.row_ways(mesh), requests.prompts * requests.group
    there = available(mesh) if there is None else there

    def size(count: int) -> tuple[int, int]:
        return _bytes(config, mesh, shapes(requests, count, ways), cache_dtype)

    most = responses if there is None else _most(responses, lambda n: size(n)[1] <= there)
    wanted = min(slots or min(DEFAULT_SLOTS * ways, max(most, 1)), responses)
    kv, everything = size(wanted)
    if wanted > most:
        remedy = f"give slots up to {most}" if most else "shorten prompts or max_new_tokens"
        raise UserError(
            f"slots is {wanted}: each device needs {everything / GIB:.3g} GiB for it"
            f" ({kv / GIB:.3g} of keys and values) and has {there / GIB:.3g}; {remedy}"
        )
    return Plan(wanted, kv, everything, there, most)


def available(mesh) -> int | None:
    """Bytes that each device of the mesh has left, less `SPARE`; None = not known."""
    there = distributed.gather(_available(mesh))
    return None if None in there else min(there)


def _available(mesh) -> int | None:
    """Of the devices of this process."""
    devices = mesh.local_devices
    stats = [device.memory_stats() for device in devices]
    if all(s and "bytes_limit" in s for s in stats):
        return int((1 - SPARE) * min(s["bytes_limit"] - s["bytes_in_use"] for s in stats))
    if devices[0].platform != "cpu":
        return None
    free = _host_memory()
    return free and int((1 - SPARE) * free / len(devices))


def _host_memory() -> int | None:
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":") for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None


def _bytes(config, mesh, sizes: Shapes, cache_dtype: str) -> tuple[int, int]:
    """(keys and values, all) on one device."""
    split = mesh.shape["tensor"] if config.num_kv_heads % mesh.shape["tensor"] == 0 else 1
    head = config.head_dim * config.num_kv_heads // split
    column = 2 * config.num_layers * head * jnp.dtype(cache_dtype).itemsize
    kv = sizes.kv_bytes(column)
    # one layer is there twice when pages move; a batch of prompts on its way to its places, with
    # the widest activations of a block; logits and what sampling makes of them
    columns = sizes.columns
    prompts = sizes.prefill_batch(columns) * columns * (column + 4 * (config.mlp_size * 3))
    logits = 4 * sizes.slots * config.vocab_size * 4
    return kv, kv + math.ceil(kv / config.num_layers) + prompts + logits


def _most(limit: int, fits) -> int:
    """The largest n up to `limit` for which `fits(n)`, which holds for all smaller; 0 = none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
