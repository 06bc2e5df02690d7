"""Pictures of the study. Colours are Okabe and Ito's; a line style as well tells curves apart."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

from cpgd_jax.stability.plan import Batch

FAMILIES = (  # rows of a picture: few enough curves in each to be told apart
    ("ratio, PPO clip", ("grpo", "rloo", "reinforce_pp", "dapo", "dr_grpo")),
    ("GRPO and its mends", ("grpo", "grpo_no_clip", "grpo_dual_clip", "grpo_drift")),
    ("log-ratio", ("pg", "pgd", "cpg", "cpgd", "gpg")),
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
}
INKS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000")
DASHES = ("-", (0, (6, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (2, 1)))
CURVES = (  # (name of the curve, label with unit, factor, logarithmic)
    ("accuracy", "right answers, %", 100, False),
    ("clipped", "clipped tokens, %", 100, False),
    ("length", "response length, tokens", 1, False),
)
DYNAMICS = (
    ("ratio_max", "largest ratio π/π_old of a rollout", 1, True),
    ("grad_norm_max", "largest gradient norm of a rollout", 1, True),
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


def curves(found: Sequence[tuple[Batch, dict]], rate: float, panels, file: Path) -> None:
    """A row of panels for each family; means over seeds, bands from the least to the largest."""
    by_name = {batch.label: (batch, values) for batch, values in found}
    families = [
        (title, [n for n in names if n in by_name])
        for title, names in FAMILIES
        if any(n in by_name for n in names)
    ]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(
            len(families),
            len(panels),
            figsize=(13.5, 3.1 * len(families)),
            sharex=True,
            sharey="col",
            squeeze=False,
            layout="constrained",
        )
        for row, (title, names) in zip(axes, families, strict=True):
            for index, name in enumerate(names):
                for axis, panel in zip(row, panels, strict=True):
                    _curve(axis, *by_name[name], rate, panel, NAMES[name], index)
            row[-1].legend(title=title, loc="upper left", bbox_to_anchor=(1.02, 1), frameon=False)
        for axis, (_, label, _, log) in zip(axes[0], panels, strict=True):
            axis.set_yscale("log" if log else "linear")
            if not log:
                axis.set_ylim(bottom=0)
            for below in axes[:, list(axes[0]).index(axis)]:
                below.set_ylabel(label)
        for axis in axes[-1]:
            axis.set_xlabel("optimiser step")
        batch = found[0][0]
        figure.suptitle(
            f"{batch.task}: learning rate {rate:g}, {len(batch.seeds)} seeds"
            " (line: mean; band: least to largest)"
        )
        _save(figure, file)


def _curve(axis, batch, values, rate, panel, label, index) -> None:
    name, _, factor, log = panel
    y_NR = np.array(values[name][batch.rates.index(rate)], float) * factor
    y_NR = np.maximum(_known(y_NR), 1e-9) if log else _smooth(y_NR)
    steps = batch.pressure.minibatches * batch.pressure.epochs
    x_R = steps * (1 + np.arange(y_NR.shape[1]))
    mean_R = np.exp(np.log(y_NR).mean(axis=0)) if log else y_NR.mean(axis=0)
    ink, dash = INKS[index], DASHES[index]
    axis.fill_between(x_R, y_NR.min(axis=0), y_NR.max(axis=0), color=ink, alpha=0.13, lw=0)
    axis.plot(x_R, mean_R, color=ink, linestyle=dash, lw=1.9, label=label)


def _known(y_NR):
    """What is not finite takes the value before it, or the least there is."""
    filled, known_NR = y_NR.copy(), np.isfinite(y_NR)
    filled[~known_NR] = y_NR[known_NR].min() if known_NR.any() else 1.0
    for r in range(1, y_NR.shape[1]):
        filled[:, r] = np.where(known_NR[:, r], y_NR[:, r], filled[:, r - 1])
    return filled


def _smooth(y_NR):
    """Mean of the last few rollouts, as far as there are any."""
    y_NR, width = np.nan_to_num(y_NR), max(1, y_NR.shape[1] // 30)
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
            mark = f"{accuracy[y, x]:.0f}%" + (f"   ✕ {lost[y, x]:.0f}%" if lost[y, x] else "")
            ink = "black" if accuracy[y, x] > 50 else "white"
            axis.text(x, y, mark, ha="center", va="center", color=ink)
        axis.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
        axis.set_yticks(range(len(rows)), [NAMES.get(row["label"], row["label"]) for row in rows])
        axis.set_xlabel("learning rate")
        axis.set_title(f"{title}: final accuracy; ✕ = share of seeds collapsed")
        figure.colorbar(image, label="right answers at the end, %")
        _save(figure, file)


def comparison(rows: Sequence[dict], title: str, file: Path) -> None:
    """Final accuracy of each row at the common rate: mean, 95% interval, and every seed."""
    rows = [row for row in rows if row["common"]]
    with plt.rc_context(STYLE):
        figure, axis = plt.subplots(figsize=(9, 1.5 + 0.36 * len(rows)), layout="constrained")
        for y, row in enumerate(rows):
            cell = row["common"]
            low, high = cell["interval"]
            seeds = 100 * np.array(cell["of_seeds"])
            axis.plot(seeds, [y] * len(seeds), "o", mfc="none", color="#8a939c", ms=5)
            axis.plot([100 * low, 100 * high], [y, y], color=INKS[0], lw=2.5)
            axis.plot([100 * cell["accuracy"]], [y], "D", color=INKS[0], ms=6)
        axis.set_yticks(range(len(rows)), [NAMES.get(r["label"], r["label"]) for r in rows])
        axis.invert_yaxis()
        axis.set_xlim(0, 100)
        axis.set_xlabel(
            "right answers at the end, % (diamond: mean, bar: 95% interval, ring: seed)"
        )
        axis.set_title(title)
        _save(figure, file)


def draw(found: Sequence[tuple[Batch, dict]], made: Sequence[dict], rate: float, root: Path):
    """All pictures that the results allow, as (file, caption)."""
    drawn = []

    def add(draw_one, name, caption, *args):
        draw_one(*args, root / name)
        drawn.append((root / name, caption))

    for task in dict.fromkeys(batch.task for batch, _ in found):
        main = [(b, c) for b, c in found if b.part == "main" and b.task == task]
        of_task = [row for row in made if row["task"] == task]
        if main:
            panels = f"{task}: accuracy, clip fraction, response length (the paper's Figure 1)"
            add(curves, f"figure1_{task}.png", panels, main, rate, CURVES)
            add(curves, f"dynamics_{task}.png", f"{task}: ratios, gradients", main, rate, DYNAMICS)
        for part, caption in (("main", "on-policy rollouts"), ("stale", "stale rollouts")):
            rows = [row for row in of_task if row["part"] == part]
            if rows:
                title = f"{task}, {caption}"
                add(stability_map, f"map_{part}_{task}.png", title, rows, title)
        rows = [row for row in of_task if row["part"] == "ablation"]
        if rows:
            title = f"{task}: CPGD with one thing changed, learning rate {rate:g}"
            add(comparison, f"ablations_{task}.png", title, rows, title)
    return drawn


def _save(figure, file: Path) -> None:
    figure.savefig(file, bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)
