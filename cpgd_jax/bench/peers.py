"""Other projects on the same workloads: their scripts, run in their own environments in turn.

A peer is one or more Python scripts that time themselves and print a line with the result. They are
no part of this project: `--peers` names their folder, `--peer_python` the Python that runs each.
"""

import re
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from cpgd_jax.bench import timing
from cpgd_jax.errors import UserError

TIMEOUT_S = 3600


class Script(NamedTuple):
    """A file and the pattern of what it prints; the one group is the number."""

    file: str
    pattern: str
    tokens: int = 0  # the number is tokens/s, and the seconds for so many are wanted


_TUNIX_ROLLOUT = "tunix rollout .*tok/s ([0-9.]+)"
SCRIPTS = {  # benchmark -> peer -> scripts whose numbers add up: tokens/s or, of iteration, seconds
    "rollout/fixed": {
        "tunix": [Script("tunix_rollout.py", _TUNIX_ROLLOUT)],
        "hf": [Script("hf_rollout.py", "hf rollout .*tok/s ([0-9.]+)")],
    },
    "rollout/ragged": {"tunix": [Script("tunix_ragged.py", "tunix ragged .*tok/s ([0-9.]+)")]},
    "train_step/shared": {
        "tunix": [Script("tunix_train_step.py", "tunix train step .*tok/s ([0-9.]+)")],
        "hf": [Script("hf_rollout.py", "hf train step .*tok/s ([0-9.]+)")],
    },
    "iteration": {
        "trl": [Script("trl_grpo.py", "trl iteration .*median of last 3 ([0-9.]+)")],
        "tunix": [
            Script("tunix_rollout.py", _TUNIX_ROLLOUT, tokens=64 * 128),
            Script("tunix_train_step.py", "tunix train step s ([0-9.]+)"),
        ],
    },
}


def programs(benchmark: str, names, folder: str, pythons: dict[str, str]) -> dict[str, Callable]:
    """For each peer a function that measures it once. UserError names what is missing."""
    scripts = SCRIPTS.get(benchmark, {})
    found = {}
    for name in names:
        if name not in scripts:
            choices = ", ".join(scripts) or "none"
            raise UserError(f"--compare: {benchmark} has no peer {name!r}: its peers are {choices}")
        if name not in pythons:
            raise UserError(
                f"--compare: no Python given for {name}: give --peer_python={name}=PYTHON, that of"
                " an environment in which it is installed"
            )
        files = [(Path(folder) / script.file, script) for script in scripts[name]]
        for path in [Path(pythons[name]), *(path for path, _ in files)]:
            if not path.is_file():
                raise UserError(f"--compare: {name} needs {path}, which is not there")
        found[name] = _program(pythons[name], files)
    return found


def in_turn(ours: Callable, peers: dict[str, Callable], rounds: int) -> tuple[list, dict, dict]:
    """Measures ours, then each peer, so many times: (ours, {peer: median}, {peer: ratio}).

    A ratio is the median of ours over the peer's of the same round.
    """
    own, others = [], {name: [] for name in peers}
    for _ in range(rounds):
        own.append(ours())
        for name, peer in peers.items():
            others[name].append(peer())
    medians = {name: statistics.median(found) for name, found in others.items()}
    ratios = {name: timing.ratio(own, found) for name, found in others.items()}
    return own, medians, ratios


def _program(python: str, files) -> Callable[[], float]:
    return lambda: sum(_measure(python, path, script) for path, script in files)


def _measure(python: str, path: Path, script: Script) -> float:
    """Runs a script and reads its number."""
    try:
        done = subprocess.run(
            [python, path.name], cwd=path.parent, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(f"{path} has not ended after {TIMEOUT_S} s") from error
    if done.returncode:
        reason = (done.stderr.strip() or "no message").splitlines()[-1]
        raise UserError(f"{path} failed in {python}: {reason}")
    found = re.findall(script.pattern, done.stdout)
    if not found or float(found[-1]) == 0:
        raise UserError(f"{path} printed no line that matches {script.pattern!r}")
    number = float(found[-1])
    return script.tokens / number if script.tokens else number
