"""The worker process: `python -m cpgd_jax.rewards.worker_main`, started by `workers`.

The supervisor imports what comparing needs, then forks a child that reads requests from standard
input and answers on standard output. The child sets a kernel timer for each request whose signal
ends it; the supervisor reports the death and forks the next child. Both end at the end of input.
"""

import contextlib
import json
import os
import signal
import sys

MEMORY_BYTES = 2 << 30  # address space of a child
ANSWERS_A_CHILD = 5000  # then a fresh child, so that caches do not grow
RECYCLED = 3  # exit status of a child that has done its share


def main() -> None:
    from cpgd_jax.rewards import structure  # before the fork: its children share it

    structure.warm_up()
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library that prints must not reach the pipe
    _send(out, {"ready": os.getpid()})
    if not hasattr(os, "fork"):
        _serve(out)
        return
    while True:
        child = os.fork()
        if child == 0:
            _limit_memory()
            os._exit(_serve(out))
        status = os.waitpid(child, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return
        if code != RECYCLED:
            _send(out, {"died": -code})


def _serve(out) -> int:
    """Answers requests; 0 at the end of input, RECYCLED after ANSWERS_A_CHILD."""
    for _ in range(ANSWERS_A_CHILD):
        line = _read_line(0)
        if not line:
            return 0
        request = json.loads(line)
        _alarm(request["timeout_s"])
        reply = _compare(request["answer"], request["gold"])
        _alarm(0)
        _send(out, {"id": request["id"], **reply})
    return RECYCLED


def _compare(answer: str, gold: str) -> dict:
    from cpgd_jax.rewards import structure

    try:
        verdict = structure.compare(answer, gold)
        return {"equal": verdict.equal, "reason": verdict.reason}
    except (Exception, RecursionError, MemoryError) as error:
        return {"equal": False, "reason": f"not comparable: {type(error).__name__}"}


def _alarm(seconds: float) -> None:
    """The kernel ends this process after `seconds`, whatever it does by then; 0 calls it off."""
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_line(fd: int) -> bytes:
    """One line, read without a buffer that could die with this process."""
    pieces = []
    while piece := os.read(fd, 65536):
        pieces.append(piece)
        if piece.endswith(b"\n"):
            break
    return b"".join(pieces)


def _send(out, record: dict) -> None:
    with contextlib.suppress(BrokenPipeError):
        out.write(json.dumps(record).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
