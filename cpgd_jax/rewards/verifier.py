"""Scores responses: extraction and cheap comparisons here, the others in a pool of workers."""

import atexit
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from cpgd_jax.rewards import answers, equality, rules
from cpgd_jax.rewards.workers import Reply, Worker

TIMEOUT_S = 1.5
WORKERS = 2
MAX_SHOWN = 2000  # characters of `Score.extracted`


class Verifier:
    """A pool of `workers` processes, reused over calls, safe to call from several threads.

    `timeout_s` is the wall-clock limit of one comparison; the start of a process does not count.
    `timeouts` and `crashes` count the answers that were lost (and scored 0) that way.
    """

    def __init__(self, workers: int = WORKERS, timeout_s: float = TIMEOUT_S):
        if workers < 1 or timeout_s <= 0:
            raise ValueError(f"needs workers >= 1 and timeout_s > 0, got {workers}, {timeout_s}")
        self.timeout_s = timeout_s
        self.timeouts = 0
        self.crashes = 0
        self._workers = [Worker() for _ in range(workers)]
        self._idle: queue.Queue[Worker] = queue.Queue()
        for worker in self._workers:
            self._idle.put(worker)
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker processes; a later call is an error."""
        self._closed = True
        for worker in self._workers:
            worker.kill()

    def warm_up(self) -> None:
        """Starts all workers and waits for them."""
        for worker in self._workers:
            worker.start()
        for worker in self._workers:
            worker.wait_ready()

    def score(
        self,
        response: str,
        gold: str,
        *,
        timeout_s: float | None = None,
        accuracy_weight: float = 1.0,
        format_weight: float = 0.5,
    ) -> rules.Score:
        """The verdict on one response."""
        start = time.perf_counter()
        extracted = answers.extract(response)
        verdict = equality.quick(extracted, gold)
        spent = time.perf_counter() - start
        if verdict is None:
            reply, seconds = self._ask(extracted, gold, timeout_s or self.timeout_s)
            spent += seconds
        else:
            reply = Reply(verdict.equal, verdict.reason)
        accuracy, form = int(reply.equal), rules.format_reward(response)
        return rules.Score(
            accuracy=accuracy,
            format=form,
            total=rules.total(
                accuracy, form, accuracy_weight=accuracy_weight, format_weight=format_weight
            ),
            extracted=extracted[:MAX_SHOWN],
            reason=reply.reason,
            seconds=spent,
            timed_out=reply.timed_out,
        )

    def stream(
        self, responses: Sequence[str], golds: Sequence[str], **options
    ) -> Iterator[rules.Score]:
        """`score` of each pair, in order, as many at a time as there are workers."""
        if len(responses) != len(golds):
            raise ValueError(f"{len(responses)} responses but {len(golds)} golds")
        with ThreadPoolExecutor(len(self._workers)) as threads:
            yield from threads.map(
                lambda response, gold: self.score(response, gold, **options), responses, golds
            )

    def score_batch(
        self, responses: Sequence[str], golds: Sequence[str], **options
    ) -> list[rules.Score]:
        """`stream` as a list."""
        return list(self.stream(responses, golds, **options))

    def _ask(self, answer: str, gold: str, timeout_s: float) -> tuple[Reply, float]:
        """A worker's reply and the seconds it took, without waiting and start-up."""
        if self._closed:
            raise RuntimeError("this Verifier is closed")
        worker = self._idle.get()
        try:
            worker.wait_ready()
            start = time.perf_counter()
            reply = worker.ask(answer, equality.clean_gold(gold), timeout_s)
            seconds = time.perf_counter() - start
        except BaseException:  # interrupted: its reply must not be taken for the next one's
            worker.kill()
            raise
        finally:
            self._idle.put(worker)
        with self._lock:
            self.timeouts += reply.timed_out
            self.crashes += reply.crashed
        return reply, seconds


_shared: dict[tuple[int, int], Verifier] = {}
_shared_lock = threading.Lock()


def shared(workers: int = WORKERS) -> Verifier:
    """The pool of this process with that many workers, made on first use, closed at exit."""
    key = (os.getpid(), workers)
    with _shared_lock:
        if key not in _shared:
            _shared[key] = Verifier(workers)
            atexit.register(_shared[key].close)
        return _shared[key]


def score(
    response: str,
    gold: str,
    *,
    timeout_s: float = TIMEOUT_S,
    accuracy_weight: float = 1.0,
    format_weight: float = 0.5,
) -> rules.Score:
    """The verdict on one response against its gold, by the shared pool."""
    return shared().score(
        response,
        gold,
        timeout_s=timeout_s,
        accuracy_weight=accuracy_weight,
        format_weight=format_weight,
    )


def score_batch(
    responses: Sequence[str],
    golds: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    workers: int = WORKERS,
    accuracy_weight: float = 1.0,
    format_weight: float = 0.5,
) -> list[rules.Score]:
    """The verdicts on many responses, in order, by the shared pool of that many workers."""
    return shared(workers).score_batch(
        responses,
        golds,
        timeout_s=timeout_s,
        accuracy_weight=accuracy_weight,
        format_weight=format_weight,
    )
