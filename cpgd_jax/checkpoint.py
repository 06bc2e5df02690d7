"""Orbax checkpoints of a run: parameters, optimiser state and where the run stands; kept N, async.

Layout: workdir/checkpoints/<rollouts or steps done>/{params,optimizer,progress}. Random keys and
data order are functions of (seed, position), so `progress` is all the state that the host has.
"""

import dataclasses
import itertools
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from absl import logging
from flax import nnx
from jax.sharding import SingleDeviceSharding

from cpgd_jax import config as config_lib
from cpgd_jax import progress as progress_lib
from cpgd_jax import workdir as workdir_lib
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2
from cpgd_jax.types import TrainState


class Checkpointer:
    """Saves `TrainState` and progress, restores the newest. A context manager: leaving it waits."""

    def __init__(self, workdir: Path, keep: int):
        self._manager = _manager(workdir, max_to_keep=keep, cleanup_tmp_directories=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._manager.wait_until_finished()
        self._manager.close()

    def save(self, index: int, state: TrainState, progress: dict) -> None:
        """`index`: rollouts (or supervised steps) done. Returns before the files are complete."""
        self._manager.save(
            index,
            args=ocp.args.Composite(
                params=ocp.args.StandardSave(nnx.to_pure_dict(state.params)),
                optimizer=ocp.args.StandardSave(
                    {"step": state.step, "leaves": jax.tree.leaves(state.opt_state)}
                ),
                progress=ocp.args.JsonSave(progress),
            ),
        )

    def restore(self, like: TrainState) -> tuple[TrainState, dict] | None:
        """The newest whole checkpoint, laid out as `like`, whose buffers are freed; None = none.

        Damaged ones are named, moved aside to workdir/damaged_checkpoints/ and passed over.
        UserError if none can be read.
        """
        if self._manager.latest_step() is None:
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
        indices = sorted(self._manager.all_steps(), reverse=True)
        restored, damaged = _newest_whole(self._manager, args, indices)
        for index in damaged:
            _move_aside(Path(self._manager.directory) / str(index))
        if damaged:
            self._manager.reload()
        state = TrainState(
            step=restored["optimizer"]["step"],
            params=_filled(like.params, restored["params"]),
            opt_state=jax.tree.unflatten(treedef, restored["optimizer"]["leaves"]),
        )
        return state, restored["progress"]


def save_params(workdir: Path, params) -> None:
    """Checkpoint 0 of parameters alone: a run can start from it. OSError when the disk is full."""
    args = ocp.args.Composite(params=ocp.args.StandardSave(nnx.to_pure_dict(params)))
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.FATAL)  # Orbax's threads log what is raised here
    try:
        with _manager(workdir, enable_async_checkpointing=False) as manager:
            manager.save(0, args=args)
    except ValueError as error:  # of TensorStore: a chain of clauses that ends with the cause
        raise OSError(_reason(error).split(": ")[-1]) from error
    finally:
        logging.set_verbosity(verbosity)


def load_model(workdir: str | Path, index: int | None = None):
    """(model, tokenizer) of a run's checkpoint, None = the newest, on one device."""
    workdir = Path(workdir)
    model_sizes = sizes(workdir)
    graphdef, abstract = nnx.split(nnx.eval_shape(lambda: Qwen2(model_sizes, nnx.Rngs(0))))
    one_device = jax.tree.map(lambda _: SingleDeviceSharding(jax.devices()[0]), abstract)
    params = load_params(workdir, abstract, one_device, index)
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


def _reason(error: Exception) -> str:
    """The first line of its message."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _move_aside(folder: Path) -> None:
    """workdir/checkpoints/N -> workdir/damaged_checkpoints/N (or N.1, N.2, ...)."""
    target = folder.parents[1] / "damaged_checkpoints" / folder.name
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
        "params": ocp.StandardCheckpointHandler(),
        "optimizer": ocp.StandardCheckpointHandler(),
        "progress": ocp.JsonCheckpointHandler(),
    }
    options = ocp.CheckpointManagerOptions(**options)
    return ocp.CheckpointManager(_folder(workdir), options=options, item_handlers=handlers)


def _filled(state, values: dict):
    state = jax.tree.map(lambda x: x, state)
    nnx.replace_by_pure_dict(state, values)
    return state


def _folder(workdir) -> Path:
    return Path(workdir).absolute() / "checkpoints"
