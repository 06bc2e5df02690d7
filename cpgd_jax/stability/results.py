"""study.json, study.md, study.html and the pictures of what a study has run so far."""

import base64
from collections.abc import Sequence
from pathlib import Path

import jinja2

from cpgd_jax import report, workdir
from cpgd_jax.errors import UserError
from cpgd_jax.stability import figures, runner, summary
from cpgd_jax.stability.plan import Batch, Scale

PARTS = {
    "main": "every algorithm",
    "stale": "rollouts of a policy {lag} rollouts behind",
    "ablation": "CPGD with one thing changed",
}


def write(plan: Sequence[Batch], scale: Scale, root: Path) -> dict:
    """Everything that a person reads, in `root`; returns what study.json holds."""
    root = Path(root)
    found = runner.read(plan, root)
    if not found:
        raise UserError(f"{str(root)!r} holds no batch of this study yet: run it first")
    made = summary.rows(found, scale)
    value = {
        "scale": scale.name,
        "intro": _intro(scale),
        "cpu_minutes": runner.cpu_minutes(plan, root),
        "means": [summary.COLLAPSE_MEANS, summary.INTERVALS_MEAN, summary.VERDICTS_MEAN],
        "missing": len(plan) - len(found),
        "rows": made,
        "phenomena": {task: summary.phenomena(made, task) for task in scale.rates},
        "cpgd_against": {task: summary.against(made, task) for task in scale.rates},
        "versions": report.versions(),
    }
    try:
        workdir.write_json(root / "study.json", value)
        pictures = figures.draw(found, made, root)
        tables = _tables(value, found)
        (root / "study.md").write_text(_markdown(value, tables), encoding="utf-8")
        (root / "study.html").write_text(_page(value, tables, pictures), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename or root} cannot be written: {error.strerror}") from error
    return value


def _intro(scale: Scale) -> str:
    p = scale.pressure
    common = ", ".join(f"{scale.common_rate(task):g} for {task}" for task in scale.rates)
    return (
        f"Tiny Qwen2 policies, {scale.seeds} seeds, {p.rollouts} rollouts of {p.prompts} prompts x"
        f" {p.group} responses, {p.minibatches} optimiser steps a rollout, constant learning rate,"
        f" gradient norm clipped at {p.grad_clip:g}. Accuracy is that of the sampled responses, at"
        " the end: of the last tenth of the rollouts. Own best: the rate of the highest such"
        f" accuracy, chosen on the same seeds. Common rate: {common}, where a pilot showed that"
        " pressure begins to tell."
    )


def _tables(value: dict, found) -> dict[str, list[dict]]:
    lag = max(batch.pressure.lag for batch, _ in found)
    tables = {}
    for task, claims in value["phenomena"].items():
        tables[f"{task}: what the paper's Figure 1 shows"] = [_claim(claim) for claim in claims]
        tables[f"{task}: CPGD's accuracy minus that of others, in points"] = [
            _against(row) for row in value["cpgd_against"][task]
        ]
        for part, title in PARTS.items():
            rows = summary.of_part(value["rows"], task, part)
            tables[f"{task}: {title.format(lag=lag)}"] = [_line(row) for row in rows]
    return {title: rows for title, rows in tables.items() if rows}


def _claim(claim: dict) -> dict:
    values = zip(claim["rates"], claim["values"], claim["intervals"], strict=True)
    measured = {f"{rate:g}": _share(value, bounds) for rate, value, bounds in values}
    name = f"{figures.NAMES[claim['label']]} {claim['claim']}"
    measure = "seeds collapsed"
    if "length" in claim["claim"]:
        measure = "length kept"
    elif "clips" in claim["claim"]:
        measure = "tokens clipped"
    at = ", ".join(f"{rate:g}" for rate in claim["at"]) or "none"
    return {"claim": name, "here": claim["verdict"], "holds at rates": at, "": measure} | measured


def _against(row: dict) -> dict:
    line = {"": figures.NAMES[row["label"]]}
    for at, title in (("best", "own best rates"), ("common", "common rate")):
        found = row[at]
        line[title] = _points(found["difference"], found["interval"], "+") if found else ""
        ours, theirs = found["collapsed"] if found else (0, 0)
        line[f"{title}: seeds collapsed, CPGD and it"] = f"{ours:.0%}, {theirs:.0%}"
    return line


def _line(row: dict) -> dict:
    best, common = row["best"], row["common"]
    line = {"": figures.NAMES.get(row["label"], row["label"])}
    if len(row["rates"]) > 1:
        line |= {
            "own best rate": f"{row['best_rate']:g}",
            "accuracy there, %": _points(best["accuracy"], best["interval"]),
            "collapsed": _share(best["collapsed"], best["collapsed_interval"]),
        }
    if not common:
        return line
    return line | {
        "accuracy at the common rate, %": _points(common["accuracy"], common["interval"]),
        "collapsed ": _share(common["collapsed"], common["collapsed_interval"]),
        "clipped": f"{common['clipped']:.2%}",
        "largest ratio": f"{common['ratio_max']:.3g}",
        "tokens, first → last": f"{common['length_first']:.1f} → {common['length']:.1f}",
    }


def _points(value, bounds, sign: str = "") -> str:
    low, high = (100 * bound for bound in bounds)
    return f"{100 * value:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def _share(value, bounds) -> str:
    """Digits enough for shares near 1%."""
    digits = 0 if value == 0 or bounds[1] > 0.1 else 1
    low, high = (100 * bound for bound in bounds)
    return f"{100 * value:.{digits}f}% [{low:.{digits}f}, {high:.{digits}f}]"


def _markdown(value, tables) -> str:
    parts = [value["intro"], *value["means"], _cost(value)]
    for title, rows in tables.items():
        parts += [f"**{title}**", _table(rows)]
    return "\n\n".join(parts) + "\n"


def _cost(value: dict) -> str:
    left = f"; {value['missing']} batches are still to run" if value["missing"] else ""
    return f"So far {value['cpu_minutes']:.0f} minutes of one core{left}."


def _table(rows) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines = [names, ["---"] * len(names), *([row.get(n, "") for n in names] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _page(value, tables, pictures) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    shown = [(base64.b64encode(f.read_bytes()).decode(), caption) for f, caption in pictures]
    return environment.get_template("page.html").render(
        intro=value["intro"],
        means=value["means"],
        cost=_cost(value),
        tables=tables,
        pictures=shown,
        versions=value["versions"],
    )
