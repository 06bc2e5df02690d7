"""Told to end (SIGTERM, a pre-emption notice): what is done is saved, and the process ends in time.

One process: a thread of its own waits for the signal, so that neither a long rollout nor a
compilation in the main thread keeps it from saving. The main thread does inside `busy()` what
leaves the state in pieces, such as an optimiser step whose buffers are donated.
Several processes: at one of the next pulses (`distributed.pulse`), on which they agree by JAX's own
notice service, all of them save. There is one after each optimiser step and, in a rollout, each
time the host looks in.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

import jax

from cpgd_jax import distributed

EXIT = 128 + signal.SIGTERM  # as a shell reports a process that SIGTERM ended


class Stop:
    """A context manager. `save()` writes all that is done and returns what it is, in words."""

    def __init__(self, grace_s: float, save: Callable[[], str]):
        self._grace_s, self._save = grace_s, save
        self._whole = threading.Lock()  # held while the state is in pieces, and from the end on
        self._asked = threading.Event()
        self._many = jax.process_count() > 1

    def __enter__(self):
        if self._many:
            distributed.on_notice(self._end)
        self._ours = not self._many and threading.current_thread() is threading.main_thread()
        if self._ours:
            self._read, write = os.pipe()
            os.set_blocking(write, False)
            self._before = signal.signal(signal.SIGTERM, lambda *_: None)
            self._wakeup = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
            threading.Thread(target=self._wait, name="stop", daemon=True).start()
        return self

    def __exit__(self, *_):
        distributed.on_notice(None)
        if self._ours:
            os.close(signal.set_wakeup_fd(self._wakeup))  # the thread reads its end
            signal.signal(signal.SIGTERM, self._before)

    @contextlib.contextmanager
    def busy(self) -> Iterator[None]:
        """The state is in pieces inside. Not entered any more once the process is to end."""
        if self._asked.is_set():
            threading.Event().wait()  # for the end of the process
        with self._whole:
            yield

    def _wait(self) -> None:
        while signals := os.read(self._read, 64):
            if signal.SIGTERM in signals:
                self._end()
        os.close(self._read)

    def _end(self) -> None:
        deadline = time.monotonic() + self._grace_s
        self._asked.set()
        last = threading.Timer(self._grace_s, _exit, [f"not saved within {self._grace_s:g} s"])
        last.daemon = True
        last.start()
        if not self._whole.acquire(timeout=max(deadline - time.monotonic(), 0)):
            return  # the timer ends the process
        try:
            told = self._save()
        except Exception as error:
            told = f"what came after the last checkpoint could not be saved ({error})"
        with contextlib.suppress(Exception):  # one of them is gone
            distributed.leave_together()
        _exit(told)


def _exit(told: str) -> None:
    with contextlib.suppress(Exception):
        print(f"SIGTERM: {told}; the same command goes on", file=sys.stderr, flush=True)
    os._exit(EXIT)
