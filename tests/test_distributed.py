"""Many processes: the flags that join them, what they exchange, runs that equal those of one."""

import dataclasses
import signal
import time
from pathlib import Path

import jax
import numpy as np
import processes
import pytest
import tiny

from cpgd_jax import distributed, sharding
from cpgd_jax.errors import UserError

RUN = dict(num_rollouts=3, checkpoint__every=1, reward__functions=("faults_reward:digits",))


@pytest.mark.parametrize(
    "flags",
    [("host:1", 2, -1), ("host:1", 2, 2), ("", 2, 0), ("", 0, 1), ("host:1", 0, 0)],
    ids=str,
)
def test_flags_that_do_not_fit(flags):
    with pytest.raises(UserError, match="--num_processes=.*: give all three") as caught:
        distributed.start(*flags)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_shares_are_all_there_is_in_order(monkeypatch, count):
    items, shares = list(range(7)), []
    monkeypatch.setattr(jax, "process_count", lambda: count)
    for index in range(count):
        monkeypatch.setattr(jax, "process_index", lambda index=index: index)
        shares.append(distributed.share(items))
    assert sum(shares, []) == items
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(
    ("error", "leaves"),
    [
        (jax.errors.JaxRuntimeError("UNKNOWN: Gloo AllGather failed: Connection reset"), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory"), False),
        (ValueError("Gloo"), False),
        (None, False),
    ],
    ids=str,
)
def test_which_errors_tell_that_another_is_gone(monkeypatch, capsys, error, leaves):
    ended = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed.os, "_exit", ended.append)
    distributed.leave_if_lost(error)
    assert ended == [distributed.EXIT] * leaves
    assert ("Connection reset" in capsys.readouterr().err) == leaves
    monkeypatch.setattr(jax, "process_count", lambda: 1)
    distributed.leave_if_lost(error)
    assert len(ended) == leaves


def exchange(index: int, folder: str) -> None:
    """In each of three processes of two devices; the last has another folder and config."""
    values = [{"text": "ü" * 1000 * index, "index": index}, None]
    gathered = distributed.gather(values)
    assert [found[0]["index"] for found in gathered] == [0, 1, 2]
    assert gathered[2][0]["text"] == "ü" * 2000 and gathered[1][1] is None
    assert distributed.divide(lambda x: [x, index], range(5)) == [
        [0, 0], [1, 1], [2, 1], [3, 2], [4, 2],
    ]  # fmt: skip
    assert distributed.by_first(lambda x: x + index, 7) == 7

    def refuse():
        raise UserError(f"refused by {index}")

    _refused("refused by 0", distributed.by_first, refuse)
    mesh = sharding.make_mesh(3, 2, 1)
    whole_BT = np.arange(24).reshape(12, 2)
    placed = distributed.to_devices({"x": whole_BT}, sharding.batch_sharding(mesh))
    parts = [np.asarray(s.data) for s in placed["x"].addressable_shards]
    np.testing.assert_array_equal(np.concatenate(parts), np.split(whole_BT, 3)[index])
    np.testing.assert_array_equal(distributed.to_host(placed)["x"], whole_BT)
    config = dataclasses.replace(tiny.config(), seed=int(index == 2))
    _refused("process 2 has another config .*seed: 0 -> 1", distributed.check_same, config)
    Path(folder).mkdir(exist_ok=True)
    distributed.by_first(lambda: (Path(folder) / "config.json").touch())
    _refused("not seen by process 2", distributed.check_shared, folder, "config.json")
    print("exchanged", flush=True)


def _refused(words, fn, *args):
    with pytest.raises(UserError, match=words):
        fn(*args)


@pytest.mark.slow
def test_three_processes_exchange(tmp_path):
    folders = [tmp_path / "shared", tmp_path / "shared", tmp_path / "own"]
    for told in processes.finish(processes.exchange(folders), timeout=300):
        assert "exchanged" in told


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """One process of four devices."""
    folder = tmp_path_factory.mktemp("straight") / "run"
    processes.finish(processes.start(folder, 1, 4, **RUN), timeout=600)
    return folder


def assert_same_run(folder, other, tolerance):
    """Step for step: what was sampled and rewarded is equal, every number of training near."""
    ours, theirs = tiny.untimed(folder), tiny.untimed(other)
    assert len(ours) == len(theirs) >= 8
    for a, b in zip(ours, theirs, strict=True):
        assert a.keys() == b.keys()
        numbers = {k: v for k, v in b.items() if isinstance(v, float | int)}
        assert {k: a[k] for k in numbers} == pytest.approx(numbers, rel=tolerance, abs=tolerance)
    ours, theirs = (tiny.lines(f, "rollouts.jsonl") for f in (folder, other))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.pop("advantage", 0) == pytest.approx(b.pop("advantage", 0), abs=tolerance)
        assert a == b
    for a, b in zip(tiny.params_of(folder), tiny.params_of(other), strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


@pytest.mark.slow
def test_two_processes_equal_one(straight, tmp_path):
    rows = [row for row in tiny.untimed(straight) if "kind" not in row]
    assert len(rows) == 6 and min(row["grad_norm"] for row in rows) > 0.01
    folder = tmp_path / "run"
    told = processes.finish(processes.start(folder, 2, 2, **RUN), timeout=600)
    assert ["report:" in text for text in told] == [True, False]
    assert_same_run(folder, straight, 1e-5)


def killed(started, index, folder, sent=signal.SIGKILL):
    """(seconds, status, words) of the end of the others' first, after one was killed."""
    while not folder.is_dir():
        assert all(p.poll() is None for p in started), started[index].communicate()[0][-3000:]
        time.sleep(0.01)
    began = time.monotonic()
    started[index].send_signal(sent)
    for other in started[:index] + started[index + 1 :]:
        told = other.communicate(timeout=100)[0]
        began = time.monotonic() - began, other.returncode, told
    started[index].kill()
    started[index].communicate()
    return began


@pytest.mark.slow
def test_killed_it_goes_on_with_other_processes_and_devices(straight, tmp_path):
    """One process of one device, then two of two, of which the first is killed, then one of two."""
    folder = tmp_path / "run"
    killed(processes.start(folder, 1, 1, **RUN), 0, folder / "checkpoints" / "2")
    two = processes.start(folder, 2, 2, **RUN)
    seconds, status, told = killed(two, 0, folder / "checkpoints" / "4")
    assert status != 0 and seconds < 3 * processes.SILENCE_S
    assert "another has ended" in told or "another task died" in told
    processes.finish(processes.start(folder, 1, 2, **RUN), timeout=600)
    assert not (folder / "damaged_checkpoints").exists()
    assert_same_run(folder, straight, 1e-4)


@pytest.mark.slow
def test_one_that_hangs_ends_the_others(tmp_path):
    """As when a host has lost its network: nothing is closed, nothing answers."""
    two = processes.start(tmp_path / "run", 2, 2, **RUN)
    seconds, status, told = killed(two, 1, tmp_path / "run" / "checkpoints" / "2", signal.SIGSTOP)
    assert status != 0 and seconds < 3 * processes.SILENCE_S
    assert "another has ended" in told or "stopped sending heartbeats" in told
