"""Orbax checkpoints of a run: parameters, optimiser state and where the run stands; kept N, async.

Layout: workdir/checkpoints/<rollouts or steps done>/{params,opt_state,progress}. Random keys and
data order are functions of (seed, position), so `progress` is all the state that the host has.
"""

import json
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from flax import nnx

from cpgd_jax import config as config_lib
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2
from cpgd_jax.types import TrainState


class Checkpointer:
    """Saves `TrainState` and progress, restores the newest. A context manager: leaving it waits."""

    def __init__(self, workdir: Path, keep: int):
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True)
        self._manager = ocp.CheckpointManager(_folder(workdir), options=options)

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
        """The newest checkpoint laid out as `like`, or None. Trees that do not match raise."""
        index = self._manager.latest_step()
        if index is None:
            return None
        leaves, treedef = jax.tree.flatten(like.opt_state)
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, (like.step, leaves))
        params = jax.tree.map(ocp.utils.to_shape_dtype_struct, nnx.to_pure_dict(like.params))
        restored = self._manager.restore(
            index,
            args=ocp.args.Composite(
                params=ocp.args.StandardRestore(params),
                optimizer=ocp.args.StandardRestore({"step": abstract[0], "leaves": abstract[1]}),
                progress=ocp.args.JsonRestore(),
            ),
        )
        state = TrainState(
            step=restored["optimizer"]["step"],
            params=_filled(like.params, restored["params"]),
            opt_state=jax.tree.unflatten(treedef, restored["optimizer"]["leaves"]),
        )
        return state, restored["progress"]


def load_model(workdir: str | Path):
    """(model, tokenizer) of a run's newest checkpoint."""
    workdir = Path(workdir)
    config, tokenizer = read_config(workdir), tokenizer_lib.load(workdir / "tokenizer")
    model = nnx.eval_shape(lambda: Qwen2(model_config(config.model, tokenizer), nnx.Rngs(0)))
    graphdef, abstract = nnx.split(model)
    return nnx.merge(graphdef, load_params(workdir, abstract)), tokenizer


def load_params(workdir: str | Path, abstract):
    """Parameters of a run's newest checkpoint as an nnx.State like `abstract` (shapes, shardings)."""
    folder = _folder(workdir)
    if not folder.is_dir():
        raise UserError(f"{str(workdir)!r} holds no checkpoints: give the workdir of a training run")
    with ocp.CheckpointManager(folder) as manager:
        index = manager.latest_step()
        if index is None:
            raise UserError(f"{str(folder)!r} holds no complete checkpoint")
        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, nnx.to_pure_dict(abstract))
        try:
            args = ocp.args.Composite(params=ocp.args.StandardRestore(like))
            params = manager.restore(index, args=args)["params"]
        except ValueError as error:
            raise UserError(
                f"checkpoint {index} of {str(workdir)!r} does not fit config.model: use the model and"
                f" tokenizer it was trained with ({str(error).splitlines()[0]})"
            ) from error
    return _filled(abstract, params)


def read_config(workdir: str | Path) -> config_lib.Config:
    """The config that a run was started with."""
    file = Path(workdir) / "config.json"
    try:
        return config_lib.from_config_dict(json.loads(file.read_text()))
    except FileNotFoundError as error:
        raise UserError(f"{str(file)!r} not found: give the workdir of a training run") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{str(file)!r} is not JSON ({error.msg})") from error


def model_config(config: config_lib.Model, tokenizer) -> ModelConfig:
    """The decoder's sizes; the vocabulary is the tokenizer's."""
    fields = {k: v for k, v in vars(config).items() if k != "init_from"}
    return ModelConfig(vocab_size=tokenizer.vocab_size, **fields)


def _filled(state, values: dict):
    state = jax.tree.map(lambda x: x, state)
    nnx.replace_by_pure_dict(state, values)
    return state


def _folder(workdir) -> Path:
    return Path(workdir).absolute() / "checkpoints"
