"""TPU chips and slices: what each holds and does a second, and its topology by name."""

import os
import re
from typing import NamedTuple

import numpy as np

from cpgd_jax.errors import UserError

GIB = 2**30


class Chip(NamedTuple):
    """Peaks, from the vendor's documentation; memory is what a program can use of it."""

    memory_bytes: float
    flops_per_s: float  # of bfloat16 products
    hbm_bytes_per_s: float
    link_bytes_per_s: float  # of one link to a neighbour, one way
    dimensions: int  # of the torus
    wraps_from: int  # a side of so many chips is closed to a ring


CHIPS = {
    "v5e": Chip(15.75 * GIB, 197e12, 819e9, 4.5e10, 2, 16),
    "v5p": Chip(95.74 * GIB, 459e12, 2765e9, 9e10, 3, 4),
    "v6e": Chip(31.25 * GIB, 918e12, 1640e9, 9e10, 2, 16),
}
HOSTS_CHIPS = 2  # a side of a slice is a multiple of it: a host has 2 x 2 chips


class Topology(NamedTuple):
    name: str  # "v5p:4x4x4"
    chip: Chip
    sides: tuple[int, ...]
    devices: list  # that programs are compiled for; no such device need be there


def topology(name: str) -> Topology:
    """`v5p:4x4x4`. UserError: no such chip or slice, or libtpu is not installed."""
    chip, sides = _read(name)
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")  # or libtpu asks the cloud who we are
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")
    try:
        import libtpu  # noqa: F401, PLC0415
        from jax.experimental import topologies  # noqa: PLC0415

        found = topologies.get_topology_desc(platform="tpu", topology_name=name)
    except ImportError as error:
        raise UserError(
            "planning compiles for TPUs with libtpu, which is not installed: pip install"
            " 'cpgd_jax[tpu]'"
        ) from error
    except Exception as error:  # libtpu's are not all of one class
        reason = str(error).splitlines()[0]
        raise UserError(f"--topology {name!r} is refused by libtpu: {reason}") from error
    return Topology(name, CHIPS[chip], sides, list(found.devices))


def _read(name: str) -> tuple[str, tuple[int, ...]]:
    match = re.fullmatch(r"(\w+):(\d+(?:x\d+)*)", name)
    chip, text = match.groups() if match else (name.partition(":")[0], "")
    if chip not in CHIPS:
        raise UserError(f"--topology {name!r}: no chip {chip!r}; choose one of {', '.join(CHIPS)}")
    dimensions = CHIPS[chip].dimensions
    if not match or text.count("x") != dimensions - 1:
        example = "x".join(["4"] * dimensions)
        raise UserError(f"--topology {name!r}: a slice of {chip} is written {chip}:{example}")
    sides = tuple(map(int, text.split("x")))
    nearest = tuple(max(1, round(n / HOSTS_CHIPS)) * HOSTS_CHIPS for n in sides[:2]) + sides[2:]
    if sides != nearest or min(sides) < 1:
        near = "x".join(map(str, nearest))
        raise UserError(
            f"--topology {name!r}: there is no such slice; the nearest is {chip}:{near}"
        )
    return chip, sides


def slice_of(chip: str, chips: int) -> str:
    """The squarest slice of so many chips, a power of two from 4 on: "v5p:4x4x4"."""
    power = chips.bit_length() - 1
    if chip not in CHIPS or chips != 1 << power or power < 2:
        raise UserError(f"--scale {chips}: give a power of two from 4 on, of {', '.join(CHIPS)}")
    n = CHIPS[chip].dimensions
    sides = sorted(1 << (power + i) // n for i in range(n))
    return f"{chip}:{'x'.join(map(str, sides if sides[0] > 1 else sides[::-1]))}"


def bytes_per_s(topology: Topology, group) -> float:
    """Into one chip, of a ring collective among the chips `group` (devices of the topology).

    A dimension of the torus along which they spread brings two links if it is closed, else one,
    since the chip at its end has no more.
    """
    coords = np.array([device.coords[: len(topology.sides)] for device in group])
    links = 0
    for at, side in zip(coords.T, topology.sides, strict=True):
        if len(set(at)) > 1:
            closed = len(set(at)) == side >= topology.chip.wraps_from
            links += 2 if closed else 1
    return max(links, 1) * topology.chip.link_bytes_per_s
