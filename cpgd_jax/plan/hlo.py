"""A compiled program as text: how often each part runs, what travels between devices.

XLA's own cost analysis counts the body of a loop once. Here each computation counts as often as the
loops around it run; a loop whose number of turns is not fixed counts once.
"""

import math
import re
from collections import Counter
from typing import NamedTuple

import numpy as np

WIDTHS = {
    "pred": 1,
    "s4": 0.5,
    "u4": 0.5,
    "s8": 1,
    "u8": 1,
    "s16": 2,
    "u16": 2,
    "bf16": 2,
    "f16": 2,
}
WIDTHS |= {"s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8}
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
# what moves nothing in memory, or is counted where it is called
FREE = {"parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional"}
FREE |= {"call", "partition-id", "replica-id", "iota", "after-all", "copy-done", "copy-start"}
FREE |= {"async-start", "async-done", "call-start", "call-done", "optimization-barrier"}

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?[\])}]) ([a-z][\w\-]*)\((.*)$")
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](\{[^}]*\})?")
_CALLED = re.compile(
    r"\b(?:calls|to_apply|body|condition|branch_computations|called_computations)="
    r"(?:\{([^}]*)\}|%?([\w.\-]+))"
)


class Line(NamedTuple):
    name: str
    shape: str  # of the result
    op: str
    rest: str  # operands and attributes
    root: bool

    @property
    def operands(self) -> list[str]:
        return re.findall(r"%([\w.\-]+)", self.rest.split("), ")[0])


class Program:
    """lines: computation -> its Lines. times: computation -> how often it runs."""

    def __init__(self, text: str):
        self.lines, self.entry = _computations(text)
        self.times = Counter()
        self.fused = set()
        self._walk(self.entry, 1)

    def _walk(self, name: str, times: float) -> None:
        self.times[name] += times
        for line in self.lines[name]:
            called = [
                c.strip().lstrip("%")
                for found in _CALLED.finditer(line.rest)
                for c in (found[1] or found[2]).split(",")
            ]
            turns = self.turns(line) if line.op == "while" else 1
            for one in called:
                if one in self.lines:
                    if line.op == "fusion":
                        self.fused.add(one)
                    self._walk(one, times * turns)

    def turns(self, loop: Line) -> int:
        """Of a while loop; 1 where that depends on data."""
        known = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest)
        if known:
            return int(known[1])
        condition = re.search(r"condition=%?([\w.\-]+)", loop.rest)[1]
        lines = self.lines[condition]
        limits = [re.match(r"(\d+)\)", x.rest) for x in lines if x.op == "constant"]
        simple = not any(x.op in ("and", "or") for x in lines)
        return int(limits[0][1]) if simple and len(limits) == 1 and limits[0] else 1

    def dot_flops(self) -> float:
        """Of the plain products (`dot`), each as often as it runs."""
        total = 0.0
        for name, lines in self.lines.items():
            shapes = {line.name: line.shape for line in lines}
            for line in lines:
                if line.op == "dot":
                    left = _dims(shapes[line.operands[0]])
                    axes = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line.rest)[1]
                    inner = math.prod(left[int(i)] for i in axes.split(",") if i)
                    total += 2 * self.times[name] * math.prod(_dims(line.shape)) * inner
        return total

    def memory_bytes(self) -> float:
        """Read and written by everything that is not fused away; of a slice, the slice."""
        total = 0.0
        for name, lines in self.lines.items():
            if name not in self.fused and self.times[name]:
                sizes = {line.name: size(line.shape) for line in lines}
                total += self.times[name] * sum(self._moved(line, sizes) for line in lines)
        return total

    def _moved(self, line: Line, sizes: dict) -> float:
        if line.op in FREE or line.op.endswith("-done"):
            return 0.0
        operands = [sizes.get(name, 0) for name in line.operands]
        if line.op in ("dynamic-slice", "gather"):
            return 2 * size(line.shape)
        if line.op == "dynamic-update-slice":
            return 2 * operands[1]
        if line.op == "fusion":
            return self._fusion(line, operands)
        return size(line.shape) + sum(operands)

    def _fusion(self, line: Line, operands: list) -> float:
        inside = self.lines[re.search(r"calls=%?([\w.\-]+)", line.rest)[1]]
        sizes = {x.name: size(x.shape) for x in inside}
        written = size(line.shape)
        read = dict(enumerate(operands))
        for x in inside:
            if x.op != "parameter":
                continue
            uses = [y for y in inside if x.name in y.operands]
            at = int(x.rest.split(")")[0])
            if uses and all(y.op in ("dynamic-slice", "gather") for y in uses):
                read[at] = sum(sizes[y.name] for y in uses)
            for y in uses:
                if y.op == "dynamic-update-slice" and y.operands[0] == x.name and len(uses) == 1:
                    read[at] = 0
                    written += sizes[y.operands[1]] - sizes[y.name]
        return max(written, 0) + sum(read.values())

    def collectives(self) -> list[tuple[str, float, tuple[int, ...]]]:
        """(kind, bytes that reach each device, positions of the group of device 0) each."""
        found = []
        for name, lines in self.lines.items():
            for line in lines:
                kind = line.op.removesuffix("-start")
                if kind in KINDS and self.times[name]:
                    group = _group(line.rest)
                    out = _result(line)
                    found.append((kind, self.times[name] * _travels(kind, out, group), group))
        return found


def size(shape: str) -> float:
    """Bytes of an array or a tuple of them in main memory: S(1) is a TPU's own scratch."""
    return sum(
        WIDTHS.get(kind, 0) * math.prod(int(n) for n in dims.split(",") if n)
        for kind, dims, layout in _ARRAY.findall(shape)
        if "S(1)" not in layout
    )


def _dims(shape: str) -> list[int]:
    return [int(n) for n in _ARRAY.search(shape)[2].split(",") if n]


def _result(line: Line) -> float:
    """Bytes of what comes out; an asynchronous gather also names what goes in."""
    if line.op == "all-gather-start" or line.op == "collective-permute-start":
        return max(size(f"{kind}[{dims}]") for kind, dims, _ in _ARRAY.findall(line.shape))
    return size(re.sub(r"S\(\d\)", "", line.shape))


def _travels(kind: str, out: float, group) -> float:
    n = max(len(group), 1)
    share = (n - 1) / n
    factor = {"all-reduce": 2 * share, "reduce-scatter": n - 1, "collective-permute": 1.0}
    return out * factor.get(kind, share)


def _group(rest: str) -> tuple[int, ...]:
    """Positions of the group that device 0 is in; () = not said."""
    if found := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", rest):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", found[1]))
        ids = np.arange(math.prod(map(int, sizes.values()))).reshape([*map(int, sizes.values())])
        if order := re.search(r"device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)", rest):
            ids = _iota(order[1], order[2], ids.shape)
        axes = re.findall(r"'(\w+)'", found[2])
        at = tuple(slice(None) if name in axes else 0 for name in sizes)
        return tuple(int(i) for i in np.ravel(ids[at]))
    if found := re.search(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        ids = _iota(found[3], found[4], (int(found[1]), int(found[2])))
        return tuple(int(i) for i in ids[np.argwhere(ids == 0)[0][0]])
    if found := re.search(r"replica_groups=\{\{([\d,]+)\}", rest):
        return tuple(map(int, found[1].split(",")))
    if found := re.search(r"source_target_pairs=\{\{(\d+),(\d+)\}", rest):
        return (int(found[1]), int(found[2]))
    if found := re.search(r"replica_groups=(?!\{\}).{,80}", rest):
        raise ValueError(f"groups of a collective in an unknown notation: {found[0]}")
    return ()


def _iota(dims: str, order: str | None, shape):
    dims = [int(n) for n in dims.split(",")]
    ids = np.arange(math.prod(dims)).reshape(dims)
    if order:
        ids = ids.transpose([int(n) for n in order.split(",")])
    return ids.reshape(shape)


def _computations(text: str):
    lines, entry, here = {}, "", None
    for raw in text.splitlines():
        if head := _HEAD.match(raw):
            here = lines.setdefault(head[2], [])
            entry = head[2] if head[1] else entry
        elif here is not None and (line := _LINE.match(raw)):
            here.append(Line(*line.groups(), root=raw.lstrip().startswith("ROOT")))
    return lines, entry
