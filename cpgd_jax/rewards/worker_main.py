"""The worker process: `python -m cpgd_jax.rewards.worker_main [module:function ...]`.

Started by `workers`; the arguments are the users' rewards that the config names (`functions`).

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
RECURSION = 20_000  # frames: the deepest formula that the parser lets through needs about 6000
MAX_MESSAGE = 300  # characters of a user's exception that are shown
RECYCLED = 3  # exit status of a child that has done its share


def main() -> None:
    from cpgd_jax.errors import UserError
    from cpgd_jax.rewards import comparison, functions  # before the fork: its children share it

    comparison.warm_up()
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # a library that prints must not reach the pipe
    try:
        rewards = functions.load(sys.argv[1:])
    except UserError as error:
        _send(out, {"refused": str(error)})
        return
    _send(out, {"ready": os.getpid()})
    if not hasattr(os, "fork"):
        _serve(out, rewards)
        return
    while True:
        child = os.fork()
        if child == 0:
            _limit_memory()
            os._exit(_serve(out, rewards))
        status = os.waitpid(child, 0)[1]
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            return
        if code != RECYCLED:
            _send(out, {"died": -code})


def _serve(out, rewards: list) -> int:
    """Answers requests; 0 at the end of input, RECYCLED after ANSWERS_A_CHILD."""
    sys.setrecursionlimit(RECURSION)
    for _ in range(ANSWERS_A_CHILD):
        line = _read_line(0)
        if not line:
            return 0
        request = json.loads(line)
        _alarm(request["timeout_s"])
        reply = _answer(request, rewards)
        _alarm(0)
        _send(out, {"id": request["id"], **reply})
    return RECYCLED


def _answer(request: dict, rewards: list) -> dict:
    """The value of a user's function, or of a comparison: 1 = equal."""
    from cpgd_jax.rewards import comparison, functions

    text, gold, which = request["text"], request["gold"], request["function"]
    try:
        if which is not None:
            return {"value": functions.call(rewards[which], text, gold), "reason": ""}
        verdict = comparison.compare(text, gold, request["errors"])
        return {"value": float(verdict.equal), "reason": verdict.reason}
    except (Exception, RecursionError, MemoryError, SystemExit) as error:
        reason = f"failed: {type(error).__name__}"
        if which is not None:  # the user is to see what went wrong
            reason += ": " + " ".join(str(error).split())[:MAX_MESSAGE]
        return {"value": 0.0, "reason": reason, "failed": True}


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
