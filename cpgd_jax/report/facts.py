"""What a report says about a run before its curves: facts, versions, headline numbers."""

import importlib.metadata
import json
from pathlib import Path

import numpy as np

from cpgd_jax.progress import clock_face
from cpgd_jax.report import plot

FACTS_FILE, SUMMARY_FILE = "run.json", "summary.json"
PACKAGES = ("cpgd_jax", "jax", "flax", "optax", "orbax-checkpoint", "numpy", "transformers")


def write_facts(workdir, **facts):
    """Writes run.json: parameters (a count), devices… and the installed versions."""
    facts["versions"] = versions()
    (Path(workdir) / FACTS_FILE).write_text(json.dumps(facts, indent=2, default=str) + "\n")


def algorithm_name(config) -> str:
    supervised = config.get("stage") == "supervised"
    return "Supervised" if supervised else str(config.get("algorithm", "Run")).upper()


def headline(columns, config, summary) -> list[dict]:
    """The big numbers: held-out accuracy first -> last, and what it took."""
    k = _last(columns, "eval/samples", flat(config).get("eval.samples", "k"))
    problems = _last(columns, "eval/problems", "")
    of = f"of {problems} problems" if problems else ""
    error = _known(columns, "eval/mean_accuracy_sem")
    of_mean = f"standard error {100 * error[-1]:.1f}" if len(error) else ""
    tiles = [
        _gain("Held-out accuracy, greedy", _known(columns, "eval/greedy_accuracy"), of),
        _gain(f"Held-out, mean of {k} samples", _known(columns, "eval/mean_accuracy"), of_mean),
    ]
    steps = int(max((x.max() for x, _ in columns.values()), default=0))
    seconds = summary.get("seconds")
    took = f"in {clock_face(seconds)}" if isinstance(seconds, int | float) else ""
    tiles.append({"label": "Optimiser steps", "before": "", "value": f"{steps:,}", "sub": took})
    return [tile for tile in tiles if tile]


def _gain(label, y, remark) -> dict | None:
    if not len(y):
        return None
    gain = f"{100 * (y[-1] - y[0]):+.1f} points" if len(y) > 1 else "measured once"
    return {
        "label": label,
        "before": f"{y[0]:.1%}" if len(y) > 1 else "",
        "value": f"{y[-1]:.1%}",
        "sub": ", ".join(filter(None, (gain, remark))),
    }


def _last(columns, name, default):
    y = _known(columns, name)
    return f"{y[-1]:.0f}" if len(y) else default


def _known(columns, name):
    y = columns.get(name, ((), np.zeros(0)))[1]
    return y[~np.isnan(y)]


def run_facts(config, facts) -> list[tuple[str, str]]:
    """What a reader needs to place the run, in one line of chips."""
    c = flat(config)
    parameters = facts.get("parameters")
    size = f"{plot.short(parameters)} parameters" if isinstance(parameters, int | float) else ""
    shape = "{} layers × {} wide".format(
        c.get("model.num_layers", "?"), c.get("model.hidden_size", "?")
    )
    batch = f"{c.get('rollout.prompts', '?')} prompts × {c.get('rollout.samples_per_prompt', '?')}"
    rows = {
        "Model": ", ".join(filter(None, (size, shape if config else ""))),
        "Seed": c.get("seed"),
        "Data": c.get("data.source"),
        "A rollout": batch if "rollout.prompts" in c and c.get("stage") != "supervised" else None,
        "Learning rate": c.get("optim.lr"),
        **{k.capitalize(): v for k, v in facts.items() if k not in ("parameters", "versions")},
    }
    return [(k, str(v)) for k, v in rows.items() if v not in (None, "")]


def flat(config: dict, prefix="") -> dict:
    """{"a": {"b": 1}} -> {"a.b": 1}."""
    out = {}
    for key, value in config.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + str(key)] = value
    return out


def versions() -> dict[str, str]:
    """Installed versions of the packages that a result depends on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
