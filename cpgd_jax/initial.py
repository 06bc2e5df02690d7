"""Where a run starts: its tokenizer, the model's sizes and the first parameters.

`config.model.init_from` is "" (random), the workdir of an earlier run, a Hugging Face folder, or a
GGUF file.
"""

import dataclasses
import functools
from pathlib import Path

import jax
from flax import nnx

from cpgd_jax import checkpoint, config_checks, gguf_file, models, optim, sharding
from cpgd_jax import sizes as sizes_lib
from cpgd_jax.config import Config, Model
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.models import lora, weights
from cpgd_jax.train_step import init_state

VISION = "visual"  # where a model keeps its vision tower
# Of a ModelConfig, what the config may choose anew for given parameters.
FREE = ("dtype", "attention", "remat", "lora", "init_std", "max_positions")


def tokenizer(config: Config) -> tokenizer_lib.Tokenizer:
    """That of config.data.tokenizer, else of init_from, else the generated task's own."""
    if config.data.tokenizer:
        return tokenizer_lib.load(config.data.tokenizer)
    if config.model.init_from:
        folder = Path(config.model.init_from)
        return tokenizer_lib.load(folder / "tokenizer" if _is_run(folder) else folder)
    return tokenizer_lib.pictures() if config.data.source == "pictures" else tokenizer_lib.load()


def with_sizes(config: Config, tokenizer: tokenizer_lib.Tokenizer) -> Config:
    """`config` with no size of the model left open: those that are None are init_from's.

    UserError: a size that is given differs from init_from's, or nothing gives it.
    """
    path, model = config.model.init_from, config.model
    if path:
        known = _known_sizes(Path(path))
        _check_fit(model, known, path)
        model = sizes_lib.fill(model, known)
    elif model.vocab_size is None:
        model = dataclasses.replace(model, vocab_size=tokenizer.vocab_size)
    names = [f.name for f in dataclasses.fields(model) if f.name != "vision"]
    if unknown := [name for name in names if getattr(model, name) is None]:
        raise UserError(
            f"config.model.{unknown[0]} is None: give it, or name config.model.size (for example"
            " 'qwen2.5-0.5b'), or config.model.init_from"
        )
    if tokenizer.vocab_size > model.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model only {model.vocab_size}"
            " (config.model.vocab_size): give the tokenizer it was trained with"
        )
    config = dataclasses.replace(config, model=model)
    config_checks.check(config)
    return config


def _known_sizes(folder: Path) -> models.ModelConfig:
    return checkpoint.sizes(folder) if _is_run(folder) else weights.read_config(folder)


def _check_fit(model: Model, known: models.ModelConfig, path: str) -> None:
    lines = [
        f"{name} {value!r} is {getattr(known, name)!r} there"
        for name, value in vars(model).items()
        if value is not None and hasattr(known, name) and name not in FREE
        if value != getattr(known, name)
    ]
    if lines:
        raise UserError(
            f"config.model does not fit init_from {path!r}: {', '.join(lines)}; what is left open"
            " (None; size = '') is taken from there"
        )


def state(config: Config, mesh, optimizer):
    """(graphdef, TrainState): random parameters or those of init_from, laid out on the mesh.

    config: one whose sizes are all known, see `with_sizes`.
    """
    sizes = checkpoint.model_config(config.model)
    begin = functools.partial(_begin, config, sizes, optimizer)
    graphdef, abstract = _abstract(sizes)
    shardings = sharding.param_shardings(mesh, jax.eval_shape(begin, abstract))
    start = jax.jit(begin, out_shardings=shardings, donate_argnums=0)
    return graphdef, start(_params(config, sizes, mesh))


def shapes(config: Config, mesh, optimizer):
    """`state` without memory: a ShapeDtypeStruct, placed on the mesh, for each array."""
    sizes = checkpoint.model_config(config.model)
    graphdef, abstract = _abstract(sizes)
    found = jax.eval_shape(functools.partial(_begin, config, sizes, optimizer), abstract)
    places = sharding.param_shardings(mesh, found)
    return graphdef, jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), found, places
    )


def _begin(config: Config, sizes: models.ModelConfig, optimizer, params):
    """Marked, in the masters' dtype, with the optimiser's state."""

    def trained(path):
        if path[0] == VISION:
            return config.optim.train_vision
        return not sizes.lora.rank or lora.is_adapter(path)

    params = optim.freeze(params, config.optim.freeze, trained)
    dtype = config.optim.master_dtype
    return init_state(jax.tree.map(lambda x: x.astype(dtype), params), optimizer)


def _params(config: Config, sizes: models.ModelConfig, mesh):
    """Random ones or those of init_from; adapters that it lacks are as adapters start."""

    def fresh():
        return nnx.split(models.make(sizes, nnx.Rngs(config.seed)))[1]

    folder = Path(config.model.init_from)
    shardings = sharding.param_shardings(mesh, jax.eval_shape(fresh))
    if not config.model.init_from:
        return jax.jit(fresh, out_shardings=shardings)()
    if _is_run(folder):
        params = _of_run(folder, sizes, mesh)
    else:
        model = models.from_pretrained(folder, sizes.dtype, mesh, config.optim.master_dtype)
        params = nnx.split(model)[1]
    if sizes.lora.rank and not lora.adapters(params):
        new = jax.jit(lambda: lora.adapters(fresh()), out_shardings=lora.adapters(shardings))
        params = nnx.merge_state(params, new())
    return params


def _of_run(folder: Path, sizes: models.ModelConfig, mesh):
    """Parameters of an earlier run: with its adapters if ours are alike, else with them merged."""
    theirs = checkpoint.sizes(folder).lora
    _, abstract = _abstract(dataclasses.replace(sizes, lora=theirs))
    params = checkpoint.load_params(folder, abstract, sharding.param_shardings(mesh, abstract))
    if theirs == sizes.lora or not theirs.rank:
        return params
    adapters, base = nnx.split_state(params, lora.is_adapter, ...)
    merge = jax.jit(
        lambda *parts: lora.merge_params(nnx.merge_state(*parts), theirs), donate_argnums=0
    )
    return merge(base, adapters)


def _abstract(sizes: models.ModelConfig):
    """(graphdef, shapes of the parameters)."""
    return nnx.split(nnx.eval_shape(lambda: models.make(sizes, nnx.Rngs(0))))


def _is_run(folder: Path) -> bool:
    """True: the workdir of a run; False: a Hugging Face folder or a GGUF file."""
    if (folder / "checkpoints").is_dir():
        return True
    if (folder / "config.json").is_file() or (gguf_file.is_gguf(folder) and folder.is_file()):
        return False
    raise UserError(
        f"config.model.init_from is {str(folder)!r}: give the workdir of a run that has saved a"
        " checkpoint, a Hugging Face folder or a GGUF file"
    )
