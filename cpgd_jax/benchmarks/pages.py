"""The table of an evaluation, as Markdown and as an HTML page."""

import html
from collections.abc import Mapping

from cpgd_jax.benchmarks import paper

Cells = list[list[str]]
_STYLE = "body{font:15px sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
_STYLE += "table{border-collapse:collapse;margin:1em 0}td,th{padding:.3em .8em;text-align:right;"
_STYLE += "border-bottom:1px solid #ccc}td:first-child,th:first-child{text-align:left}"


def sections(name: str, summary: Mapping, with_paper: bool) -> list[tuple[str, Cells, list[str]]]:
    """(title, cells with a first row of headings, notes) of each table."""
    scores = {k: v for k, v in summary.items() if isinstance(v, dict) and "score" in v}
    notes = [f"{key}: {value['rule']}" for key, value in scores.items()]
    if summary.get("overall") is not None:
        notes.append(
            f"Overall: mean of score / {summary['baseline']}'s score over"
            f" {', '.join(summary['overall_of'])}"
        )
    found = [("Scores (%)", _main(name, scores, summary.get("overall"), with_paper), notes)]
    for key, value in scores.items():
        found.append((key, *_details(value)))
    return found


def _main(name: str, scores: Mapping, overall: float | None, with_paper: bool) -> Cells:
    cells = [["", *scores, "Overall"], ["items", *(f"{v['n']:,}" for v in scores.values()), ""]]
    shown = [f"{v['score']:.1f}" for v in scores.values()]
    cells.append([name, *shown, "" if overall is None else f"{overall:.2f}"])
    if with_paper:
        for model, (_, printed) in paper.PAPER.items():
            row = paper.row(model)
            values = [f"{row[key]:.1f}" if key in row else "" for key in scores]
            cells.append([f"{model} (paper)", *values, f"{printed:.2f}"])
    return cells


def _details(value: Mapping) -> tuple[Cells, list[str]]:
    cells = [["", "score", "items"], ["all", f"{value['score']:.1f}", f"{value['n']:,}"]]
    for key, group in value["breakdown"].items():
        for label, part in group.items():
            cells.append([f"{key}: {label}", f"{part['score']:.1f}", f"{part['n']:,}"])
    for key, interval in value.get("intervals", {}).items():
        cells.append([f"{key} ({_between(interval)})", f"{value[key]:.1f}", ""])
    for key, number in value.get("more", {}).items():
        cells.append([key, f"{number:.1f}", ""])
    counts = ", ".join(f"{n} {kind}" for kind, n in value["responses"].items() if kind != "count")
    notes = [f"95% bootstrap interval {_between(value['interval'])}, over items"]
    notes += [f"{value['responses']['count']} responses" + (f"; {counts}" if counts else "")]
    for kind, fault in value["integrity"].items():
        if isinstance(fault, dict):
            notes.append(f"{kind}: {fault['count']} ({'; '.join(map(str, fault['examples']))})")
        else:
            notes.append(f"{kind}: {fault}")
    return cells, notes


def _between(interval) -> str:
    low, high = interval
    return f"{low:.1f} to {high:.1f}"


def markdown(tables) -> str:
    parts = []
    for title, cells, notes in tables:
        rows = [[cell.replace("|", "\\|") for cell in row] for row in cells]
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        lines.insert(1, "|---" + "|--:" * (len(rows[0]) - 1) + "|")
        parts.append("\n".join([f"## {title}", "", *lines, "", *(f"* {n}" for n in notes)]))
    return "\n\n".join(parts) + "\n"


def page(tables) -> str:
    parts = []
    for title, cells, notes in tables:
        rows = [
            "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in row)
            for tag, row in zip(["th"] + ["td"] * len(cells), cells, strict=False)
        ]
        table = "".join(f"<tr>{row}</tr>" for row in rows)
        listed = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
        parts.append(f"<h2>{html.escape(title)}</h2><table>{table}</table><ul>{listed}</ul>")
    head = f"<meta charset=utf-8><title>Evaluation</title><style>{_STYLE}</style>"
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(parts)}</body></html>\n"
