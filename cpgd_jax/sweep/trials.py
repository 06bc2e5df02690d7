"""Which runs a sweep consists of: a grid, random draws or a list of changes to one config.

Fields are named as in configs/base.py (`optim.lr`). Values come from flags or a JSON file; nothing
is evaluated.
"""

import hashlib
import itertools
import json
import math
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cpgd_jax import config as config_lib
from cpgd_jax import train
from cpgd_jax.errors import UserError

NAME_LENGTH = 80  # characters of a folder's name before the digest
KEYS = ("grid", "random", "trials", "list")


@dataclass(frozen=True)
class Spec:
    """What to try. Each of `list` is combined with each point of the grid and each draw."""

    grid: Mapping[str, Sequence]  # field -> values
    random: Mapping[str, Sequence | Mapping]  # field -> values, {"uniform" | "log": [low, high]}
    trials: int = 0  # random draws
    list: Sequence[Mapping] = ({},)  # changes, field by field


@dataclass(frozen=True)
class Trial:
    """One run: its changes to the config, and its folder."""

    changes: tuple[tuple[str, object], ...]
    folder: Path

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").is_file()


def read_spec(file: str, grid: Iterable[str], random: Iterable[str], trials: int) -> Spec:
    """Of a JSON file ("" = none) and of flags `FIELD=VALUE,VALUE` and `FIELD=LOW:HIGH[:log]`."""
    given = _read(file) if file else {}
    spec = Spec(
        {**given.get("grid", {}), **dict(map(_grid_flag, grid))},
        {**given.get("random", {}), **dict(map(_random_flag, random))},
        trials or given.get("trials", 0),
        given.get("list", [{}]),
    )
    if bool(spec.random) != bool(spec.trials):
        raise UserError(
            f"{spec.trials} random trials of {len(spec.random)} fields: give both --random and"
            " --trials, or neither"
        )
    if not (spec.grid or spec.random or any(spec.list)):
        raise UserError("nothing to sweep: give --grid, --random or --file")
    return spec


def make_trials(spec: Spec, root: Path, seed: int = 0) -> list[Trial]:
    """All trials in a fixed order; the same draws for the same seed."""
    rng = np.random.default_rng(seed)
    draws = [
        {name: _draw(rng, name, law) for name, law in spec.random.items()}
        for _ in range(spec.trials)
    ]
    points = itertools.product(*([(k, v) for v in values] for k, values in spec.grid.items()))
    made = {}
    for point, draw, listed in itertools.product(list(points), draws or [{}], spec.list):
        changes = tuple(sorted({**dict(point), **draw, **listed}.items()))
        trial = Trial(changes, Path(root) / folder_name(changes))
        made[trial.folder] = trial
    return list(made.values())


def checked(values, trial: Trial) -> config_lib.Config:
    """The trial's config. UserError: an unknown field, a bad value, values that contradict."""
    values = values.copy_and_resolve_references()
    for name, value in trial.changes:
        *parents, last = name.split(".")
        section = values
        for parent in parents:
            section = section.get(parent, {})
        if last not in section:
            raise UserError(f"unknown config key config.{name}; see configs/base.py")
        value = tuple(value) if isinstance(value, list) else value
        with values.unlocked():
            del section[last]  # the type is checked below, in one place
            section[last] = value
    config = config_lib.from_config_dict(values)
    if config.stage != "supervised":
        train.algorithm_row(config)
    return config


def command(trial: Trial, config_file: str, overrides: Mapping) -> list[str]:
    """The arguments that run a trial; overrides: those of the whole sweep."""
    changes = {**overrides, **dict(trial.changes)}
    flags = [f"--config.{name}={_text(value)}" for name, value in changes.items()]
    head = [sys.executable, "-m", "experiments.train", f"--config={config_file}"]
    return [*head, f"--workdir={trial.folder}", *flags]


def shell_line(arguments: Sequence[str]) -> str:
    return shlex.join(["python", *arguments[1:]])


def folder_name(changes) -> str:
    """Readable, safe as a file name, and different for different changes."""
    text = ",".join(f"{name.split('.')[-1]}={_text(value)}" for name, value in changes)
    digest = hashlib.blake2b(json.dumps(changes).encode(), digest_size=3).hexdigest()
    return f"{re.sub('[^A-Za-z0-9_.,=+-]', '-', text)[:NAME_LENGTH]}-{digest}"


def _text(value) -> str:
    return str(tuple(value)) if isinstance(value, list | tuple) else str(value)


def _read(file: str) -> dict:
    try:
        given = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--file {file!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"--file {file!r} is no JSON: {error}") from error
    shapes = {"grid": dict, "random": dict, "trials": int, "list": list}
    for key, value in given.items() if isinstance(given, dict) else [("the whole", given)]:
        if key not in shapes or not isinstance(value, shapes[key]):
            raise UserError(
                f"--file {file!r}: {key} = {str(value)[:60]!r}; it may hold an object 'grid', an"
                " object 'random', a number 'trials', and a 'list' of objects"
            )
    for name, values in given.get("grid", {}).items():
        if not isinstance(values, list) or not values:
            raise UserError(f"--file {file!r}: grid.{name} must be a list of values")
    if not all(isinstance(row, dict) for row in given.get("list", [])):
        raise UserError(f"--file {file!r}: every entry of 'list' must be an object")
    return given


def _grid_flag(text: str) -> tuple[str, list]:
    name, equals, values = text.partition("=")
    if not (name and equals and values):
        raise UserError(f"--grid {text!r}: write FIELD=VALUE,VALUE, e.g. optim.lr=1e-4,3e-4")
    return name, [_value(v) for v in values.split(",")]


def _random_flag(text: str) -> tuple[str, object]:
    name, equals, law = text.partition("=")
    low, colon, high = law.removesuffix(":log").partition(":")
    if colon:
        kind = "log" if law.endswith(":log") else "uniform"
        return name, {kind: [_value(low), _value(high)]}
    if not (name and equals and law):
        raise UserError(f"--random {text!r}: write FIELD=LOW:HIGH, FIELD=LOW:HIGH:log or FIELD=A,B")
    return name, _grid_flag(text)[1]


def _value(text: str):
    """A number, true, false or null as JSON has it; else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)


def _draw(rng, name: str, law):
    if isinstance(law, list) and law:
        return law[int(rng.integers(len(law)))]
    kind, bounds = next(iter(law.items())) if isinstance(law, dict) and len(law) == 1 else ("", [])
    numbers = isinstance(bounds, list) and len(bounds) == 2
    numbers = numbers and all(type(b) in (int, float) and math.isfinite(b) for b in bounds)
    if kind not in ("uniform", "log") or not numbers or bounds[0] > bounds[1]:
        raise UserError(
            f"random {name} = {law!r}: give a list of values, or {{'uniform': [low, high]}}, or"
            " {'log': [low, high]}"
        )
    if kind == "log" and bounds[0] <= 0:
        raise UserError(f"random {name} = {law!r}: bounds of a logarithmic draw must be above 0")
    low, high = np.log(bounds) if kind == "log" else bounds
    drawn = rng.uniform(low, high)
    return float(f"{math.exp(drawn) if kind == 'log' else drawn:.4g}")
