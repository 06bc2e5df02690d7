"""Whether a config fits on a TPU slice and how fast it would be, without a TPU.

Train step, scoring, vision tower, prefill and decode are compiled ahead of time for the slice
(extra `tpu`). From the compiled programs come memory and what travels between chips, from the
traced ones products. Times are rooflines: at the peaks of the chip, the longest of products, memory
and collectives.
"""

import dataclasses
import re

import jax

from cpgd_jax import run, sharding
from cpgd_jax.config import Config
from cpgd_jax.plan import advice, chips, costs, programs

PROGRAMS = ("train_step", "score", "see", "prefill", "decode")


def plan(config: Config, name: str, which=PROGRAMS, advise: bool = True) -> dict:
    """{topology, chips, mesh, fits, headroom, programs, rollout_s, changes} of one slice.

    headroom: of the chip's memory, what the largest program leaves. changes: where it does not fit,
    single changes of the config with which the train step does, the cheapest first.
    """
    topology = chips.topology(name)
    found = measure(config, topology, which)
    if advise and not found["fits"]:
        found["changes"] = advice.changes(config, lambda c: measure(c, topology, ("train_step",)))
    return found


def measure(config: Config, topology: chips.Topology, which=PROGRAMS) -> dict:
    mesh = sharding.make_mesh(*dataclasses.astuple(config.mesh), topology.devices)
    run.check_rows(mesh, "train.microbatch_size", config.train.microbatch_size)
    parts = programs.parts(config, mesh)
    which = [name for name in which if name != "see" or config.model.vision]
    rows = {name: _row(name, parts, topology, mesh) for name in which}
    limit, peak = topology.chip.memory_bytes, max(r["bytes_peak"] for r in rows.values())
    found = {
        "topology": topology.name,
        "chips": mesh.size,
        "mesh": dict(mesh.shape),
        "fits": peak <= limit,
        "headroom": 1 - peak / limit,
        "programs": rows,
    }
    if all("seconds" in r for r in rows.values()) and {*PROGRAMS} - {"see"} <= {*which}:
        found["rollout_s"] = sum(r["seconds"] * r["calls"] for r in rows.values())
    return found


def weak_scaling(config: Config, chip: str, counts: list[int]) -> list[dict]:
    """Plans of the train step; the batch grows with the chips, and the mesh along `data`."""
    grown = []
    for count in counts:
        times = count / counts[0]
        t, r = config.train, config.rollout
        one = dataclasses.replace(
            config,
            mesh=dataclasses.replace(config.mesh, data=-1, fsdp=_fsdp(config, counts[0])),
            train=dataclasses.replace(
                t,
                minibatch_size=int(t.minibatch_size * times),
                microbatch_size=int(t.microbatch_size * times),
            ),
            rollout=dataclasses.replace(r, prompts=int(r.prompts * times)),
        )
        grown.append(plan(one, chips.slice_of(chip, count), ("train_step",), advise=False))
    return grown


def _fsdp(config: Config, count: int) -> int:
    m = config.mesh
    return m.fsdp if m.fsdp != -1 else count // (m.data * m.tensor)


def _row(name: str, parts: programs.Parts, topology: chips.Topology, mesh) -> dict:
    chip = topology.chip
    rollout = (chip.memory_bytes,) if name in ("prefill", "decode") else ()
    try:
        traced = getattr(programs, name)(parts, *rollout)
        return costs.row(traced, costs.needs(traced, topology, mesh), chip, mesh.size)
    except jax.errors.JaxRuntimeError as error:
        return {"bytes_peak": _asked(error), "too_large": str(error).splitlines()[0]}


def _asked(error: Exception) -> int:
    """Bytes that a program which does not fit would take."""
    found = re.search(r"Used ([\d.]+)([MGT]) of", str(error))
    if not found:
        raise error
    return int(float(found[1]) * {"M": 2**20, "G": 2**30, "T": 2**40}[found[2]])
