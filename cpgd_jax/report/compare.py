"""One page that compares runs: a chart a metric with a curve a run, and where configs differ."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cpgd_jax import metrics, report
from cpgd_jax.errors import UserError
from cpgd_jax.report import charts, plot
from cpgd_jax.report.charts import Chart
from cpgd_jax.report.facts import flat

MOST = 8  # runs whose curves colour and line tell apart
SHOWN = tuple(name for chart in charts.CHARTS for name, _ in chart.series)


def write_comparison(folders: Sequence, target) -> Path:
    """Builds the page `target` from the workdirs of runs. UserError: not runs, too many or few."""
    folders, target = [Path(folder) for folder in folders], Path(target)
    if not 2 <= len(folders) <= MOST:
        raise UserError(f"got {len(folders)} runs to compare: give 2 to {MOST}")
    for folder in folders:
        if not (folder / metrics.METRICS_FILE).exists():
            raise UserError(f"{folder} has no {metrics.METRICS_FILE}: give the workdir of a run")
    page = report.template("compare.html").render(**collect(folders))
    temp = target.with_name(target.name + ".tmp")
    try:
        temp.write_text(page, encoding="utf-8")
        os.replace(temp, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
    return target


def collect(folders: Sequence[Path]) -> dict:
    """Everything that the template shows."""
    names = run_names(folders)
    columns = [report.read_columns(folder / metrics.METRICS_FILE)[0] for folder in folders]
    configs = [flat(report.read_json(folder / "config.json")) for folder in folders]
    known = {name for column in columns for name in column}
    others = charts.others(dict.fromkeys(known))
    drawn = [_overlay(c, names, columns) for chart in charts.CHARTS for c in _by_metric(chart)]
    return {
        "runs": [{"name": name} for name in names],
        "notes": [
            f"{name} has no readable config.json."
            for name, config in zip(names, configs, strict=True)
            if not config
        ],
        "differing": differing(configs),
        "last": [
            (name, [_last(column, name) for column in columns]) for name in SHOWN if name in known
        ],
        "charts": [chart for chart in drawn if chart],
        "others": [c for chart in others if (c := _overlay(chart, names, columns))],
        "plot": plot,
        "hover": report.hover,
    }


def run_names(folders: Sequence[Path]) -> list[str]:
    """The last part of each path; of equal ones the whole path."""
    names = [folder.resolve().name for folder in folders]
    count = Counter(names)
    return [n if count[n] == 1 else str(f) for n, f in zip(names, folders, strict=True)]


def differing(configs: Sequence[dict]) -> list[tuple[str, list[str]]]:
    """(field, its value in each run) where flat configs are not all alike."""
    fields = sorted({name for config in configs for name in config})
    rows = [(name, [config.get(name, "(absent)") for config in configs]) for name in fields]
    return [
        (name, ["(algorithm's own)" if v is None else str(v) for v in values])
        for name, values in rows
        if any(value != values[0] for value in values)
    ]


def _by_metric(chart: Chart) -> list[Chart]:
    """A chart for each of its metrics, since its curves are runs here."""
    alone = len(chart.series) == 1
    return [
        chart._replace(
            title=chart.title if alone else f"{chart.title}: {label}", series=((name, label),)
        )
        for name, label in chart.series
    ]


def _overlay(chart: Chart, names, columns) -> dict | None:
    """The chart's one metric, a curve a run; None if no run has it."""
    (metric, _), *_ = chart.series
    none = (np.zeros(0), np.zeros(0))
    if not any(metric in column for column in columns):
        return None
    overlaid = {f"{i}": column.get(metric, none) for i, column in enumerate(columns)}
    series = tuple((f"{i}", name) for i, name in enumerate(names))
    return plot.draw(chart._replace(series=series), overlaid)


def _last(columns: dict, name: str) -> str:
    values = columns.get(name, ((), np.zeros(0)))[1]
    values = values[np.isfinite(values)]
    return plot.short(values[-1]) if len(values) else ""
