"""Runs the batches of a study in processes of one thread each; a JSON file a batch.

A file that exists is not computed again; the same seed on the same machine gives the same file.
"""

import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cpgd_jax import jsonl, workdir
from cpgd_jax.errors import UserError
from cpgd_jax.stability.plan import Batch

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false"  # matrices are tiny: a process a core is better


def run(plan: Sequence[Batch], root: Path, jobs: int, tell: Callable = print) -> None:
    """Every batch that has no file yet, `jobs` at a time. UserError where a file can't be written.

    The curves of trials are [rates][seeds][rollouts]; null where not finite.
    """
    root = Path(root) / "batches"
    todo = [batch for batch in plan if not file_of(root, batch).exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{str(root)!r} cannot be made: {error.strerror}") from error
    tell(f"{len(plan)} batches, {len(plan) - len(todo)} done before")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}"
    context, started = multiprocessing.get_context("spawn"), time.monotonic()
    with context.Pool(min(jobs, max(len(todo), 1))) as pool:
        starts = sorted({(batch.task, batch.seeds) for batch in todo})
        pool.map(_warm_start, [(root, *start) for start in starts])
        results = pool.imap_unordered(_compute, [(root, batch) for batch in todo])
        for count, (name, seconds) in enumerate(results, 1):
            passed = time.monotonic() - started
            left = passed / count * (len(todo) - count)
            tell(f"{count}/{len(todo)} {name}: {seconds:.0f} s; about {left / 60:.0f} min left")


def file_of(folder: Path, batch: Batch) -> Path:
    return Path(folder) / f"{batch.name}.json"


def read(plan: Sequence[Batch], root: Path) -> list[tuple[Batch, dict]]:
    """(batch, curves) of those that have been run; curves: name -> [rates][seeds][rollouts]."""
    files = [(batch, file_of(Path(root) / "batches", batch)) for batch in plan]
    return [(batch, workdir.read(file)["curves"]) for batch, file in files if file.exists()]


def cpu_minutes(plan: Sequence[Batch], root: Path) -> float:
    """Time of one core that the batches run so far took, compilation included."""
    files = [file_of(Path(root) / "batches", batch) for batch in plan]
    return sum(workdir.read(file)["cpu_seconds"] for file in files if file.exists()) / 60


def compute(batch: Batch, start) -> dict:
    """Curves of a batch: name -> nested lists [rates][seeds][rollouts]; start: see `warmstart`."""
    import jax
    import jax.numpy as jnp

    from cpgd_jax.stability import trial
    from cpgd_jax.stability.tasks import TASKS

    task, rates, seeds = TASKS[batch.task], batch.rates, batch.seeds
    start = jax.tree.map(lambda x: jnp.concatenate([x] * len(rates)), start)
    lr_N, seed_N = jnp.repeat(jnp.array(rates), len(seeds)), jnp.tile(jnp.array(seeds), len(rates))
    curves = jax.device_get(trial.run(batch.row, batch.pressure, task, start, lr_N, seed_N))
    shape = (len(rates), len(seeds), batch.pressure.rollouts)
    return {name: _short(x.reshape(shape).tolist()) for name, x in curves.items()}


def _warm_start(item) -> None:
    from cpgd_jax.stability import warmstart
    from cpgd_jax.stability.tasks import TASKS

    root, task, seeds = item
    file = warmstart.file_of(root, TASKS[task], seeds)
    if not file.exists():
        warmstart.save(file, warmstart.warm_starts(TASKS[task], seeds))


def _compute(item) -> tuple[str, float]:
    from cpgd_jax.stability import warmstart
    from cpgd_jax.stability.tasks import TASKS

    root, batch = item
    started, begun = time.monotonic(), time.process_time()
    start = warmstart.load(warmstart.file_of(root, TASKS[batch.task], batch.seeds))
    curves = jsonl.finite(compute(batch, start))
    seconds = time.monotonic() - started
    value = {
        "batch": batch.describe(),
        "cpu_seconds": round(time.process_time() - begun, 1),
        "curves": curves,
    }
    file = file_of(root, batch)
    part = file.with_suffix(".part")
    part.write_text(json.dumps(value) + "\n", encoding="utf-8")
    os.replace(part, file)
    return batch.name, seconds


def _short(values):
    """Six significant digits."""
    return [_short(v) for v in values] if isinstance(values, list) else float(f"{values:.6g}")
