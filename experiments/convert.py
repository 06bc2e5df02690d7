"""Converts models: `python -m experiments.convert --source=DIR_OR_GGUF --target=DIR`.

    python -m experiments.convert --source=runs/quickstart/cpgd_seed0 --target=out
    python -m experiments.convert --source=model-q8_0.gguf --target=out --dtype=bfloat16

Sources: the workdir of a run (its newest checkpoint, or --step), a Hugging Face folder, a GGUF
file. The target is a new Hugging Face folder, for transformers and vLLM; with --to=checkpoint a
workdir to start runs from (config.model.init_from). What was written is read back and compared
(--check). It runs on the CPU, with one model in float32 in memory at a time, and a stacked
parameter more. On failure nothing is written.
"""

import jax
from absl import flags

from configs import base
from cpgd_jax import cli
from cpgd_jax import config as config_lib
from cpgd_jax.convert import TARGETS, convert
from cpgd_jax.models.safetensors_file import DTYPES

_SOURCE = flags.DEFINE_string(
    "source", None, "workdir of a run, Hugging Face folder, or .gguf file"
)
_TARGET = flags.DEFINE_string("target", None, "folder to write; it must be new or empty")
_TO = flags.DEFINE_enum("to", "huggingface", TARGETS, "what to write")
_STEP = flags.DEFINE_integer("step", None, "of a run: which checkpoint; default: the newest")
_DTYPE = flags.DEFINE_enum("dtype", "float32", list(DTYPES), "of the weights in the folder")
_MAX_SHARD_GB = flags.DEFINE_float(
    "max_shard_gb", 5.0, "size of a file of weights, in 10^9 bytes", lower_bound=1e-3
)
_CHECK = flags.DEFINE_bool("check", True, "read back what was written and compare its logits")
flags.mark_flags_as_required(["source", "target"])


def main() -> None:
    jax.config.update("jax_platforms", "cpu")  # the host's memory holds what one chip's may not
    check = convert(
        _SOURCE.value,
        _TARGET.value,
        to=_TO.value,
        step=_STEP.value,
        dtype=_DTYPE.value,
        max_shard_bytes=int(_MAX_SHARD_GB.value * 1e9),
        check=_CHECK.value,
        start_config=config_lib.from_config_dict(base.get_config()),
    )
    if check is not None:
        print(f"logits: max difference {check.difference:.6g}, tolerance {check.tolerance:.6g}")
    print(f"wrote {_TARGET.value}")


if __name__ == "__main__":
    cli.run(main)
