"""Tiny runs of one or several processes on this machine, each with a few CPU devices.

As a script it is one of them, told by the environment variable ORDER, in JSON.
"""
# ruff: noqa: E402  (the path comes first)

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
SILENCE_S = 10


def start(workdir, count: int, devices: int, **changes) -> list[subprocess.Popen]:
    """`count` processes of `devices` devices each train on one mesh; changes: of the config."""
    return _together("train", count, devices, [(str(workdir), changes)] * count)


def exchange(folders) -> list[subprocess.Popen]:
    """A process a folder: what each sees of the others, see `test_distributed.exchange`."""
    return _together("exchange", len(folders), 2, [(str(folder),) for folder in folders])


def _together(what: str, count: int, devices: int, orders) -> list[subprocess.Popen]:
    where = f"localhost:{_free_port()}"
    return [
        launch(what, devices, (where, count, index, *order)) for index, order in enumerate(orders)
    ]


def finish(processes, timeout: float = 120) -> list[str]:
    """What each wrote, once all have ended well."""
    told = [process.communicate(timeout=timeout)[0] for process in processes]
    for process, text in zip(processes, told, strict=True):
        assert process.returncode == 0, text[-3000:]
    return told


def launch(what: str, devices: int, order) -> subprocess.Popen:
    """This file in a process of so many CPU devices; its output is one text."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"ORDER": json.dumps([what, order]), "XLA_FLAGS": flags}
    argv = [sys.executable, "-u", str(HERE / "processes.py")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(argv, env=environment, text=True, **pipes)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _join(where, count, index) -> None:
    from cpgd_jax import distributed

    distributed.SILENCE_S = SILENCE_S
    if count > 1:
        distributed.start(where, count, index)


def _train(where, count, index, workdir, changes) -> None:
    import tiny

    from cpgd_jax import train

    _join(where, count, index)
    train.train(tiny.config(**changes), workdir)


def _exchange(where, count, index, folder) -> None:
    import test_distributed

    _join(where, count, index)
    test_distributed.exchange(index, folder)


def _meshes() -> None:
    import test_meshes

    test_meshes.compare()


if __name__ == "__main__":
    what, order = json.loads(os.environ["ORDER"])
    {"train": _train, "exchange": _exchange, "meshes": _meshes}[what](*order)
