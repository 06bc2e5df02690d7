"""SIGTERM: saved as soon as the state is whole, also while the main thread is at something else."""

import os
import signal
import threading
import time

import jax
import pytest
import tiny

from cpgd_jax import checkpoint, distributed, stop
from cpgd_jax.rollout import generate
from cpgd_jax.stop import Stop

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need the main thread"
)


@pytest.fixture
def ended(monkeypatch):
    """What the process would say at its end, which does not come."""
    said, event = [], threading.Event()

    def end(told):
        said.append(told)
        event.set()

    monkeypatch.setattr(stop, "_exit", end)
    said_at = lambda: event.wait(10) and said[0]  # noqa: E731
    return said_at


def term():
    os.kill(os.getpid(), signal.SIGTERM)


def test_it_saves_at_once_when_the_state_is_whole(ended):
    with Stop(5.0, lambda: "saved"):
        term()
        assert ended() == "saved"


def test_it_waits_for_the_end_of_a_step(ended):
    state = ["whole"]
    with Stop(5.0, lambda: f"saved {state[0]}") as one:
        with one.busy():
            state[0] = "in pieces"
            term()
            time.sleep(0.2)
            state[0] = "whole again"
        assert ended() == "saved whole again"


def test_a_step_that_takes_too_long_is_given_up(ended):
    with Stop(0.2, lambda: "saved") as one, one.busy():
        term()
        assert ended() == "not saved within 0.2 s"


def test_what_fails_is_said(ended):
    with Stop(5.0, lambda: 1 / 0):
        term()
        assert "could not be saved (division by zero)" in ended()


def test_other_signals_and_the_time_after_are_as_before(ended):
    before = signal.getsignal(signal.SIGTERM)
    got = []
    usual = signal.signal(signal.SIGUSR1, lambda *_: got.append(1))
    with Stop(5.0, lambda: got.append("saved") or "saved"):
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.1)
    signal.signal(signal.SIGUSR1, usual)
    assert got == [1] and signal.getsignal(signal.SIGTERM) is before


def test_several_processes_end_at_the_pulse_they_agree_on(ended, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    agreed = []
    service = lambda pulse: pulse == agreed[0]  # noqa: E731
    monkeypatch.setattr(distributed.multihost_utils, "reached_preemption_sync_point", service)
    agreed.append(next(distributed._pulses) + 3)
    with Stop(5.0, lambda: "saved") as one:
        for _ in range(2):
            with one.busy():
                pass
            distributed.pulse()
        assert not one._asked.is_set()
        distributed.pulse()
        assert ended() == "saved"
    distributed.pulse()  # nobody listens any more


def test_a_rollout_has_pulses(monkeypatch):
    """So that a notice need not wait for its end."""
    pulses = []
    monkeypatch.setattr(distributed, "pulse", lambda: pulses.append(1))
    sizes = checkpoint.model_config(tiny.config(model__vocab_size=64).model)
    generate(tiny.random_model(sizes), [[1, 2]], samples_per_prompt=2, max_new_tokens=200)
    assert len(pulses) >= 3  # each of at most 64 tokens


def test_in_another_thread_nothing_is_changed():
    before, found = signal.getsignal(signal.SIGTERM), []

    def run():
        with Stop(1.0, lambda: "saved") as one, one.busy():
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]
