"""Scores responses: extraction and cheap comparisons here, the others in a pool of workers."""

import atexit
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from cpgd_jax.rewards import answers, equality, functions, rules
from cpgd_jax.rewards.workers import Reply, Worker

TIMEOUT_S = 1.0
WORKERS = 2
MAX_SHOWN = 2000  # characters of `Score.extracted`
MAX_WAITING = 64  # responses in work at a time, per worker


class Verifier:
    """A pool of `workers` processes, reused over calls, safe to call from several threads.

    `timeout_s` is the wall-clock limit of one comparison or call of a user's reward; the start of a
    process does not count. `user_rewards` are entries of `config.reward.functions`: they are loaded
    at once, and UserError names what is not there and `source`, where they are written; the first
    failure of each is shown as a warning. `timeouts` and `errors` count the answers that
    were lost (and scored 0) because they hit the limit, or raised or died.
    """

    def __init__(
        self,
        workers: int = WORKERS,
        timeout_s: float = TIMEOUT_S,
        user_rewards: Sequence[str] = (),
        source: str = functions.SOURCE,
    ):
        if workers < 1 or not 0 < timeout_s < math.inf:
            raise ValueError(f"needs workers >= 1 and timeout_s > 0, got {workers}, {timeout_s}")
        self.timeout_s = timeout_s
        self.timeouts = 0
        self.errors = 0
        self._users = functions.parse(user_rewards, source)
        self._warned: set[str] = set()  # places of users' rewards whose failure was shown
        places = tuple(user.place for user in self._users)
        self._workers = [Worker(places, source) for _ in range(workers)]
        self._idle: queue.Queue[Worker] = queue.Queue()
        for worker in self._workers:
            self._idle.put(worker)
        self._lock = threading.Lock()
        self._closed = False
        self._background: ThreadPoolExecutor | None = None
        if self._users:
            self.warm_up()

    def __enter__(self) -> "Verifier":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def close(self) -> None:
        """Ends the worker processes; a later call is an error."""
        self._closed = True
        for worker in self._workers:
            worker.kill()
        if self._background:
            self._background.shutdown(wait=False, cancel_futures=True)

    def warm_up(self) -> None:
        """Starts all workers and waits for them."""
        for worker in self._workers:
            worker.start()
        try:
            for worker in self._workers:
                worker.wait_ready()
        except BaseException:
            self.close()
            raise

    def score(
        self,
        response: str,
        gold: str,
        *,
        timeout_s: float | None = None,
        errors: Sequence[float] = (),
        **weights,
    ) -> rules.Score:
        """The verdict on one response. `weights`: those of `rules.total`.

        `errors`: absolute errors of the gold's numbers, one for each or one for all; () = exact.
        """
        for name, text in (("response", response), ("gold", gold)):
            if not isinstance(text, str):
                raise TypeError(f"{name} is {text!r:.60} ({type(text).__name__}), not a str")
        limit = timeout_s or self.timeout_s
        start = time.perf_counter()
        extracted = answers.extract(response)
        form = rules.format_reward(response)
        repetition = rules.repetition(response) if weights.get("repetition_penalty") else 0.0
        seconds = time.perf_counter() - start
        reply, spent = self._compare(extracted, gold, limit, errors)
        users = [self._ask(response, gold, limit, which) for which in range(len(self._users))]
        for user, (own, _) in zip(self._users, users, strict=True):
            self._warn(user, own)
        paid = [user.weight * own.value for user, (own, _) in zip(self._users, users, strict=True)]
        replies = [reply, *(own for own, _ in users)]
        return rules.Score(
            accuracy=int(reply.value),
            format=form,
            total=rules.total(int(reply.value), form, repetition, **weights) + sum(paid),
            extracted=extracted[:MAX_SHOWN],
            reason=reply.reason,
            seconds=seconds + spent + sum(own_spent for _, own_spent in users),
            timed_out=any(r.timed_out for r in replies),
            failed=any(r.failed for r in replies),
            extra=({"repetition": repetition} if repetition else {})
            | {user.function: own.value for user, (own, _) in zip(self._users, users, strict=True)},
        )

    def _warn(self, user: functions.Named, reply: Reply) -> None:
        """Shows the first failure of a user's reward."""
        if not (reply.failed or reply.timed_out):
            return
        with self._lock:
            first = user.place not in self._warned
            self._warned.add(user.place)
        if first:
            from cpgd_jax import progress  # the workers need no terminal

            what = reply.reason.replace("comparison", "its call")
            progress.warn(f"the reward {user.place} counts as 0 where it fails; first: {what}")

    def _compare(self, answer: str, gold: str, limit: float, errors) -> tuple[Reply, float]:
        """The verdict on an answer, by a worker where text and plain numbers do not decide it."""
        start = time.perf_counter()
        verdict = equality.quick(answer, gold)
        if errors and verdict and not verdict.equal and equality.parsable(answer, gold):
            verdict = None
        seconds = time.perf_counter() - start
        if verdict:
            return Reply(float(verdict.equal), verdict.reason), seconds
        reply, spent = self._ask(answer, equality.clean_gold(gold), limit, errors=errors)
        return reply, seconds + spent

    def stream(
        self, responses: Sequence[str], golds: Sequence[str], **options
    ) -> Iterator[rules.Score]:
        """`score` of each pair, in order, as many at a time as there are workers."""
        if len(responses) != len(golds):
            raise ValueError(f"{len(responses)} responses but {len(golds)} golds")
        pairs = zip(responses, golds, strict=True)
        threads = ThreadPoolExecutor(len(self._workers))

        def begin(pair) -> Future:
            return threads.submit(self.score, *pair, **options)

        try:
            waiting = deque(map(begin, islice(pairs, MAX_WAITING * len(self._workers))))
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(map(begin, islice(pairs, 1)))
        finally:
            threads.shutdown(cancel_futures=True)

    def score_batch(
        self, responses: Sequence[str], golds: Sequence[str], **options
    ) -> list[rules.Score]:
        """`stream` as a list."""
        return list(self.stream(responses, golds, **options))

    def submit(self, responses: Sequence[str], golds: Sequence[str], **options) -> Future:
        """`score_batch` in the background: `result()` of what it returns waits for the list."""
        if self._background is None:
            self._background = ThreadPoolExecutor(1, thread_name_prefix="verifier")
        return self._background.submit(self.score_batch, responses, golds, **options)

    def _ask(self, text: str, gold: str, timeout_s: float, *which, **how) -> tuple[Reply, float]:
        """`Worker.ask` of the next idle one, and the seconds without waiting and start-up."""
        if self._closed:
            raise RuntimeError("this Verifier is closed")
        worker = self._idle.get()
        try:
            worker.wait_ready()
            start = time.perf_counter()
            reply = worker.ask(text, gold, timeout_s, *which, **how)
            seconds = time.perf_counter() - start
        except BaseException:  # interrupted: its reply must not be taken for the next one's
            worker.kill()
            raise
        finally:
            self._idle.put(worker)
        with self._lock:
            self.timeouts += reply.timed_out
            self.errors += reply.failed
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


def score(response: str, gold: str, *, timeout_s: float = TIMEOUT_S, **weights) -> rules.Score:
    """The verdict on one response against its gold, by the shared pool.

    `weights`: accuracy_weight=1.0, format_weight=0.5, repetition_penalty=0.0.
    """
    return shared().score(response, gold, timeout_s=timeout_s, **weights)


def score_batch(
    responses: Sequence[str],
    golds: Sequence[str],
    *,
    timeout_s: float = TIMEOUT_S,
    workers: int = WORKERS,
    **weights,
) -> list[rules.Score]:
    """The verdicts on many responses, in order, by the shared pool of that many workers."""
    return shared(workers).score_batch(responses, golds, timeout_s=timeout_s, **weights)
