"""What saving, the guard and the watch take of a quickstart run, in CPU time of its process.

    make quickstart && python -m pytest -m slow -s tests/test_overhead.py

CPU time (user and system, all threads), because it depends little on what else the machine does.
Rollouts are the warm start's where `make quickstart` has left one, else those of random parameters.
"""

import statistics
import time
from pathlib import Path

import jax
import pytest
import tiny

from configs import quickstart
from cpgd_jax import config as config_lib
from cpgd_jax import loop, train, train_step
from cpgd_jax.checkpoint import Checkpointer
from cpgd_jax.guard import Guard
from cpgd_jax.watch import Watch

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_device")]
WARM_START = Path(__file__).parents[1] / "runs/quickstart/warmstart_seed0"
ROLLOUTS, TURNS = 6, 24
STEPS_A_SAVE = 50


def settings():
    c = quickstart.get_config()
    c.update_from_flattened_dict(
        {
            "model.init_from": str(WARM_START) if WARM_START.exists() else "",
            "num_rollouts": ROLLOUTS,
            "eval.every": 0,
            "eval.problems": 8,
            "checkpoint.every": 1,
        }
    )
    return config_lib.from_config_dict(c)


def timed(monkeypatch, owner, name: str, clock=time.process_time) -> list[float]:
    """Seconds of every call of owner.name from now on."""
    spent, call = [], getattr(owner, name)

    def called(*args, **kwargs):
        began = clock()
        result = call(*args, **kwargs)
        spent.append(clock() - began)
        return result

    monkeypatch.setattr(owner, name, called)
    return spent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """CPU seconds of a short run: {unit, save, guard, watch, step: (with the guard, without)}."""
    with pytest.MonkeyPatch.context() as patch:
        tiny.use_one_device(patch)
        kept = {}
        make_step, minibatch, save = train.make_step, train.experience.minibatch, Checkpointer.save

        def saved(self, *args):
            save(self, *args)
            self.wait()  # so that all of it is measured, and nothing else

        patch.setattr(Checkpointer, "save", saved)
        patch.setattr(train, "make_step", lambda *args: kept.update(made=args) or make_step(*args))
        patch.setattr(
            train.experience,
            "minibatch",
            lambda *args: kept.setdefault("batch", minibatch(*args)) and minibatch(*args),
        )
        seconds = {
            "save": timed(patch, Checkpointer, "save"),
            "unit": timed(patch, loop._Loop, "_unit"),
            "guard": timed(patch, Guard, "check", time.thread_time),
            "watch": timed(patch, Watch, "look", time.thread_time),
        }
        train.train(settings(), str(tmp_path_factory.mktemp("run")))
        of_steps = in_turn(patch, make_step, kept["made"], kept["batch"])
    return {k: statistics.median(v[1:]) for k, v in seconds.items()} | {"step": of_steps}


def in_turn(patch, make_step, made, batch) -> tuple[float, float]:
    """Seconds of an optimiser step, and of one without the guard's part, by turns."""
    run, row = made
    plain = make_step(run, row)
    patch.setattr(train_step, "_of_rows", lambda *_: {})
    patch.setattr(train_step, "_moved", lambda sound, new, old: new)
    bare, packed = make_step(run, row), run.pack(batch)
    spent = {plain: [], bare: []}
    states = {
        step: train.run_lib.initial.state(run.config, run.mesh, run.optimizer)[1] for step in spent
    }
    for _ in range(1 + TURNS):
        for step, taken in spent.items():
            began = time.process_time()
            states[step], metrics = step(states[step], packed)
            jax.block_until_ready((states[step], metrics))
            taken.append(time.process_time() - began)
    return tuple(statistics.median(taken[1:]) for taken in spent.values())


def test_saving(found):
    steps = settings().steps_per_rollout
    share = found["save"] / (found["unit"] / steps * STEPS_A_SAVE)
    print(f"\n| saving every {STEPS_A_SAVE} steps | {share:.2%} of the run's CPU time |")
    assert share < 0.02, found


def test_guard_and_watch(found):
    steps = settings().steps_per_rollout
    with_guard, without = found["step"]
    on_device = max(with_guard - without, 0.0)
    share = (steps * (on_device + found["guard"]) + found["watch"]) / found["unit"]
    print(f"\n| guard and watch | {share:.2%} of the run's CPU time |", found)
    assert share < 0.01, found
