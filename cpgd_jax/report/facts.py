"""What a report says about a run before its curves: facts, versions, headline numbers."""

import importlib.metadata
import json
from pathlib import Path

import numpy as np

from cpgd_jax.progress import clock_face
from cpgd_jax.report import plot

FACTS_FILE = "run.json"
PACKAGES = ("cpgd_jax", "jax", "flax", "optax", "orbax-checkpoint", "numpy", "transformers")


def write_facts(workdir, **facts):
    """Writes run.json: parameters (a count), seconds, devices… and the installed versions."""
    facts["versions"] = versions()
    (Path(workdir) / FACTS_FILE).write_text(json.dumps(facts, indent=2, default=str) + "\n")


def algorithm_name(config) -> str:
    supervised = config.get("stage") == "supervised"
    return "Supervised" if supervised else str(config.get("algorithm", "Run")).upper()


def headline(columns, config, facts) -> list[dict]:
    """The big numbers: held-out accuracy first -> last, and what it took."""
    k = flat(config).get("eval.samples", "k")
    tiles = [
        _gain("Held-out accuracy, greedy", _known(columns, "eval/greedy_accuracy")),
        _gain(f"Held-out accuracy, mean of {k} samples", _known(columns, "eval/mean_accuracy")),
    ]
    steps = int(max((x.max() for x, _ in columns.values()), default=0))
    seconds = facts.get("seconds")
    sub = f"in {clock_face(seconds)}" if isinstance(seconds, int | float) else ""
    tiles.append({"label": "Optimiser steps", "before": "", "value": f"{steps:,}", "sub": sub})
    return [tile for tile in tiles if tile]


def _gain(label, y) -> dict | None:
    if not len(y):
        return None
    if len(y) == 1:
        return {"label": label, "before": "", "value": f"{y[0]:.1%}", "sub": "measured once"}
    gain = f"{100 * (y[-1] - y[0]):+.1f} points"
    return {"label": label, "before": f"{y[0]:.1%}", "value": f"{y[-1]:.1%}", "sub": gain}


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
        **{
            k.capitalize(): v
            for k, v in facts.items()
            if k not in ("parameters", "versions", "seconds")
        },
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
