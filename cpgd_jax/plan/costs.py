"""What a compiled program needs of a chip, and how long that takes at the chip's peaks."""

from collections import Counter
from itertools import combinations
from typing import NamedTuple

import jax
import numpy as np

from cpgd_jax.plan import chips, hlo, work
from cpgd_jax.plan.programs import Traced

# The schedule is not what is asked for; memory was equal within 1% at full effort.
OPTIONS = {"exec_time_optimization_effort": -1.0}


class Needs(NamedTuple):
    """Of each device, for one call."""

    arguments: int  # bytes
    temporaries: int
    peak: int  # bytes, with what lies there beside the program
    flops: float
    hbm_bytes: float
    collectives: Counter  # (kind, mesh axes) -> bytes that reach the device
    collective_s: float


def needs(traced: Traced, topology: chips.Topology, mesh) -> Needs:
    """Compiles. RuntimeError of XLA when the program cannot be laid out in the chip's memory."""
    lowered = traced.program.lower()
    compiled = lowered.compile(compiler_options=OPTIONS)
    memory, program = compiled.memory_analysis(), hlo.Program(compiled.as_text())
    held = memory.argument_size_in_bytes + memory.temp_size_in_bytes
    held += memory.output_size_in_bytes - memory.alias_size_in_bytes
    counted, seconds = Counter(), 0.0
    for kind, count, group in program.collectives():
        counted[kind, axes(mesh, group)] += count
        devices = mesh.devices.reshape(-1)[list(group)] if group else mesh.devices.flat
        seconds += count / chips.bytes_per_s(topology, devices)
    return Needs(
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        peak=held + memory.generated_code_size_in_bytes + traced.beside,
        flops=work.flops(traced.program.jaxpr.jaxpr, traced.live) / mesh.size,
        hbm_bytes=program.memory_bytes(),
        collectives=counted,
        collective_s=seconds,
    )


def row(traced: Traced, n: Needs, chip: chips.Chip, devices: int) -> dict:
    """The program's entry in the plan: a roofline, at peaks that no program quite reaches."""
    compute_s, hbm_s = n.flops / chip.flops_per_s, n.hbm_bytes / chip.hbm_bytes_per_s
    seconds = max(compute_s, hbm_s, n.collective_s)
    apart_s = max(compute_s, hbm_s) + n.collective_s
    peak = devices * chip.flops_per_s
    return {
        "bytes_arguments": n.arguments,
        "bytes_temporaries": n.temporaries,
        "bytes_peak": n.peak,
        "flops": n.flops,
        "hbm_bytes": n.hbm_bytes,
        "collective_bytes": {f"{kind} {on}": b for (kind, on), b in sorted(n.collectives.items())},
        "seconds": seconds,
        "seconds_nothing_hidden": apart_s,
        "seconds_of": {"products": compute_s, "memory": hbm_s, "collectives": n.collective_s},
        "mfu": traced.needed_flops / peak / seconds,
        "mfu_nothing_hidden": traced.needed_flops / peak / apart_s,
        "tokens_per_s": traced.tokens / seconds,
        "calls": traced.calls,
    }


def axes(mesh: jax.sharding.Mesh, group) -> str:
    """The mesh axes along which these positions lie: "fsdp", "data+fsdp", else "other"."""
    at = np.arange(mesh.size).reshape(mesh.devices.shape)
    names = [name for name in mesh.axis_names if mesh.shape[name] > 1]
    for count in range(1, len(names) + 1):
        for some in combinations(names, count):
            index = tuple(slice(None) if name in some else 0 for name in mesh.axis_names)
            if set(np.ravel(at[index]).tolist()) == set(group):
                return "+".join(some)
    return "+".join(names) if not group else "other"
