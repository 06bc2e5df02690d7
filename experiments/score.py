"""Scores responses: `python -m experiments.score --input=F.jsonl --output=F.jsonl`.

Rows {response, gold} come out with {accuracy, format, total, extracted, reason, seconds} added, in
order. An existing output is replaced once every row is scored.
"""

import math
import sys
import time

from absl import flags
from rich.console import Console
from rich.progress import track

from cpgd_jax import cli
from cpgd_jax.errors import UserError
from cpgd_jax.rewards import Verifier, files

_INPUT = flags.DEFINE_string("input", None, "JSON lines {response, gold}")
_OUTPUT = flags.DEFINE_string("output", None, "JSON lines to write; replaced if it exists")
_TIMEOUT = flags.DEFINE_float(
    "timeout_s", 1.0, "seconds that one comparison may take", lower_bound=0.01
)
_WORKERS = flags.DEFINE_integer("workers", 2, "verifier processes", lower_bound=1)
_FUNCTIONS = flags.DEFINE_multi_string(
    "function", [], "a reward of your own, 'module:function=weight'; may be given several times"
)
flags.mark_flags_as_required(["input", "output"])


def main() -> None:
    if not math.isfinite(_TIMEOUT.value):
        raise UserError(f"--timeout_s={_TIMEOUT.value}: give a number of seconds")
    rows = files.read_rows(_INPUT.value)
    files.check_output(_OUTPUT.value)
    responses, golds = [row["response"] for row in rows], [row["gold"] for row in rows]
    start = time.monotonic()
    options = _WORKERS.value, _TIMEOUT.value, _FUNCTIONS.value
    with Verifier(*options, source="--function") as verifier:
        scores = files.write_rows(_OUTPUT.value, rows, verifier.stream(responses, golds))
        shown = track(scores, "scoring", len(rows), console=Console(file=sys.stderr))
        done = list(shown)
    seconds = time.monotonic() - start
    print(
        f"{len(done)} responses: accuracy {mean(s.accuracy for s in done):.3f}, "
        f"format {mean(s.format for s in done):.3f}, total {mean(s.total for s in done):.3f}, "
        f"{verifier.timeouts} timeouts, {verifier.errors} errors, {seconds:.1f} s"
    )


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


if __name__ == "__main__":
    cli.run(main)
