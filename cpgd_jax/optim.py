"""AdamW with global-norm clipping and a cosine schedule that counts optimiser steps."""

import jax
import optax

from cpgd_jax.config import Optim
from cpgd_jax.errors import UserError


def schedule(config: Optim, total_steps: int) -> optax.Schedule:
    """Optimiser step -> learning rate: linear warm-up, then cosine to lr_end_frac * lr."""
    if config.warmup_steps >= total_steps:
        raise UserError(
            f"config.optim.warmup_steps {config.warmup_steps} is not below the run's {total_steps}"
            " optimiser steps: lower it"
        )
    return optax.warmup_cosine_decay_schedule(
        init_value=0.0 if config.warmup_steps else config.lr,
        peak_value=config.lr,
        warmup_steps=config.warmup_steps,
        decay_steps=total_steps,
        end_value=config.lr_end_frac * config.lr,
    )


def make_optimizer(config: Optim, total_steps: int) -> optax.GradientTransformation:
    """The optimiser of a run of `total_steps`; norms and biases do not decay."""
    return optax.chain(
        optax.clip_by_global_norm(config.grad_clip),
        optax.adamw(
            schedule(config, total_steps),
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=decays,
        ),
    )


def decays(params):
    """True for matrices, False for norm scales and biases, by the parameter's name."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not any(word in jax.tree_util.keystr(path) for word in ("norm", "bias")),
        params,
    )
