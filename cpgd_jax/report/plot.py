"""Curves as inline SVG coordinates: scales, ticks, thinning, smoothing.

A curve of more than `MAX_POINTS` points is thinned by keeping the lowest and highest of each
stretch, so that a spike is never lost, and gets a moving mean drawn over it.
"""

import math
from typing import NamedTuple

import numpy as np

from cpgd_jax.report.charts import Chart

WIDTH, HEIGHT = 440, 210
LEFT, RIGHT, TOP, BOTTOM = 50, 432, 8, 172  # the plotting area
MAX_POINTS = 400
SMOOTH_FROM = 60  # points; shorter curves are drawn as they are


def draw(chart: Chart, columns: dict, x_label: str = "optimiser step") -> dict | None:
    """Geometry for the template; None when the run has none of the chart's metrics.

    `columns`: name -> (x, y), arrays of equal length; y is NaN where the run was not finite.
    """
    found = [(name, label) for name, label in chart.series if name in columns]
    if not found:
        return None
    scale = 100.0 if chart.percent else 1.0
    lines = [(label, *thin(*columns[name], scale)) for name, label in found]
    x_axis = Axis.over([x for _, x, _ in lines], LEFT, RIGHT, whole_numbers=True)
    log = chart.log and _wide([y for _, _, y in lines])
    if chart.whole:
        y_axis = Axis(0.0, 100.0, BOTTOM, TOP, ticks(0, 100))
    else:
        y_axis = Axis.over([y for _, _, y in lines], BOTTOM, TOP, log=log, zero=True)
    return {
        "title": chart.title,
        "unit": chart.unit + (", log scale" if log else ""),
        "help": chart.help,
        "x_label": x_label,
        "x_ticks": x_axis.labels(),
        "y_ticks": y_axis.labels(),
        "lines": [_line(label, x, y, x_axis, y_axis) for label, x, y in lines],
        "bad": sorted({round(float(x_axis(v)), 1) for _, x, y in lines for v in x[np.isnan(y)]}),
    }


def thin(x, y, scale=1.0):
    """At most about MAX_POINTS points: the lowest and highest of each stretch, in order."""
    x, y = np.asarray(x, float), np.asarray(y, float) * scale
    if len(x) <= MAX_POINTS:
        return x, y
    keep = set()
    for part in np.array_split(np.arange(len(x)), MAX_POINTS // 2):
        values = y[part]
        finite = part[~np.isnan(values)]
        keep |= {finite[y[finite].argmin()], finite[y[finite].argmax()]} if len(finite) else set()
        keep |= set(part[np.isnan(values)][:1])  # a non-finite step stays visible
    keep = np.array(sorted(keep))
    return x[keep], y[keep]


def moving_mean(y):
    """Centred mean over a thirtieth of the curve, ignoring NaN."""
    window = np.ones(max(3, len(y) // 30) | 1)
    known = ~np.isnan(y)
    total = np.convolve(np.where(known, y, 0.0), window, "same")
    count = np.convolve(known.astype(float), window, "same")
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _line(label, x, y, x_axis, y_axis) -> dict:
    px, py = x_axis(x), y_axis(y)
    known = ~np.isnan(py)
    long = len(x) > SMOOTH_FROM
    points = [
        [round(float(a), 1), round(float(b), 1), float(f"{c:.10g}"), short(d)]
        for a, b, c, d in zip(px[known], py[known], x[known], y[known], strict=True)
    ]
    return {
        "label": label,
        "path": path(px, py),
        "smooth": path(px, moving_mean(py)) if long else "",
        "dots": [p[:2] for p in points] if len(points) <= 25 else [],
        "points": points,
        "last": points[-1][3] if points else "not finite",
    }


def path(px, py) -> str:
    """SVG path; the pen lifts over NaN."""
    parts, down = [], False
    for a, b in zip(px, py, strict=True):
        if not math.isnan(b):
            parts.append(f"{'L' if down else 'M'}{a:.1f} {b:.1f}")
        down = not math.isnan(b)
    return "".join(parts)


class Axis(NamedTuple):
    """Maps values low..high to start..end of the drawing."""

    low: float
    high: float
    start: float
    end: float
    marks: list
    log: bool = False

    @classmethod
    def over(cls, parts, start, end, log=False, zero=False, whole_numbers=False):
        values = np.concatenate(parts)
        values = values[~np.isnan(values)]
        low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
        if log:
            return cls(low / 1.1, high * 1.1, start, end, log_ticks(low, high), True)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            low, high = low - 1, high + 1
        marks = ticks(low, high, whole_numbers)
        if not whole_numbers:  # the y axis ends on marks
            step = marks[1] - marks[0]
            low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
            marks = ticks(low, high)
        return cls(float(low), float(high), start, end, marks)

    def __call__(self, value):
        forward = np.log if self.log else np.asarray
        share = (forward(value) - forward(self.low)) / (forward(self.high) - forward(self.low))
        return self.start + share * (self.end - self.start)

    def labels(self) -> list[tuple[float, str]]:
        return [(round(float(self(mark)), 1), short(mark)) for mark in self.marks]


def ticks(low, high, whole_numbers=False) -> list[float]:
    """About five round numbers within low..high."""
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    if whole_numbers:
        step = max(1, round(step))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{i * step:.12g}") for i in range(first, last + 1)]


def log_ticks(low, high) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    marks = [10.0**p for p in powers if low / 1.1 <= 10.0**p <= high * 1.1]
    return marks[:: max(1, math.ceil(len(marks) / 6))]


def _wide(parts) -> bool:
    values = np.concatenate(parts)
    values = values[~np.isnan(values)]
    return len(values) > 1 and values.min() > 0 and values.max() / values.min() > 50


def short(value) -> str:
    """At most about six characters: 1200000 -> 1.2M, 1e-06 -> 1e-6."""
    value = float(value)
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    if value and abs(value) < 1e-3:
        digits, power = f"{value:.2e}".split("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:.4g}"
