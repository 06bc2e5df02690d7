"""The combined table of a sweep: a row a trial, and trials that differ in the seed put together."""

import csv
import difflib
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cpgd_jax import report, workdir
from cpgd_jax.errors import UserError
from cpgd_jax.metrics import METRICS_FILE
from cpgd_jax.sweep.trials import Trial

SHOWN = ("eval/greedy_accuracy", "eval/mean_accuracy", "reward/accuracy", "response/length_mean")


def collect(trials: Sequence[Trial], metric: str) -> list[dict]:
    """A row a trial: its folder, state, changes, and the last value of each metric shown."""
    rows = []
    for trial in trials:
        columns, _ = report.read_columns(trial.folder / METRICS_FILE)
        state = "finished" if trial.finished else "started" if columns else "waiting"
        row = {"trial": trial.folder.name, "state": state, **dict(trial.changes)}
        names = dict.fromkeys((metric, *SHOWN))
        rows.append(row | {name: _last(columns, name) for name in names})
    return rows


def groups(rows: Sequence[dict], fields: Sequence[str], metric: str) -> list[dict]:
    """Mean, std (ddof 1), least and largest metric of finished trials alike but for the seed."""
    alike = {}
    for row in rows:
        if row["state"] == "finished" and row[metric] is not None:
            key = json.dumps({k: row[k] for k in fields if k != "seed" and k in row})
            alike.setdefault(key, []).append(row[metric])
    return [
        json.loads(key)
        | {
            "seeds": len(values),
            "mean": float(np.mean(values)),
            "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
            "least": min(values),
            "largest": max(values),
        }
        for key, values in alike.items()
    ]


def best(grouped: Sequence[dict], largest: bool) -> dict | None:
    """The group of the best mean; None if no trial has finished with the metric."""
    if not grouped:
        return None
    return (max if largest else min)(grouped, key=lambda group: group["mean"])


def write(root: Path, trials: Sequence[Trial], metric: str, largest: bool = True) -> dict:
    """table.csv, table.json and table.md in `root`; returns what table.json holds.

    UserError: they cannot be written, or trials have finished and none has the metric.
    """
    rows = collect(trials, metric)
    fields = sorted({name for trial in trials for name, _ in trial.changes})
    grouped = groups(rows, fields, metric)
    found = {
        "metric": metric,
        "best": best(grouped, largest),
        "groups": sorted(grouped, key=lambda g: g["mean"], reverse=largest),
        "trials": rows,
    }
    try:
        (root / "table.csv").write_text(_csv(rows), encoding="utf-8")
        workdir.write_json(root / "table.json", found)
        (root / "table.md").write_text(_page(found), encoding="utf-8")
    except OSError as error:
        raise UserError(f"the table cannot be written in {root}: {error.strerror}") from error
    _refuse_unknown(trials, metric, grouped)
    return found


def _refuse_unknown(trials, metric: str, grouped) -> None:
    first = next((trial for trial in trials if trial.finished), None)
    if grouped or not first:
        return
    known = report.read_columns(first.folder / METRICS_FILE)[0]
    near = difflib.get_close_matches(metric, known, 1) or sorted(known)[:1]
    raise UserError(
        f"--metric {metric!r}: no finished trial has it; nearest: {(near or ['none'])[0]!r}; give"
        " another, nothing runs again"
    )


def markdown(rows: Sequence[dict]) -> str:
    """A Markdown table of rows; a column for each key."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names)]
    lines += [[_cell(row.get(name)) for name in names] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _page(found: dict) -> str:
    title = f"Means over seeds of the last {found['metric']}, best first"
    return f"{title}\n\n{markdown(found['groups'])}\n{markdown(found['trials'])}"


def _csv(rows) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _cell(value) -> str:
    if value is None:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")


def _last(columns, name):
    values = columns.get(name, ((), np.zeros(0)))[1]
    values = values[np.isfinite(values)]
    return float(values[-1]) if len(values) else None
