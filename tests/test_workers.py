"""The worker processes: limits, deaths, threads, leftovers."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hostile import HOSTILE

from cpgd_jax.rewards import Verifier
from cpgd_jax.rewards.verifier import MAX_WAITING

HANGS = r"\sum_{k=1}^{10^{9}} \frac{1}{k^{k}}"
NEEDS_WORKER = (r"\frac{x}{2}", "0.5x")
linux = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")


def boxed(text):
    return rf"<think>a</think><answer>\boxed{{{text}}}</answer>"


@pytest.fixture(scope="module")
def verifier():
    with Verifier(workers=2, timeout_s=5.0) as pool:
        pool.warm_up()
        yield pool


def child_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert wait_until(lambda: children.read_text().split())
    return int(children.read_text().split()[0])


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def test_a_hanging_answer_costs_itself_alone(verifier):
    before = verifier.timeouts
    start = time.perf_counter()
    score = verifier.score(boxed(HANGS), "2", timeout_s=0.4)
    assert time.perf_counter() - start < 1.5
    assert score.accuracy == 0 and score.timed_out and "time limit" in score.reason
    assert verifier.timeouts == before + 1
    for _ in range(4):
        score = verifier.score(boxed(NEEDS_WORKER[0]), NEEDS_WORKER[1])
        assert score.accuracy == 1 and score.seconds < 1


def test_a_batch_with_hanging_answers_keeps_order_and_time(verifier):
    answers = [HANGS if n % 8 == 3 else rf"\frac{{{n}x}}{{2}}" for n in range(32)]
    golds = [f"{n / 2}x" for n in range(32)]
    start = time.perf_counter()
    scores = verifier.score_batch([boxed(a) for a in answers], golds, timeout_s=0.4)
    assert time.perf_counter() - start < 4 / 2 * 0.4 + 3
    assert [s.accuracy for s in scores] == [int(n % 8 != 3) for n in range(32)]
    assert [s.timed_out for s in scores] == [n % 8 == 3 for n in range(32)]


def test_any_thread_may_score(verifier):
    wrong = []

    def work(n):
        for k in range(20):
            score = verifier.score(boxed(rf"\frac{{{n}x}}{{{k + 1}}}"), f"{n}x/{k + 1}")
            wrong.extend([(n, k)] if not score.accuracy else [])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


@linux
def test_a_child_that_dies_costs_one_answer(verifier):
    with Verifier(workers=1, timeout_s=20.0) as pool:
        pool.warm_up()
        scores = []
        thread = threading.Thread(target=lambda: scores.append(pool.score(boxed(HANGS), "2")))
        thread.start()
        time.sleep(0.3)
        os.kill(child_of(pool._workers[0]._process.pid), signal.SIGSEGV)
        thread.join(10)
        assert scores[0].accuracy == 0 and not scores[0].timed_out
        assert (pool.timeouts, pool.errors) == (0, 1)
        assert pool.score(boxed(NEEDS_WORKER[0]), NEEDS_WORKER[1]).accuracy == 1


@linux
def test_a_worker_killed_between_answers_costs_none():
    with Verifier(workers=1, timeout_s=5.0) as pool:
        pool.warm_up()
        os.killpg(pool._workers[0]._process.pid, signal.SIGKILL)
        pool._workers[0]._process.wait()
        assert pool.score(boxed(NEEDS_WORKER[0]), NEEDS_WORKER[1]).accuracy == 1
        assert pool.errors == 0


@linux
def test_close_leaves_no_process():
    pool = Verifier(workers=2, timeout_s=5.0)
    pool.warm_up()
    pids = [worker._process.pid for worker in pool._workers]
    pids += [child_of(pid) for pid in pids]
    assert all(map(alive, pids))
    pool.close()
    assert wait_until(lambda: not any(map(alive, pids)))
    with pytest.raises(RuntimeError, match="closed"):
        pool.score(boxed(NEEDS_WORKER[0]), NEEDS_WORKER[1])


@linux
def test_workers_end_with_their_parent_even_in_a_hanging_answer(tmp_path):
    script = tmp_path / "plain_script.py"  # no `if __name__ == "__main__"`
    script.write_text(
        "import os, threading, time\n"
        "from cpgd_jax.rewards import Verifier\n"
        "pool = Verifier(workers=2, timeout_s=2.0)\n"
        "pool.warm_up()\n"
        f"hang = lambda: pool.score({boxed(HANGS)!r}, '2')\n"
        "threading.Thread(target=hang, daemon=True).start()\n"
        "time.sleep(0.3)\n"
        "print(*(worker._process.pid for worker in pool._workers), flush=True)\n"
        "os._exit(1)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2, done.stderr
    assert wait_until(lambda: not any(map(alive, pids)))


@linux
@pytest.mark.parametrize(
    "method",
    ["spawn", *(pytest.param(m, marks=pytest.mark.slow) for m in ("fork", "forkserver"))],
)
def test_any_start_method_may_score(tmp_path, method):
    script = tmp_path / "several.py"
    script.write_text(
        "import multiprocessing\n"
        "from cpgd_jax.rewards import score\n"
        f"ask = lambda: score({boxed(NEEDS_WORKER[0])!r}, {NEEDS_WORKER[1]!r}).accuracy\n"
        "def work(n): return ask()\n"
        "if __name__ == '__main__':\n"
        "    first = ask()\n"
        f"    with multiprocessing.get_context({method!r}).Pool(1) as pool:\n"
        "        print(first, *pool.map(work, range(4)), ask())\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["1"] * 6, done.stderr


def test_a_stream_does_not_run_ahead(monkeypatch):
    begun = []
    monkeypatch.setattr(Verifier, "score", lambda self, response, gold: begun.append(gold) or gold)
    with Verifier(workers=2) as pool:
        stream = pool.stream(["a"] * 10_000, list(map(str, range(10_000))))
        assert [next(stream) for _ in range(3)] == ["0", "1", "2"]
        time.sleep(0.1)
        assert len(begun) <= 3 + 2 * MAX_WAITING
        stream.close()
        assert len(begun) <= 3 + 2 * MAX_WAITING


def test_a_batch_may_be_scored_in_the_background(verifier):
    later = verifier.submit([boxed(NEEDS_WORKER[0]), boxed("4")], [NEEDS_WORKER[1], "5"])
    assert verifier.score(boxed("4"), "4").accuracy == 1
    assert [score.accuracy for score in later.result(30)] == [1, 0]


@pytest.mark.parametrize(
    "response, gold, message",
    [
        (None, "5", r"response is None \(NoneType\)"),
        (b"5", "5", r"response is b'5' \(bytes\)"),
        ("5", 5, r"gold is 5 \(int\)"),
        ("5", None, "gold is None"),
    ],
)
def test_what_is_no_text_is_named(verifier, response, gold, message):
    with pytest.raises(TypeError, match=message):
        verifier.score(response, gold)
    with pytest.raises(TypeError, match=message):
        verifier.score_batch([response], [gold])


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="workers >= 1"):
        Verifier(workers=0)


def descendants(pid):
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has ended meanwhile
            children += map(int, (task / "children").read_text().split())
    return [pid] + [below for child in children for below in descendants(child)]


def megabytes(pids):
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids]
    return sum(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20


@linux
@pytest.mark.slow
def test_soak_keeps_processes_and_memory_flat():
    """One in a hundred answers is hostile. SOAK_ANSWERS=200000 for the long one, 4 minutes."""
    count, chunk = int(os.environ.get("SOAK_ANSWERS", 30_000)), 5000
    hostile = [*HOSTILE.values(), HANGS]
    kinds = [
        lambda n: (str(n), f"{n}.0"),
        lambda n: (rf"\frac{{{n}x}}{{7}}+\sqrt{{{n}}}", rf"\sqrt{{{n}}}+{n}x/7"),
        lambda n: ("B", "B"),
        lambda n: (rf"({n},\infty)", f"x>{n}"),
    ]
    sizes = []
    before = descendants(os.getpid())

    def family():
        return [pid for pid in descendants(os.getpid()) if pid not in before]

    with Verifier(workers=2, timeout_s=1.0) as pool:
        pool.warm_up()
        for start in range(0, count, chunk):
            pairs = [
                (hostile[n // 100 % len(hostile)], "7") if n % 100 == 7 else kinds[n % 4](n)
                for n in range(start, start + chunk)
            ]
            scores = pool.score_batch([boxed(a) for a, _ in pairs], [g for _, g in pairs])
            assert [s.accuracy for s in scores] == [int(n % 100 != 7) for n in range(chunk)]
            assert wait_until(lambda: len(family()) == 4)  # two supervisors, a child each
            sizes.append((megabytes([os.getpid()]), megabytes(family())))
        assert pool.errors == 0
    settled = sizes[len(sizes) // 6 :]
    print(f"\n{count} answers, {pool.timeouts} timeouts, MB of caller and workers: {sizes}")
    for of_one in zip(*settled, strict=True):
        assert max(of_one) < 1.1 * of_one[0] and min(of_one) > 0.9 * of_one[0]
    assert wait_until(lambda: descendants(os.getpid()) == before)
