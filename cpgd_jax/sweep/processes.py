"""Runs the trials of a sweep on this machine, a bounded number at a time."""

import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cpgd_jax import progress
from cpgd_jax.errors import UserError
from cpgd_jax.sweep.trials import Trial

OUTPUT_FILE = "output.txt"  # what a trial printed
GRACE_S = 60.0  # for a trial to save, after an interrupt


def run_all(commands: Sequence[tuple[Trial, list[str]]], jobs: int) -> list[Trial]:
    """Runs each command, `jobs` at a time; returns the trials that failed.

    An interrupt ends the trials that run; they save first and the same sweep goes on from there.
    """
    running, lock, stopped = set(), threading.Lock(), threading.Event()

    def one(item) -> bool:
        trial, arguments = item
        with lock:
            if stopped.is_set():
                return False
            process = _start(trial, arguments)
            running.add(process)
        code = process.wait()
        with lock:
            running.discard(process)
        if code and not stopped.is_set():
            progress.warn(f"{trial.folder.name} failed: {last_line(trial.folder)}")
        return code == 0

    with ThreadPoolExecutor(jobs) as pool:
        try:
            done = list(pool.map(one, commands))
        except BaseException:
            with lock:
                stopped.set()
                left = list(running)
            for process in left:
                process.terminate()
            for process in left:
                process.wait(GRACE_S)
            raise
    return [trial for (trial, _), ok in zip(commands, done, strict=True) if not ok]


def last_line(folder: Path) -> str:
    """The last line that a trial printed; "" if none."""
    try:
        text = (folder / OUTPUT_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return (text.strip().splitlines() or [""])[-1][:300]


def _start(trial: Trial, arguments: list[str]) -> subprocess.Popen:
    try:
        trial.folder.mkdir(parents=True, exist_ok=True)
        with open(trial.folder / OUTPUT_FILE, "ab") as output:
            return subprocess.Popen(
                arguments, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
    except OSError as error:
        raise UserError(f"{trial.folder} cannot be run: {error.strerror}") from error
