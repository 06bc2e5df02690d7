"""Many processes that work as one run: how they meet, what they exchange, who writes.

All of them run the same program and take the same decisions. Each reads its share of the data,
computes on its own devices and scores its share of the responses; what a decision depends on is
exchanged first. The first process alone writes files and speaks.

When a process dies, a collective that waits for it fails at once or, where it hangs, JAX's
coordination service ends every other process `SILENCE_S` after the last sign of life.
"""

import importlib.util
import itertools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
from jax.experimental import multihost_utils

from cpgd_jax import config as config_lib
from cpgd_jax.errors import UserError

START_S = 300  # in which all processes must have started
SILENCE_S = 30  # of a process, after which the others end
LAST_S = 1.0  # that the first process stays when the others end
EXIT = 3  # status of a process that has lost the others
OURS = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT")  # errors that no other process has brought about
_pulses = itertools.count(1)  # the same on all processes
_act: Callable[[], None] | None = None


def start(coordinator: str = "", num_processes: int = 0, process_id: int = -1) -> None:
    """Joins the other processes, before anything else is asked of JAX.

    coordinator: HOST:PORT of the first process. Nothing given: a TPU's hosts find each other;
    elsewhere this process is alone. UserError: flags that do not fit, nobody there in time.
    """
    given = bool(coordinator), num_processes > 0, process_id >= 0
    if not any(given):
        if _on_tpu():
            _join()
        return
    if not all(given) or process_id >= num_processes:
        raise UserError(
            f"--coordinator={coordinator!r} --num_processes={num_processes}"
            f" --process_id={process_id}: give all three, HOST:PORT of process 0, how many there"
            " are, and 0 up to one less"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    _join(coordinator_address=coordinator, num_processes=num_processes, process_id=process_id)


def _join(**where) -> None:
    try:
        jax.distributed.initialize(
            **where,
            initialization_timeout=START_S,
            heartbeat_timeout_seconds=SILENCE_S,
            shutdown_timeout_seconds=SILENCE_S,
        )
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"the processes do not find each other ({reason}): {where}") from error


def _on_tpu() -> bool:
    devices = [*Path("/dev").glob("accel[0-9]*"), *Path("/dev").glob("vfio/[0-9]*")]
    return bool(devices) and importlib.util.find_spec("libtpu") is not None


def is_first() -> bool:
    """True for the process that writes; a lone process is the first."""
    return jax.process_index() == 0


def to_devices(tree, sharding):
    """Host arrays, the same on every process, laid out by `sharding`; each gives its part."""
    if jax.process_count() == 1:
        return jax.device_put(tree, sharding)

    def put(x):
        return jax.make_array_from_process_local_data(sharding, np.asarray(x), np.shape(x))

    return jax.tree.map(put, tree)


def to_host(tree):
    """The whole of every array, in NumPy, on every process."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def gather(value) -> list:
    """What each process gives, plain JSON, in the order of the processes."""
    if jax.process_count() == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    (size_P,) = multihost_utils.process_allgather(np.int32([data.size])).T
    room = 1 << int(size_P.max() - 1).bit_length()  # few shapes, since each is compiled
    data_PX = multihost_utils.process_allgather(np.pad(data, (0, room - data.size)))
    return [json.loads(row[:size].tobytes()) for row, size in zip(data_PX, size_P, strict=True)]


def share(items):
    """Those of a sequence that fall to this process: `gather`, joined, has them in their order."""
    index, count = jax.process_index(), jax.process_count()
    return items[len(items) * index // count : len(items) * (index + 1) // count]


def divide(fn: Callable, items) -> list:
    """[fn(item) for item in items], each by one of the processes; results are plain JSON."""
    return [found for part in gather([fn(item) for item in share(items)]) for found in part]


def by_first(fn: Callable, *args):
    """What fn(*args) gives or whichever UserError it raises on the first process, on all."""
    if jax.process_count() == 1:
        return fn(*args)
    found = None
    if is_first():
        try:
            found = {"value": fn(*args)}
        except UserError as error:
            found = {"error": str(error)}
    found = gather(found)[0]
    if "error" in found:
        raise UserError(found["error"])
    return found["value"]


def check_same(config: config_lib.Config) -> None:
    """UserError on all processes if one of them has another config."""
    ours, *others = gather(config_lib.to_dict(config))
    for index, theirs in enumerate(others, start=1):
        if lines := config_lib.difference(ours, theirs):
            raise UserError(
                f"process {index} has another config than process 0 ({'; '.join(lines)}): give"
                " the same command on every host"
            )


def check_shared(folder: str | Path, file: str) -> None:
    """UserError on all processes if one of them does not see `file`, which the first one wrote."""
    found = gather((Path(folder) / file).is_file())
    if not all(found):
        raise UserError(
            f"--workdir {str(folder)!r} of process 0 is not seen by process {found.index(False)}:"
            " give a folder of a file system that all hosts share"
        )


def leave_together() -> None:
    """Returns once all processes are here; a little later in the first, whom the others need."""
    if jax.process_count() > 1:
        gather(None)
        time.sleep(LAST_S if is_first() else 0)


def on_notice(act: Callable[[], None] | None) -> None:
    """What all processes are to do once one of them is told to end; None: nothing."""
    global _act
    _act = act


def pulse() -> None:
    """Called by all processes alike, often, where what is done can be saved.

    After a notice to end (SIGTERM, a pre-emption) to any process, all act at the same pulse.
    """
    if _act and multihost_utils.reached_preemption_sync_point(next(_pulses)):
        _act()


def leave_if_lost(error: BaseException | None) -> None:
    """Ends this process, without waiting for the others, if `error` tells that one is gone."""
    of_jax = isinstance(error, jax.errors.JaxRuntimeError)
    if jax.process_count() > 1 and of_jax and not str(error).startswith(OURS):
        reason = str(error).splitlines()[0]
        print(
            f"error: process {jax.process_index()} ends, since another has ended or failed"
            f" ({reason:.200}); the same command goes on from the last checkpoint",
            file=sys.stderr,
            flush=True,
        )
        os._exit(EXIT)
