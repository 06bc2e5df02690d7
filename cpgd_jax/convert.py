"""Models between formats; what was written is read back and its logits are compared.

Sources: a Hugging Face folder, a GGUF file, a run's workdir (one of its checkpoints). Targets: a
Hugging Face folder, or a start checkpoint: a workdir that `config.model.init_from` reads.
"""

import dataclasses
import zlib
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from flax import nnx

from cpgd_jax import atomic, checkpoint, models, workdir
from cpgd_jax import config as config_lib
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.gguf_file import is_gguf
from cpgd_jax.models import lora, safetensors_file, save
from cpgd_jax.models.hf_layout import by_path, slots
from cpgd_jax.progress import Progress, console
from cpgd_jax.sizes import Size

TARGETS = ("huggingface", "checkpoint")
ROWS, COLUMNS = 4, 16  # tokens whose logits are compared
ROUNDING = 16  # weights rounded: epsilons of the dtype, of the largest logit, that logits may move
TEXT = "<|im_start|>user\n12 × 3 = \\boxed{36}? naïve 数学<|im_end|>"  # ids must stay the same


@dataclasses.dataclass(frozen=True)
class Check:
    """The largest difference between the source's logits and those of what was written.

    tolerance: 0, unless the weights were rounded.
    """

    difference: float
    tolerance: float


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str = "huggingface",
    step: int | None = None,
    dtype: str = "float32",
    max_shard_bytes: int = 5_000_000_000,
    check: bool = True,
    start_config: config_lib.Config | None = None,
) -> Check | None:
    """Writes the model and the tokenizer of `source` to the new folder `target`.

    step: of a run's checkpoint; None = the newest. dtype: of a Hugging Face folder's files.
    start_config: of a start checkpoint; the model's sizes are put into it. The host holds one model
    at a time, and one stacked parameter more. UserError for wrong input, a full disk or a failed
    check; nothing is written then.
    """
    source, target = Path(source), Path(target)
    _check_arguments(source, target, to, step, dtype)
    with console.status(f"reading {source}"):
        model, tokenizer = _read(source, step)
        expected, result = _expect(model, dtype) if check else (None, None)
    tensors = len(slots(nnx.state(model, nnx.Param)))
    with atomic.folder(target) as folder, Progress(tensors, "tensor") as bar:
        if to == "checkpoint":
            _write_checkpoint(model, tokenizer, folder, start_config)
        else:
            files = {"dtype": dtype, "max_shard_bytes": max_shard_bytes}
            save.write_files(model, folder, tokenizer=tokenizer, report=bar.update, **files)
        del model  # before the other is read
        bar.update(tensors)
        bar.note("reading back")
        if check:
            _compare(folder, expected, tokenizer)
    return result


def _check_arguments(source: Path, target: Path, to, step, dtype) -> None:
    if not source.exists():
        raise UserError(f"--source {str(source)!r} does not exist")
    if to not in TARGETS:
        raise UserError(f"--to {to!r}: give one of {', '.join(TARGETS)}")
    if dtype not in safetensors_file.DTYPES:
        raise UserError(f"--dtype {dtype!r}: give one of {', '.join(safetensors_file.DTYPES)}")
    if to == "checkpoint" and dtype != "float32":
        raise UserError(f"--dtype {dtype!r}: the parameters of a checkpoint are float32")
    if step is not None and not _is_run(source):
        raise UserError(f"--step {step}: {str(source)!r} is no workdir of a run")
    if source.resolve() in (target.resolve(), *target.resolve().parents):
        raise UserError(f"--target {str(target)!r} is inside --source: give a folder outside it")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"--target {str(target)!r} exists and is not empty: give a new folder")


def _is_run(folder: Path) -> bool:
    """True: the workdir of a run, whose tokenizer is in a folder of its own."""
    return any((folder / name).is_dir() for name in ("checkpoints", "tokenizer"))


def _read(source: Path, step: int | None):
    """(model, tokenizer), for logits in float32."""
    if _is_run(source):
        model, tokenizer = checkpoint.load_model(source, step)
        model = lora.merge(model)
    elif is_gguf(source) or (source / "config.json").is_file():
        model, tokenizer = models.from_pretrained(source), tokenizer_lib.load(source)
    else:
        raise UserError(
            f"{str(source)!r} is no model: give a Hugging Face folder (it holds config.json), a"
            " .gguf file, or the workdir of a run"
        )
    model.config = models.ModelConfig(**_sizes(model.config))  # logits in float32, however it ran
    return model, tokenizer


def _sizes(config: models.ModelConfig) -> dict:
    return {f.name: getattr(config, f.name) for f in dataclasses.fields(Size)}


def _expect(model, dtype: str):
    """(what the written model must have exactly: logits, checksums; Check). Rounds the model."""
    source_BTV = _logits(model)
    if not np.isfinite(source_BTV).all():
        raise UserError("the source's logits are not finite: its weights are damaged; or --nocheck")
    if dtype == "float32":
        return (source_BTV, _checksums(model)), Check(0.0, 0.0)
    for name, variable in by_path(nnx.state(model, nnx.Param)).items():
        rounded = safetensors_file.cast(name, np.asarray(variable.get_raw_value()), dtype)
        variable.set_raw_value(jnp.asarray(rounded, jnp.float32))
    rounded_BTV = _logits(model)
    epsilon = float(jnp.finfo(dtype).eps)
    check = Check(
        difference=float(np.abs(rounded_BTV - source_BTV).max()),
        tolerance=ROUNDING * epsilon * float(np.abs(source_BTV).max()),
    )
    if not check.difference <= check.tolerance:
        raise UserError(
            f"rounded to {dtype} the model's logits move by {check.difference:.3g}, tolerance"
            f" {check.tolerance:.3g}: choose another --dtype, or --nocheck"
        )
    return (rounded_BTV, _checksums(model)), check


def _logits(model) -> np.ndarray:
    token_BT = np.random.default_rng(0).integers(0, model.config.vocab_size, (ROWS, COLUMNS))
    return np.asarray(models.logits(model, token_BT))


def _checksums(model) -> dict[str, int]:
    """Of every parameter: the fixed tokens do not reach every row of an embedding."""
    params = by_path(nnx.state(model, nnx.Param))
    return {name: zlib.crc32(np.asarray(v.get_raw_value())) for name, v in params.items()}


def _write_checkpoint(model, tokenizer, folder: Path, config: config_lib.Config) -> None:
    """The workdir of a run that has not begun: checkpoint 0 has no optimiser. config.json last."""
    half, r = model.config.max_positions // 2, config.rollout
    lengths = {
        "max_prompt_len": min(r.max_prompt_len, half),
        "max_response_len": min(r.max_response_len, half),
    }
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, **_sizes(model.config)),
        rollout=dataclasses.replace(r, **lengths),
    )
    tokenizer.save_pretrained(folder / "tokenizer")
    checkpoint.save_params(folder, nnx.state(model, nnx.Param))
    workdir.write_json(folder / "config.json", config_lib.to_dict(config))


def _compare(folder: Path, expected, tokenizer) -> None:
    """Reads back what was written. UserError unless model and tokenizer are the same."""
    (model, written), (expected_BTV, checksums) = _read(folder, None), expected
    difference = np.abs(_logits(model) - expected_BTV).max()
    if difference != 0:  # nor NaN
        raise UserError(
            f"the check failed: logits of the written model differ by up to {difference:.3g},"
            " tolerance 0; nothing was kept"
        )
    found = _checksums(model)
    if damaged := [name for name in checksums if checksums[name] != found[name]]:
        raise UserError(f"the check failed: {damaged[0]} is damaged; nothing was kept")
    if _fingerprint(written) != _fingerprint(tokenizer):
        raise UserError("the check failed: the written tokenizer differs; nothing was kept")


def _fingerprint(tokenizer: tokenizer_lib.Tokenizer):
    fast = tokenizer.fast
    return tokenizer.stop_ids, tokenizer.pad_id, fast.encode(TEXT), fast.chat_template
