"""Curves as inline SVG coordinates: scales, ticks, thinning, smoothing.

A curve of more than `MAX_POINTS` points is thinned by keeping the lowest and highest of each
stretch, so that a spike is never lost, and gets a moving mean drawn over it.
"""

import math
from typing import NamedTuple

import numpy as np

from cpgd_jax.report.charts import Chart

WIDTH, HEIGHT = 440, 210
LEFT, RIGHT, TOP, BOTTOM = 62, 432, 8, 172  # the plotting area
MAX_POINTS = 400
SMOOTH_FROM = 60  # points; shorter curves are drawn as they are


def draw(chart: Chart, columns: dict, x_label: str = "optimiser step", marks=()) -> dict | None:
    """Geometry for the template; None when the run has none of the chart's metrics.

    `columns`: name -> (x, y), arrays of equal length; y is NaN where the run was not finite.
    `marks`: findings of the watch; those of the chart's metrics are drawn at their step.
    """
    found = [(name, label) for name, label in chart.series if name in columns]
    if not found:
        return None
    scale = 100.0 if chart.percent else 1.0
    lines = [(label, columns[name][0], columns[name][1] * scale) for name, label in found]
    end = max(
        1.0, *(x.max() for x, _ in columns.values() if len(x))
    )  # one x axis for the whole page
    x_axis = Axis(0.0, end, LEFT, RIGHT, ticks(0.0, end, whole_numbers=True))
    log = chart.log and _wide([y for _, _, y in lines])
    if chart.whole:
        y_axis = Axis(0.0, 100.0, BOTTOM, TOP, ticks(0, 100))
    else:
        y_axis = Axis.around([y for _, _, y in lines], BOTTOM, TOP, log)
    return {
        "title": chart.title,
        "unit": chart.unit + (", log scale" if log else ""),
        "help": chart.help,
        "x_label": x_label,
        "x_ticks": x_axis.labels(),
        "y_ticks": y_axis.labels(),
        "lines": [
            _line(label, x, y, x_axis, y_axis, "%" if chart.percent else "")
            for label, x, y in lines
        ],
        "marks": [
            {"x": round(float(x_axis(m.step)), 1), "name": m.name, "late": m.step > end / 2}
            for m in marks
            if m.metric in columns and m.metric in dict(chart.series)
        ],
        "bad": sorted({round(float(x_axis(v)), 1) for _, x, y in lines for v in x[np.isnan(y)]}),
    }


def thin(x, y):
    """At most about MAX_POINTS points: the lowest and highest of each stretch, and the last."""
    if len(x) <= MAX_POINTS:
        return x, y
    keep = {len(x) - 1}
    for part in np.array_split(np.arange(len(x)), MAX_POINTS // 2):
        bad = np.isnan(y[part])
        keep |= set(part[bad][:1])  # a step that is not finite stays visible
        if not bad.all():
            keep |= {part[np.nanargmin(y[part])], part[np.nanargmax(y[part])]}
    keep = np.array(sorted(keep))
    return x[keep], y[keep]


def moving_mean(y):
    """Centred mean over a thirtieth of the curve, ignoring NaN."""
    window = np.ones(max(3, len(y) // 30) | 1)
    known = ~np.isnan(y)
    total = np.convolve(np.where(known, y, 0.0), window, "same")
    count = np.convolve(known.astype(float), window, "same")
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _line(label, x, y, x_axis, y_axis, suffix) -> dict:
    smooth = ""
    if len(x) > SMOOTH_FROM:
        shown = np.unique(np.linspace(0, len(x) - 1, MAX_POINTS // 2).astype(int))
        smooth = path(x_axis(x)[shown], moving_mean(y_axis(y))[shown])
    x, y = thin(x, y)
    px, py = x_axis(x), y_axis(y)
    points = [
        [round(float(a), 1), round(float(b), 1), float(f"{c:.10g}"), short(d) + suffix]
        for a, b, c, d in zip(px, py, x, y, strict=True)
        if not np.isnan(d)
    ]
    return {
        "label": label,
        "path": path(px, py),
        "smooth": smooth,
        "dots": [p[:2] for p in points] if len(points) <= 25 else [],
        "points": points,
        "last": points[-1][3] if points else "not finite" if len(x) else "none",
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
    def around(cls, parts, start, end, log):
        """Holds every finite value; a linear axis also holds 0 and ends on its marks."""
        values = np.concatenate(parts)
        values = values[~np.isnan(values)]
        low, high = (values.min(), values.max()) if len(values) else (0.0, 1.0)
        if log:
            return cls(low / 1.1, high * 1.1, start, end, log_ticks(low, high), True)
        low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            high = 1.0
        step = nice_step(high - low)
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        return cls(float(low), float(high), start, end, ticks(low, high))

    def __call__(self, value):
        forward = np.log if self.log else np.asarray
        share = (forward(value) - forward(self.low)) / (forward(self.high) - forward(self.low))
        return self.start + share * (self.end - self.start)

    def labels(self) -> list[tuple[float, str]]:
        return [(round(float(self(mark)), 1), short(mark)) for mark in self.marks]


def nice_step(span) -> float:
    """1, 2, 2.5 or 5 times a power of ten, about a fifth of the span."""
    power = 10.0 ** math.floor(math.log10(span / 5))
    return next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= span / 5 * 0.999)


def ticks(low, high, whole_numbers=False) -> list[float]:
    """About five round numbers within low..high."""
    step = nice_step(high - low)
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
