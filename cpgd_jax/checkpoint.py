"""Orbax checkpoints of a run: parameters, optimiser state and where the run stands; kept N, async.

Layout: workdir/checkpoints/<optimiser steps done>/{params,optimizer,progress}, each with the
checksums of its files. Random keys and data order are functions of (seed, position), so `progress`
is all the state that the host has.
"""

import contextlib
import dataclasses
import itertools
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from absl import logging
from flax import nnx
from jax.sharding import SingleDeviceSharding

from cpgd_jax import checksums, distributed, sharding
from cpgd_jax import config as config_lib
from cpgd_jax import progress as progress_lib
from cpgd_jax import workdir as workdir_lib
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig
from cpgd_jax.models.qwen2_5_vl import make
from cpgd_jax.types import TrainState


class Checkpointer:
    """Saves `TrainState` and progress, restores the newest. A context manager: leaving it waits.

    A save that fails is said aloud, and the checkpoints before it stay: training can go on.
    """

    def __init__(self, workdir: Path, keep: int):
        """keep: the newest so many are kept, and the one that `best` names."""
        self.best: int | None = None
        self._workdir, self._keep = workdir, keep
        self._saving = None  # index of the newest save
        self._manager = None
        self._open()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()
        if self._manager:
            self._manager.close()

    def save(self, index: int, state: TrainState, progress: dict) -> None:
        """`index`: optimiser steps done. Returns before the files are complete.

        What is already there under this index is left: it is the same state.
        """
        self.wait()
        with self._going_on(index):
            manager = self._open()
            if index in manager.all_steps():
                return
            manager.save(
                index,
                args=ocp.args.Composite(
                    params=ocp.args.StandardSave(nnx.to_pure_dict(state.params)),
                    optimizer=ocp.args.StandardSave(
                        {"step": state.step, "leaves": jax.tree.leaves(state.opt_state)}
                    ),
                    progress=ocp.args.JsonSave(progress),
                ),
            )

    def wait(self) -> None:
        """Until what is being saved is complete, or has failed."""
        if self._manager:
            with self._going_on(self._saving):
                self._manager.wait_until_finished()

    def newest(self) -> int | None:
        """Index of the newest complete checkpoint, once nothing is being saved; None = none."""
        return self._manager.latest_step() if self._manager else None

    def restore(self, like: TrainState, most: int | None = None) -> tuple[TrainState, dict] | None:
        """The newest whole checkpoint, laid out as `like`, whose buffers are freed; None = none.

        most: of at most so many optimiser steps. Damaged ones are named, moved aside to
        workdir/damaged_checkpoints/ and passed over. UserError if none can be read.
        """
        manager = self._open()
        indices = sorted(manager.all_steps(), reverse=True)
        indices = [i for i in indices if most is None or i <= most]
        if not indices:
            return None
        leaves, treedef = jax.tree.flatten(like.opt_state)
        trees = nnx.to_pure_dict(like.params), {"step": like.step, "leaves": leaves}
        params, optimizer = jax.tree.map(ocp.utils.to_shape_dtype_struct, trees)
        jax.tree.map(lambda x: x.delete(), like)  # so that memory holds one state, not two
        args = ocp.args.Composite(
            params=ocp.args.StandardRestore(params),
            optimizer=ocp.args.StandardRestore(optimizer),
            progress=ocp.args.JsonRestore(),
        )
        restored, damaged = _newest_whole(manager, args, indices)
        self._set_aside(damaged, "damaged_checkpoints")
        state = TrainState(
            step=restored["optimizer"]["step"],
            params=_filled(like.params, restored["params"]),
            opt_state=jax.tree.unflatten(treedef, restored["optimizer"]["leaves"]),
        )
        return state, restored["progress"]

    def forget_after(self, index: int) -> None:
        """Moves what is newer aside to workdir/rolled_back_checkpoints/."""
        newer = [i for i in self._open().all_steps() if i > index]
        self._set_aside(newer, "rolled_back_checkpoints")

    def _set_aside(self, indices, name: str) -> None:
        for index in indices:
            folder = Path(self._manager.directory) / str(index)
            distributed.by_first(_move_aside, folder, name)
        if indices:
            self._manager.reload()

    def _open(self) -> ocp.CheckpointManager:
        """The manager: a new one, which clears up, after a save that failed."""
        if self._manager is None:
            policy = _Kept(self)
            self._manager = _manager(
                self._workdir, preservation_policy=policy, cleanup_tmp_directories=True
            )
        return self._manager

    @contextlib.contextmanager
    def _going_on(self, index: int | None):
        """Whatever a save raises (a full disk, a lost mount) is told, and does not stop the run."""
        self._saving = index
        try:
            yield
        except Exception as error:
            reason = f"{_cause(error):.200}"
            progress_lib.warn(f"checkpoint {index} could not be saved: {reason}; those before stay")
            manager, self._manager = self._manager, None
            with contextlib.suppress(Exception):
                manager.close()
            with contextlib.suppress(Exception):
                self._open()


class _Kept:
    """Which checkpoints stay, by Orbax's protocol: the newest, and the best."""

    def __init__(self, owner: Checkpointer):
        self._owner = owner

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        steps = [info.step for info in checkpoints]
        newest = sorted(steps)[-self._owner._keep :]
        return [step in newest or step == self._owner.best for step in steps]


def save_params(workdir: Path, params) -> None:
    """Checkpoint 0 of parameters alone: a run can start from it. OSError when the disk is full."""
    args = ocp.args.Composite(params=ocp.args.StandardSave(nnx.to_pure_dict(params)))
    try:
        with _manager(workdir, enable_async_checkpointing=False) as manager:
            manager.save(0, args=args)
    except ValueError as error:  # of TensorStore: a chain of clauses that ends with the cause
        raise OSError(_cause(error)) from error


def load_model(workdir: str | Path, index: int | None = None, mesh=None):
    """(model, tokenizer) of a run's checkpoint, None = the newest, on a mesh or on one device."""
    workdir = Path(workdir)
    model_sizes = sizes(workdir)
    graphdef, abstract = nnx.split(nnx.eval_shape(lambda: make(model_sizes, nnx.Rngs(0))))
    if mesh is None:
        places = jax.tree.map(lambda _: SingleDeviceSharding(jax.devices()[0]), abstract)
    else:
        places = sharding.param_shardings(mesh, abstract)
    params = load_params(workdir, abstract, places, index)
    return nnx.merge(graphdef, params), tokenizer_lib.load(workdir / "tokenizer")


def load_params(workdir: str | Path, abstract, shardings, index: int | None = None):
    """Parameters of a run's checkpoint, None = the newest, as an nnx.State like `abstract`.

    They are laid out by `shardings`. UserError if they have other shapes than `abstract`.
    """
    like = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
        nnx.to_pure_dict(abstract),
        nnx.to_pure_dict(shardings),
    )
    with _existing(workdir) as manager:
        indices = sorted(manager.all_steps(), reverse=True)
        if index is not None and index not in indices:
            held = ", ".join(map(str, reversed(indices)))
            raise UserError(f"{str(_folder(workdir))!r} holds no checkpoint {index}, only {held}")
        indices = indices if index is None else [index]
        _check_shapes(manager, indices, like)
        args = ocp.args.Composite(params=ocp.args.StandardRestore(like))
        params = _newest_whole(manager, args, indices)[0]["params"]
    return _filled(abstract, params)


def sizes(workdir: str | Path) -> ModelConfig:
    """Of the model of a run."""
    return model_config(read_config(workdir).model)


def read_config(workdir: str | Path) -> config_lib.Config:
    """The config that a run was started with."""
    file = Path(workdir) / "config.json"
    if not file.is_file():
        raise UserError(f"{str(file)!r} not found: give the workdir of a training run")
    return config_lib.from_config_dict(workdir_lib.read(file))


def model_config(model: config_lib.Model) -> ModelConfig:
    """The decoder's sizes; none of them may be open (None)."""
    return ModelConfig(**{f.name: getattr(model, f.name) for f in dataclasses.fields(ModelConfig)})


def _check_shapes(manager: ocp.CheckpointManager, indices: list[int], like) -> None:
    """UserError if the parameters of the first of `indices` are not those of the run's config."""
    try:
        stored = _shapes(manager.item_metadata(indices[0])["params"].tree)
    except Exception:  # damaged: named by the reader of its values
        return
    expected = _shapes(like)
    for name in sorted({*stored, *expected}):
        if stored.get(name) != expected.get(name):
            raise UserError(
                f"checkpoint {indices[0]} of {manager.directory} is of another model than the run's"
                f" config.json: {name} is {stored.get(name)}, not {expected.get(name)}"
            )


def _shapes(tree) -> dict[str, tuple[int, ...]]:
    paths = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(k, simple=True, separator="."): tuple(v.shape) for k, v in paths}


def _newest_whole(manager: ocp.CheckpointManager, args, indices):
    """(restored, those of `indices` before it, which are damaged). UserError: none can be read."""
    damaged = []
    for index in indices:
        try:
            if wrong := distributed.by_first(_fault, Path(manager.directory) / str(index), args):
                raise ValueError(wrong)
            return manager.restore(index, args=args), damaged
        except Exception as error:  # whatever Orbax, TensorStore or JSON make of a damaged file
            progress_lib.warn(
                f"checkpoint {index} of {manager.directory} is damaged: {_reason(error):.200}"
            )
            damaged.append(index)
    raise UserError(
        f"no checkpoint of {str(manager.directory)!r} can be read: restore one from a copy, or"
        " start again in another --workdir"
    )


def _fault(folder: Path, args) -> str | None:
    """What is wrong with the files of the checkpoint's items; None if they are as written."""
    items = [folder / name for name, _ in args.items()]
    if not any((item / checksums.FILE).exists() for item in items):
        progress_lib.warn(f"checkpoint {folder} has no checksums: it is used as it is")
        return None
    return next(filter(None, map(checksums.fault, items)), None)


def _reason(error: Exception) -> str:
    """The first line of its message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _cause(error: Exception) -> str:
    """Of TensorStore's chain of clauses the last, without the place in its source."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return _reason(error).split(" [")[0].split(": ")[-1]


def _move_aside(folder: Path, name: str) -> None:
    """workdir/checkpoints/N -> workdir/<name>/N (or N.1, N.2, ...)."""
    target = folder.parents[1] / name / folder.name
    target.parent.mkdir(exist_ok=True)
    for copy in itertools.count(1):
        if not target.exists():
            break
        target = target.with_name(f"{folder.name}.{copy}")
    folder.rename(target)


def _existing(workdir) -> ocp.CheckpointManager:
    if not _folder(workdir).is_dir():
        raise UserError(f"{str(workdir)!r} holds no checkpoints: give the workdir of a run")
    manager = _manager(workdir, create=False)
    if manager.latest_step() is None:
        raise UserError(f"{str(_folder(workdir))!r} holds no complete checkpoint")
    return manager


def _manager(workdir, **options) -> ocp.CheckpointManager:
    handlers = {
        "params": _checked(ocp.StandardCheckpointHandler()),
        "optimizer": _checked(ocp.StandardCheckpointHandler()),
        "progress": _checked(ocp.JsonCheckpointHandler()),
    }
    logging.get_absl_logger().addFilter(_not_of_orbax)
    options = ocp.CheckpointManagerOptions(**options)
    return ocp.CheckpointManager(_folder(workdir), options=options, item_handlers=handlers)


def _checked(handler):
    """Checksums are written when an item's files are complete, before the checkpoint appears."""
    finalize = handler.finalize

    def with_checksums(directory):
        finalize(directory)
        checksums.write(Path(directory))

    handler.finalize = with_checksums
    return handler


def _not_of_orbax(record) -> bool:
    """Its threads log what is raised here."""
    return "orbax" not in record.pathname


def _filled(state, values: dict):
    state = jax.tree.map(lambda x: x, state)
    nnx.replace_by_pure_dict(state, values)
    return state


def _folder(workdir) -> Path:
    return Path(workdir).absolute() / "checkpoints"
