"""What a run consists of, built from its config before the first step."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx
from jax.sharding import Mesh

from cpgd_jax import checkpoint, models, optim, sharding, workdir
from cpgd_jax.config import Config
from cpgd_jax.data import sources
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.train_step import init_state
from cpgd_jax.types import Example, TrainState


@dataclasses.dataclass(frozen=True)
class Run:
    """The parts of a run that do not change while it trains."""

    config: Config
    workdir: Path
    tokenizer: tokenizer_lib.Tokenizer
    source: sources.Source
    held_out: list[Example]
    mesh: Mesh
    graphdef: Any  # of the model; `nnx.merge(graphdef, params)` inside jit
    optimizer: optax.GradientTransformation

    def place(self, batch):
        """A batch of host arrays on the devices, rows split over the data axes."""
        return jax.device_put(batch, sharding.batch_sharding(self.mesh))


def build(config: Config, folder: str | Path) -> tuple[Run, TrainState]:
    """Checks everything that can be checked, claims the folder, then makes the initial state."""
    if config.data.tokenizer:
        tokenizer = tokenizer_lib.load(config.data.tokenizer)
    elif (Path(config.model.init_from) / "tokenizer").is_dir():
        tokenizer = tokenizer_lib.load(Path(config.model.init_from) / "tokenizer")
    else:
        tokenizer = tokenizer_lib.load()
    source = sources.load(config.data, config.seed)
    held_out = source.held_out(config.eval.problems)
    mesh = sharding.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor)
    check_rows(mesh, "train.microbatch_size", config.train.microbatch_size)
    optimizer = optim.make_optimizer(config.optim, config.total_steps)
    sizes = checkpoint.model_config(config.model, tokenizer)
    graphdef, state = _initial_state(config, sizes, mesh, optimizer)
    folder = workdir.claim(folder, config)
    tokenizer.save(folder / "tokenizer")
    return Run(config, folder, tokenizer, source, held_out, mesh, graphdef, optimizer), state


def check_rows(mesh: Mesh, name: str, rows: int) -> None:
    """Rows of a batch must divide evenly over the data and fsdp axes."""
    ways = mesh.shape["data"] * mesh.shape["fsdp"]
    if rows % ways:
        raise UserError(
            f"config.{name} is {rows}: it must be a multiple of mesh data x fsdp = {ways}"
        )


def _initial_state(config: Config, sizes: models.ModelConfig, mesh, optimizer):
    """(graphdef, state): parameters random or from config.model.init_from, laid out on the mesh."""

    def fresh():
        return nnx.split(models.Qwen2(sizes, nnx.Rngs(config.seed)))[1]

    graphdef = nnx.split(nnx.eval_shape(lambda: models.Qwen2(sizes, nnx.Rngs(0))))[0]
    abstract = jax.eval_shape(fresh)
    shardings = sharding.param_shardings(mesh, abstract)
    if config.model.init_from:
        params = jax.device_put(_pretrained(config.model.init_from, sizes, abstract), shardings)
    else:
        params = jax.jit(fresh, out_shardings=shardings)()
    abstract_state = jax.eval_shape(lambda p: init_state(p, optimizer), params)
    shardings = sharding.param_shardings(mesh, abstract_state)
    return graphdef, jax.jit(lambda p: init_state(p, optimizer), out_shardings=shardings)(params)


def _pretrained(path: str, sizes, abstract):
    folder = Path(path)
    if (folder / "checkpoints").is_dir():
        return checkpoint.load_params(folder, abstract)
    if (folder / "config.json").is_file():
        params = nnx.split(models.from_pretrained(folder, dtype=sizes.dtype))[1]
        _check_same(path, abstract, params)
        return params
    raise UserError(
        f"config.model.init_from is {path!r}: give the workdir of a run or a Hugging Face folder"
    )


def _check_same(path, expected, params):
    want, have = (
        {jax.tree_util.keystr(k): v.shape for k, v in jax.tree.leaves_with_path(tree)}
        for tree in (expected, params)
    )
    for name in sorted({*want, *have}):
        if want.get(name) != have.get(name):
            raise UserError(
                f"{path!r} does not fit config.model: {name} is {have.get(name)} there and"
                f" {want.get(name)} in the config"
            )
