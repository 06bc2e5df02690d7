"""report.html of a run: one self-contained page, made from the files in its workdir.

Reads metrics.jsonl and, where they exist, rollouts.jsonl, config.json, run.json and summary.json.
Model output is untrusted: the template escapes everything and refers to nothing outside itself.
"""

import json
import os
from collections import Counter
from pathlib import Path

import jinja2
import numpy as np

from cpgd_jax import config as config_lib
from cpgd_jax import jsonl, metrics, watch
from cpgd_jax.errors import UserError
from cpgd_jax.report import charts, plot, samples
from cpgd_jax.report.facts import (
    FACTS_FILE,
    SUMMARY_FILE,
    algorithm_name,
    flat,
    headline,
    run_facts,
    versions,
    write_facts,
)

__all__ = ["versions", "write_facts", "write_report"]


def write_report(workdir) -> Path:
    """Builds WORKDIR/report.html from what the run has written so far."""
    workdir = Path(workdir)
    if not (workdir / metrics.METRICS_FILE).exists():
        raise UserError(f"{workdir} has no {metrics.METRICS_FILE}: give the workdir of a run")
    page, target = template("page.html").render(**collect(workdir)), workdir / "report.html"
    temp = target.with_name(target.name + ".tmp")
    try:
        temp.write_text(page, encoding="utf-8")
        os.replace(temp, target)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}") from error
    return target


def collect(workdir) -> dict:
    """Everything that the template shows."""
    config, facts = read_json(workdir / "config.json"), read_json(workdir / FACTS_FILE)
    columns, alarms = read_columns(workdir / metrics.METRICS_FILE)
    pairs, recent = samples.select(jsonl.read_lines(workdir / metrics.ROLLOUTS_FILE))
    found = findings(config, jsonl.read_lines(workdir / metrics.METRICS_FILE))
    alarms += [(f"step {f.step}: {f.name}: {f.sentence}", 1) for f in found]
    drawn = [plot.draw(chart, columns, marks=found) for chart in charts.CHARTS]
    return {
        "run": workdir.resolve().name,
        "algorithm": algorithm_name(config),
        "facts": run_facts(config, facts),
        "config": flat(config),
        "versions": facts.get("versions") or versions(),
        "headline": headline(columns, config, read_json(workdir / SUMMARY_FILE)),
        "alarms": alarms,
        "notes": notes(config, columns, pairs or recent),
        "charts": [c for c in drawn if c],
        "others": [plot.draw(chart, columns) for chart in charts.others(columns)],
        "plot": plot,
        "hover": hover,
        "pairs": pairs,
        "recent": recent,
    }


def template(name: str):
    """A page of this folder: it escapes what it shows, and a name that it lacks is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    return environment.get_template(name)


def hover(chart: dict) -> str:
    """What the page's script reads of a chart."""
    return json.dumps([{k: line[k] for k in ("label", "points")} for line in chart["lines"]])


def read_json(path) -> dict:
    """An object of a JSON file; {} when there is none to read."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def read_columns(path):
    """({name: (steps, values)}, alarms): the numbers of metrics.jsonl; NaN where they are null."""
    columns, first, count = {}, {}, Counter()
    for row in jsonl.read_lines(path):
        for name, sentence in metrics.alarms_of(row):
            first.setdefault(name, sentence)
            count[name] += 1
        step = row.get("step", row.get("rollout"))
        if not isinstance(step, int | float):
            continue
        for name, value in row.items():
            if value is None or isinstance(value, int | float):
                x, y = columns.setdefault(name, ([], []))
                x.append(step)
                y.append(np.nan if value is None or not np.isfinite(value) else value)
    columns = {name: (np.array(x, float), np.array(y, float)) for name, (x, y) in columns.items()}
    return columns, [(first[name], count[name]) for name in first]


def findings(config, rows) -> list[watch.Finding]:
    """What the watch has told the run, found again in its metrics."""
    try:
        return watch.replay(rows, config_lib.Watch(**config["watch"]))
    except (KeyError, TypeError, ValueError):  # no section of that kind in config.json
        return []


def notes(config, columns, sampled) -> list[str]:
    """What the page cannot show, said instead of left blank."""
    supervised = config.get("stage") == "supervised"
    required = metrics.REQUIRED_SUPERVISED if supervised else metrics.REQUIRED_METRICS
    missing = [name for name in required if name not in columns]
    found = []
    if not config:
        found.append("No readable config.json in this workdir.")
    if not columns:
        found.append("No metrics yet: the run has not finished its first step.")
    elif missing:
        found.append(f"Not recorded by this run: {', '.join(missing)}.")
    if not sampled:
        found.append("No sample responses recorded.")
    return found
