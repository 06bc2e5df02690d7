"""Changes of a config that would make the train step fit, from the cheapest on."""

import dataclasses
from collections.abc import Callable

from cpgd_jax.config import Config
from cpgd_jax.errors import UserError

ENOUGH = 2  # changes found, then the search ends


def changes(config: Config, measure: Callable) -> list[dict]:
    """[{change, headroom, mfu}] of single changes that fit, fastest first.

    measure(config) -> a plan of the train step.
    """
    found = []
    for change, changed in candidates(config):
        try:
            plan = measure(changed)
        except UserError:
            continue  # sizes that do not divide
        if plan["fits"]:
            step = plan["programs"]["train_step"]
            found.append({"change": change, "headroom": plan["headroom"], "mfu": step["mfu"]})
            if len(found) == ENOUGH:
                break
    return sorted(found, key=lambda x: -x["mfu"])


def candidates(config: Config) -> list[tuple[str, Config]]:
    """(flag, config): more recomputation, smaller microbatches, wider sharding, smaller masters."""
    m, t, mesh = config.model, config.train, config.mesh
    out = []
    if m.remat in ("none", "dots"):
        out.append(("model.remat", "block", _with(config, "model", remat="block")))
    half = t.microbatch_size // 2
    if half:
        out.append(("train.microbatch_size", half, _with(config, "train", microbatch_size=half)))
    if m.remat != "offload":
        out.append(("model.remat", "offload", _with(config, "model", remat="offload")))
    for tensor in (2 * mesh.tensor, 4 * mesh.tensor):
        changed = _with(config, "mesh", data=1, fsdp=-1, tensor=tensor)
        out.append(("mesh.data=1 --config.mesh.fsdp=-1 --config.mesh.tensor", tensor, changed))
    if config.optim.master_dtype == "float32":
        changed = _with(config, "optim", master_dtype="bfloat16")
        out.append(("optim.master_dtype", "bfloat16", changed))
    return [(f"--config.{name}={value}", changed) for name, value, changed in out]


def _with(config: Config, section: str, **fields) -> Config:
    changed = dataclasses.replace(getattr(config, section), **fields)
    return dataclasses.replace(config, **{section: changed})
