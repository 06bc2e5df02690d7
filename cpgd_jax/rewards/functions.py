"""Users' own rewards: callables that the config names, called in the worker processes.

The protocol. `config.reward.functions` lists entries "module:function" or "module:function=weight"
(the weight is 1 if left out). The module is imported by every worker, never by the trainer, from
the trainer's own import path. For each response the worker calls

    function(response: str, gold: str) -> float between -1 and 1

under the time and memory limits of a comparison, and weight * value is added to the reward. An
exception, a value that is no such number, or a call that hits a limit counts as 0 and in
`reward/errors` or `reward/timeouts`; the first of each function is shown as a warning. It must not
depend on earlier calls: they run in several processes, which are replaced. Names come from the
config alone, never from data or checkpoints.
"""

import importlib
import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from cpgd_jax.errors import UserError, nearest

SOURCE = "config.reward.functions"  # where entries are written, as errors call it
LOW, HIGH = -1.0, 1.0

_ENTRY = re.compile(r"([A-Za-z_][\w.]*):([A-Za-z_]\w*)(?:=(.+))?")


class Named(NamedTuple):
    """A user's reward as the config names it."""

    module: str
    function: str
    weight: float

    @property
    def place(self) -> str:
        return f"{self.module}:{self.function}"


def parse(entries: Sequence[str], source: str = SOURCE) -> list[Named]:
    """The rewards that `source` names. Imports nothing. Raises UserError."""
    named = [_parse(entry, source) for entry in entries]
    names = [each.function for each in named]
    if twice := {name for name in names if names.count(name) > 1}:
        raise UserError(f"{source} names {min(twice)!r} twice: names must differ")
    return named


def _parse(entry: str, source: str) -> Named:
    match = _ENTRY.fullmatch(entry.replace(" ", ""))
    try:
        module, function, weight = match.groups()
        weight = float(weight or 1)
    except (AttributeError, ValueError):
        weight = math.nan
    if not math.isfinite(weight):
        raise UserError(
            f"{source} has {entry!r}: write 'module:function' or 'module:function=weight'"
        )
    return Named(module, function, weight)


def load(places: Sequence[str]) -> list[Callable[[str, str], float]]:
    """The callables themselves, in a worker. Raises UserError that begins with the place that is
    not there."""
    return [_load(place) for place in places]


def _load(place: str) -> Callable[[str, str], float]:
    name, _, attribute = place.partition(":")
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a user's module may raise anything
        raise UserError(
            f"{place!r}: module {name!r} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise UserError(
            f"{place!r}: module {name!r} has no function"
            f" {attribute!r}{nearest(attribute, vars(module))}"
        )
    return function


def call(function: Callable[[str, str], float], response: str, gold: str) -> float:
    """The value of a user's function. Raises ValueError if it breaks the protocol."""
    value = float(function(response, gold))
    if not LOW <= value <= HIGH:
        raise ValueError(f"returned {value}, not a number between {LOW:g} and {HIGH:g}")
    return value
