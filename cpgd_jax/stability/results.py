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
        "intro": _intro(scale, found),
        "collapse": summary.COLLAPSE_MEANS,
        "missing": len(plan) - len(found),
        "rows": made,
        "phenomena": {task: summary.phenomena(made, task) for task in scale.tasks},
        "versions": report.versions(),
    }
    try:
        workdir.write_json(root / "study.json", value)
        pictures = figures.draw(found, made, scale.common_rate, root)
        tables = _tables(made, found)
        (root / "study.md").write_text(_markdown(value, tables), encoding="utf-8")
        (root / "study.html").write_text(_page(value, tables, pictures), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{error.filename or root} cannot be written: {error.strerror}") from error
    return value


def _intro(scale: Scale, found) -> str:
    p = scale.pressure
    return (
        f"Tiny Qwen2 policies, {scale.seeds} seeds, {p.rollouts} rollouts of {p.prompts} prompts x"
        f" {p.group} responses, {p.minibatches} optimiser steps a rollout, constant learning rate,"
        f" gradient norm clipped at {p.grad_clip:g}. Accuracy is that of the sampled responses."
        " Own best: the best of the rates that were tried, chosen on the same seeds. Common: the"
        f" rate {scale.common_rate:g}. Intervals: 95%, bootstrap over seeds. {len(found)} batches."
    )


def _tables(made, found) -> dict[str, list[dict]]:
    lag = max(batch.pressure.lag for batch, _ in found)
    tables = {}
    for row in made:
        title = f"{row['task']}: {PARTS[row['part']].format(lag=lag)}"
        tables.setdefault(title, []).append(_line(row))
    return tables


def _line(row: dict) -> dict:
    best, common = row["best"], row["common"]
    return {
        "": figures.NAMES.get(row["label"], row["label"]),
        "own best rate": f"{row['best_rate']:g}",
        "accuracy there": _accuracy(best),
        "collapsed": f"{best['collapsed']:.0%}",
        "accuracy at the common rate": _accuracy(common),
        "collapsed ": f"{common['collapsed']:.0%}" if common else "",
        "clipped": f"{common['clipped']:.2%}" if common else "",
        "largest ratio": f"{common['ratio_max']:.3g}" if common else "",
        "length first → last": f"{common['length_first']:.1f} → {common['length']:.1f}"
        if common
        else "",
    }


def _accuracy(cell) -> str:
    if not cell:
        return ""
    low, high = cell["interval"]
    return f"{100 * cell['accuracy']:.1f}% [{100 * low:.1f}, {100 * high:.1f}]"


def _markdown(value, tables) -> str:
    parts = [value["intro"], value["collapse"]]
    for task, claims in value["phenomena"].items():
        rows = [
            {
                "claim": c["claim"],
                "here": c["verdict"],
                "measured": f"{c['measure']} {', '.join(map(str, c['values']))}",
                "holds at rates": ", ".join(map(str, c["at"])) or "none",
            }
            for c in claims
        ]
        parts += [f"**{task}**", _table(rows)] if rows else []
    for title, rows in tables.items():
        parts += [f"**{title}**", _table(rows)]
    return "\n\n".join(parts) + "\n"


def _table(rows) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(v) for v in r.values()] for r in rows)]
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
        collapse_means=value["collapse"],
        phenomena=value["phenomena"],
        tables=tables,
        pictures=shown,
        versions=value["versions"],
    )
