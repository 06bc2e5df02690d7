"""Worker processes that compare formulas and call users' rewards, under a hard wall-clock limit.

A worker is `python -m cpgd_jax.rewards.worker_main`: a supervisor that has imported what comparing
needs and forks the child that does it. The kernel kills a child that passes its limit; the
supervisor forks the next one within milliseconds. One JSON object a line goes each way. No signal
handler, fork or pickle in the caller's process, so it works from any thread and any main module.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cpgd_jax.errors import UserError

START_LIMIT_S = 120.0  # imports of a fresh worker on a busy machine
GRACE_S = 1.0  # beyond the limit, before the caller itself kills a worker

_ROOT = str(Path(__file__).resolve().parents[2])


@dataclass(frozen=True)
class Reply:
    """What became of one request."""

    value: float  # of a comparison: 1 = equal; of a user's reward: what it returned
    reason: str
    timed_out: bool = False
    failed: bool = False  # an exception, or the death of the process


TIMED_OUT = Reply(0.0, "comparison hit its time limit", timed_out=True)
CRASHED = Reply(0.0, "comparison crashed its process", failed=True)


class Worker:
    """One worker process. `ask` is for one thread at a time.

    `functions`: users' rewards, "module:function" each, that the process imports at its start;
    `source`: where they are written, for errors.
    """

    def __init__(self, functions: tuple[str, ...] = (), source: str = ""):
        self._functions = functions
        self._source = source
        self._lines: queue.SimpleQueue = queue.SimpleQueue()
        self._process: subprocess.Popen | None = None
        self._ready = False
        self._count = 0

    def start(self) -> None:
        """Starts the process without waiting for it; does nothing if it runs."""
        if self._process is not None:
            return
        ours = [entry or os.getcwd() for entry in sys.path] if self._functions else []
        path = os.pathsep.join(filter(None, [_ROOT, *ours, os.environ.get("PYTHONPATH", "")]))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "cpgd_jax.rewards.worker_main", *self._functions],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self._lines, self._ready = queue.SimpleQueue(), False
        reader = threading.Thread(
            target=_read_lines, args=(self._process.stdout, self._lines), daemon=True
        )
        reader.start()

    def wait_ready(self) -> bool:
        """Waits for the imports of a fresh process; False if it died or took START_LIMIT_S.

        UserError: a user's reward is not there.
        """
        self.start()
        if not self._ready:
            first = self._next(START_LIMIT_S) or {}
            if "refused" in first:
                self.kill()
                raise UserError(f"{self._source} has {first['refused']}")
            self._ready = "ready" in first
        return self._ready

    def ask(
        self,
        text: str,
        gold: str,
        timeout_s: float,
        function: int | None = None,
        errors: Sequence[float] = (),
    ) -> Reply:
        """Compares a text with a gold (whose numbers may have these absolute errors), or calls the
        user's reward of that index on them.

        The worker, perhaps a new process, is usable again when this returns.
        """
        request = {"text": text, "gold": gold, "timeout_s": timeout_s}
        request |= {"function": function, "errors": list(errors)}
        deadline = self._send(request) or self._send(request)
        return CRASHED if deadline is None else self._answer(deadline)

    def _send(self, request: dict) -> float | None:
        """Sends a request, on a fresh process if the last one died meanwhile: when to give up."""
        if self._process is not None and self._process.poll() is not None:
            self.kill()
        self._count += 1
        line = json.dumps(request | {"id": self._count}).encode() + b"\n"
        try:
            if self.wait_ready():
                self._process.stdin.write(line)
                self._process.stdin.flush()
                return time.monotonic() + request["timeout_s"] + GRACE_S
        except OSError:
            pass
        self.kill()
        return None

    def _answer(self, deadline: float) -> Reply:
        while (left := deadline - time.monotonic()) > 0:
            line = self._next(left)
            if line is None:
                break
            if line.get("id") == self._count:
                return Reply(line["value"], line["reason"], failed=line.get("failed", False))
            if "died" in line:
                return TIMED_OUT if line["died"] == signal.SIGALRM else CRASHED
        ended = time.monotonic() < deadline  # the process, since its lines end
        self.kill()
        self.start()
        return CRASHED if ended else TIMED_OUT

    def _next(self, timeout_s: float) -> dict | None:
        """The next line of the worker; None at its end or after timeout_s."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return None
        return json.loads(line) if line else None

    def kill(self) -> None:
        """Ends the process and its child, at once."""
        process, self._process, self._ready = self._process, None, False
        if process is None:
            return
        with contextlib.suppress(OSError, AttributeError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()


def _read_lines(stream, lines: queue.SimpleQueue) -> None:
    """Moves the lines of a pipe to a queue, then b"" at its end."""
    with contextlib.suppress(OSError, ValueError):
        for line in stream:
            lines.put(line)
    lines.put(b"")
