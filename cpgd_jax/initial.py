"""Where a run starts: its tokenizer, the model's sizes and the first parameters.

`config.model.init_from` is "" (random), the workdir of an earlier run, or a Hugging Face folder.
"""

import dataclasses
from pathlib import Path

import jax
from flax import nnx

from cpgd_jax import checkpoint, models, sharding
from cpgd_jax.config import Config
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_config
from cpgd_jax.train_step import init_state

# Of a ModelConfig, what the config may choose anew for given parameters, or does not hold.
FREE = ("dtype", "remat", "vocab_size", "init_std", "max_positions")


def tokenizer(config: Config) -> tokenizer_lib.Tokenizer:
    """That of config.data.tokenizer, else of init_from, else the arithmetic task's own."""
    if config.data.tokenizer:
        return tokenizer_lib.load(config.data.tokenizer)
    if config.model.init_from:
        folder = Path(config.model.init_from)
        return tokenizer_lib.load(folder / "tokenizer" if _is_run(folder) else folder)
    return tokenizer_lib.load()


def sizes(config: Config, tokenizer: tokenizer_lib.Tokenizer) -> models.ModelConfig:
    """The model's sizes; the vocabulary's is that of init_from, which may exceed the tokenizer's.

    UserError: config.model differs from what init_from holds.
    """
    path, ours = config.model.init_from, checkpoint.model_config(config.model, tokenizer.vocab_size)
    if not path:
        return ours
    folder = Path(path)
    known = checkpoint.sizes(folder) if _is_run(folder) else hf_config.read(folder, ours.dtype)
    lines = [
        f"{key} {value!r} is {getattr(known, key)!r} there"
        for key, value in dataclasses.asdict(ours).items()
        if key not in FREE and value != getattr(known, key)
    ]
    if lines:
        raise UserError(f"config.model does not fit init_from {path!r}: {', '.join(lines)}")
    if tokenizer.vocab_size > known.vocab_size:
        raise UserError(
            f"the tokenizer has {tokenizer.vocab_size} ids, the model of {path!r} only"
            f" {known.vocab_size}: give the tokenizer it was trained with"
        )
    return dataclasses.replace(known, dtype=ours.dtype, remat=ours.remat)


def state(config: Config, sizes: models.ModelConfig, mesh, optimizer):
    """(graphdef, TrainState): random parameters or those of init_from, laid out on the mesh."""

    def fresh():
        return nnx.split(models.Qwen2(sizes, nnx.Rngs(config.seed)))[1]

    graphdef = nnx.split(nnx.eval_shape(lambda: models.Qwen2(sizes, nnx.Rngs(0))))[0]
    abstract = jax.eval_shape(fresh)
    shardings = sharding.param_shardings(mesh, abstract)
    folder = Path(config.model.init_from)
    if not config.model.init_from:
        params = jax.jit(fresh, out_shardings=shardings)()
    elif _is_run(folder):
        params = checkpoint.load_params(folder, abstract, shardings)
    else:
        params = nnx.split(models.from_pretrained(folder, dtype=sizes.dtype, mesh=mesh))[1]
    abstract = jax.eval_shape(lambda p: init_state(p, optimizer), params)
    shardings = sharding.param_shardings(mesh, abstract)
    start = jax.jit(lambda p: init_state(p, optimizer), out_shardings=shardings, donate_argnums=0)
    return graphdef, start(params)


def _is_run(folder: Path) -> bool:
    """True: the workdir of a run; False: a Hugging Face folder."""
    if (folder / "checkpoints").is_dir():
        return True
    if (folder / "config.json").is_file():
        return False
    raise UserError(
        f"config.model.init_from is {str(folder)!r}: give the workdir of a run that has saved a"
        " checkpoint, or a Hugging Face folder"
    )
