"""Pictures of the study. Colours are Okabe and Ito's; a line style as well tells curves apart."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from cpgd_jax.stability import summary
from cpgd_jax.stability.plan import Batch

FAMILIES = (  # rows of a picture: few enough curves in each to be told apart, CPGD in all
    ("PPO clip", ("grpo", "rloo", "reinforce_pp", "cpgd")),
    ("GRPO and its mends", ("grpo", "grpo_no_clip", "grpo_dual_clip", "grpo_drift", "cpgd")),
    ("log-ratio: the parts of CPGD", ("pg", "pgd", "cpg", "cpgd")),
    ("not in the paper", ("dapo", "dr_grpo", "gpg", "cpgd")),
)
NAMES = {
    "pg": "PG",
    "pgd": "PGD",
    "cpg": "CPG",
    "cpgd": "CPGD",
    "grpo": "GRPO",
    "grpo_no_clip": "GRPO w/o clip",
    "grpo_dual_clip": "GRPO w/ dual clip",
    "grpo_drift": "GRPO w/ drift",
    "rloo": "RLOO",
    "reinforce_pp": "REINFORCE++",
    "dapo": "DAPO",
    "dr_grpo": "Dr.GRPO",
    "gpg": "GPG",
    "weight std (paper)": "CPGD as in the paper",
}
INKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
DASHES = ((0, (6, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (3, 1)))
BLACK = ("#000000", "-")  # CPGD's
CURVES = (  # (name of the curve, label with unit, factor, logarithmic)
    ("accuracy", "right answers, %", 100, False),
    ("clipped", "clipped tokens, %", 100, False),
    ("length", "response length, tokens", 1, False),
)
DYNAMICS = (
    ("ratio_max", "largest ratio π/π_old of a rollout", 1, True),
    ("grad_norm_max", "largest gradient norm of a rollout\n(drawn from 0.01 up)", 1, True),
    ("entropy", "entropy, nats a token", 1, False),
)
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e9ec",
    "axes.axisbelow": True,
    "figure.dpi": 110,
}


def curves(found: Sequence[tuple[Batch, dict]], rates, panels, title: str, file: Path) -> None:
    """A row of panels for each family, each row at `rates[label]`; means and bands over seeds."""
    by_name = {batch.label: (batch, values) for batch, values in found}
    families = [
        (family, [n for n in names if n in by_name])
        for family, names in FAMILIES
        if any(n in by_name for n in names)
    ]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(families),
            len(panels),
            figsize=(14.5, 2.8 * len(families) + 0.4),
            sharex=True,
            sharey="col",
            squeeze=False,
            layout="constrained",
        )
        for row, (family, names) in zip(axes, families, strict=True):
            for index, name in enumerate(names):
                label = f"{NAMES[name]}, rate {rates[name]:g}" if _mixed(rates) else NAMES[name]
                for axis, panel in zip(row, panels, strict=True):
                    _curve(axis, *by_name[name], rates[name], panel, label, index)
            row[-1].legend(
                title=family,
                loc="upper left",
                bbox_to_anchor=(1.02, 1),
                frameon=False,
                handlelength=3.6,
                alignment="left",
            )
        for column, (_, label, _, log) in zip(axes.T, panels, strict=True):
            for axis in column:
                axis.set_yscale("log" if log else "linear")
                axis.set_ylabel(label, labelpad=8)
                axis.margins(x=0.01)
            if not log:
                column[0].set_ylim(bottom=0)
        for axis in axes[-1]:
            axis.set_xlabel("optimiser step")
        figure.suptitle(title)
        _save(figure, file)


def _mixed(rates) -> bool:
    return len(set(rates.values())) > 1


def _curve(axis, batch, values, rate, panel, label, index) -> None:
    name, _, factor, log = panel
    y_NR = np.array(values[name][batch.rates.index(rate)], float) * factor
    y_NR = np.maximum(_known(y_NR), 1e-2) if log else _smooth(y_NR)
    steps = batch.pressure.minibatches * batch.pressure.epochs
    x_R = steps * (1 + np.arange(y_NR.shape[1]))
    mean_R = np.exp(np.log(y_NR).mean(axis=0)) if log else y_NR.mean(axis=0)
    ink, dash = BLACK if batch.row.name == "cpgd" else (INKS[index], DASHES[index])
    axis.fill_between(x_R, y_NR.min(axis=0), y_NR.max(axis=0), color=ink, alpha=0.1, lw=0)
    axis.plot(x_R, mean_R, color=ink, linestyle=dash, lw=1.9, label=label, zorder=3)


def _known(y_NR):
    """What is not finite takes the value before it, or the least there is."""
    filled, known_NR = y_NR.copy(), np.isfinite(y_NR)
    filled[~known_NR] = y_NR[known_NR].min() if known_NR.any() else 1.0
    for r in range(1, y_NR.shape[1]):
        filled[:, r] = np.where(known_NR[:, r], y_NR[:, r], filled[:, r - 1])
    return filled


def smoothing(rollouts: int) -> int:
    """Rollouts whose mean a point of a linear panel is; a rollout has few prompts."""
    return max(1, rollouts // 20)


def _smooth(y_NR):
    """Mean of the last few rollouts, as far as there are any."""
    y_NR, width = np.nan_to_num(y_NR), smoothing(y_NR.shape[1])
    total = np.cumsum(np.pad(y_NR, ((0, 0), (1, 0))), axis=1)
    stop = np.arange(1, y_NR.shape[1] + 1)
    start = np.maximum(stop - width, 0)
    return (total[:, stop] - total[:, start]) / (stop - start)


def stability_map(rows: Sequence[dict], title: str, file: Path) -> None:
    """Learning rate x algorithm: final accuracy as colour and number, and seeds collapsed."""
    rates = rows[0]["rates"]
    accuracy = np.array([[100 * c["accuracy"] for c in row["cells"]] for row in rows])
    lost = np.array([[100 * c["collapsed"] for c in row["cells"]] for row in rows])
    with plt.rc_context(STYLE | {"axes.grid": False}):
        figure, axis = plt.subplots(
            figsize=(2.6 + 1.5 * len(rates), 1.6 + 0.42 * len(rows)), layout="constrained"
        )
        image = axis.imshow(accuracy, cmap="cividis", vmin=0, vmax=100, aspect="auto")
        for y, x in np.ndindex(*accuracy.shape):
            mark = f"{accuracy[y, x]:.0f}" + (f"   ✕{lost[y, x]:.0f}%" if lost[y, x] else "")
            ink = "black" if accuracy[y, x] > 50 else "white"
            axis.text(x, y, mark, ha="center", va="center", color=ink)
        axis.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axis.set_yticks(range(len(rows)), [NAMES.get(row["label"], row["label"]) for row in rows])
        axis.set_xlabel("learning rate")
        axis.set_title(f"{title}\nnumber: right answers at the end, %; ✕: share of seeds collapsed")
        figure.colorbar(image, label="right answers at the end, %")
        _save(figure, file)


def comparison(rows: Sequence[dict], panels, title: str, file: Path) -> None:
    """Final accuracy of each row: mean, 95% interval, every seed; panels: (cell, heading)."""
    with plt.rc_context(STYLE | {"axes.grid.axis": "x"}):
        figure, axes = plt.subplots(
            1,
            len(panels),
            figsize=(3.4 + 4.8 * len(panels), 1.7 + 0.36 * len(rows)),
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        for axis, (which, heading) in zip(axes[0], panels, strict=True):
            for y, row in enumerate(rows):
                if row[which]:
                    _seeds(axis, y, row[which])
            axis.set_xlim(-2, 102)
            axis.set_xlabel("right answers at the end, %")
            axis.set_title(heading, fontsize=10)
        axes[0, 0].set_yticks(range(len(rows)), [NAMES.get(r["label"], r["label"]) for r in rows])
        axes[0, 0].invert_yaxis()
        figure.suptitle(f"{title}\ndiamond: mean, bar: 95% interval of it, ring: a seed")
        _save(figure, file)


def _seeds(axis, y: int, cell: dict) -> None:
    low, high = (100 * min(max(bound, 0.0), 1.0) for bound in cell["interval"])
    seeds = 100 * np.array(cell["accuracy_of"])
    axis.plot([low, high], [y, y], color=INKS[0], lw=3, alpha=0.45, solid_capstyle="butt")
    axis.plot(seeds, [y] * len(seeds), "o", mfc="none", color="#59636e", ms=6)
    axis.plot([100 * cell["accuracy"]], [y], "D", color=INKS[0], ms=6)


def draw(found: Sequence[tuple[Batch, dict]], made: Sequence[dict], root: Path):
    """All pictures that the results allow, as (file, caption)."""
    drawn = []
    for task in dict.fromkeys(batch.task for batch, _ in found):
        main = [(b, c) for b, c in found if b.part == "main" and b.task == task]
        rows = {part: summary.of_part(made, task, part) for part in ("main", "stale", "ablation")}
        drawn += _main(main, rows["main"], task, root) if main else []
        for part, pressure in (("main", "each rollout fresh"), ("stale", "stale rollouts")):
            if rows[part]:
                file, title = root / f"map_{part}_{task}.png", f"{task}, {pressure}"
                stability_map(rows[part], title, file)
                drawn.append((file, f"{title}: learning rate and algorithm"))
        if rows["ablation"]:
            file = root / f"ablations_{task}.png"
            title = f"{task}: CPGD with one thing changed"
            rate = f"learning rate {rows['ablation'][0]['common_rate']:g}"
            comparison(rows["ablation"], [("common", rate)], title, file)
            drawn.append((file, title))
    return drawn


def _main(main, rows, task: str, root: Path):
    batch, rate, drawn = main[0][0], rows[0]["common_rate"], []
    over = (
        f"{len(batch.seeds)} seeds; line: mean, band: least to largest; accuracy, clip, length and"
        f" entropy: means of {smoothing(batch.pressure.rollouts)} rollouts"
    )
    common = {b.label: rate for b, _ in main}
    best = {row["label"]: row["best_rate"] for row in rows}
    for name, rates, panels, what in (
        ("figure1", common, CURVES, f"every algorithm at the learning rate {rate:g}"),
        ("figure1_best", best, CURVES, "every algorithm at its own best learning rate"),
        ("dynamics", common, DYNAMICS, f"ratios and gradients at the learning rate {rate:g}"),
    ):
        file = root / f"{name}_{task}.png"
        curves(main, rates, panels, f"{task}: {what}\n{over}", file)
        drawn.append((file, f"{task}: {what}"))
    file = root / f"accuracy_{task}.png"
    panels = [("best", "own best learning rate"), ("common", f"learning rate {rate:g}")]
    comparison(rows, panels, f"{task}: accuracy at the end", file)
    return [*drawn, (file, f"{task}: accuracy at the end, with every seed")]


def _save(figure, file: Path) -> None:
    figure.savefig(file, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
