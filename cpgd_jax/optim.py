"""AdamW with global-norm clipping and a cosine schedule that counts optimiser steps.

Which parameters it moves is marked on the parameters themselves: see `freeze` and `split`.
"""

import difflib
import fnmatch
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

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


def make_optimizer(config: Optim, total_steps: int, seed: int = 0) -> optax.GradientTransformation:
    """The optimiser of a run of `total_steps`; norms and biases do not decay.

    seed: of the rounding, where parameters are bfloat16 masters.
    """
    adamw = optax.chain(
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
    return bfloat16_masters(adamw, seed) if config.master_dtype == "bfloat16" else adamw


def decays(params):
    """True for matrices, False for norm scales and biases, by the parameter's name."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: not any(word in jax.tree_util.keystr(path) for word in ("norm", "bias")),
        params,
    )


FROZEN = "frozen"  # metadata of a parameter that is not trained


def freeze(params, patterns: tuple[str, ...], candidate: Callable = lambda path: True):
    """`params` with a mark on those that are not trained: they match a pattern or are no candidate.

    patterns: of dotted paths, as in a shell: "visual.*", "embed". candidate: of a path, a tuple.
    UserError for a pattern that matches nothing, and if nothing is left to train.
    """
    flat = nnx.to_flat_state(params)
    names = {path: ".".join(map(str, path)) for path, _ in flat}
    for pattern in patterns:
        if not fnmatch.filter(names.values(), pattern):
            close = difflib.get_close_matches(pattern, names.values(), n=3, cutoff=0.0)
            raise UserError(
                f"config.optim.freeze: {pattern!r} matches no parameter; nearest: "
                f"{', '.join(close)}"
            )

    def frozen(path) -> bool:
        return not candidate(path) or any(fnmatch.fnmatchcase(names[path], p) for p in patterns)

    if all(frozen(path) for path, _ in flat):
        raise UserError(f"config.optim.freeze {patterns} leaves no parameter to train")
    return nnx.from_flat_state((path, _marked(v) if frozen(path) else v) for path, v in flat)


def _marked(variable: nnx.Variable) -> nnx.Variable:
    variable = variable.replace(variable.get_raw_value())
    variable.set_metadata(FROZEN, True)
    return variable


def split(params) -> tuple[nnx.State, nnx.State]:
    """(trained, frozen); `nnx.merge_state` puts them together again."""
    return nnx.split_state(params, lambda _, v: not v.get_metadata().get(FROZEN, False), ...)


class _Masters(NamedTuple):
    step: Any  # int32 []
    inner: Any  # state of the optimiser, in float32


def bfloat16_masters(inner: optax.GradientTransformation, seed: int):
    """`inner` for parameters that are stored in bfloat16: it sees them, and keeps its state, in
    float32, and what it makes of them is rounded up or down at random, so that updates smaller than
    a bfloat16 step count on average. The random bits follow from (seed, step, parameter).
    """

    def init(params):
        return _Masters(jnp.zeros((), jnp.int32), inner.init(_float32(params)))

    def update(grads, state, params):
        updates, inner_state = inner.update(grads, state.inner, _float32(params))
        key = jax.random.fold_in(jax.random.key(seed), state.step)
        leaves, treedef = jax.tree.flatten(updates)
        olds = [x.astype(jnp.float32) for x in jax.tree.leaves(params)]
        moves = [
            stochastic_round(old + x, jax.random.fold_in(key, i)).astype(jnp.float32) - old
            for i, (old, x) in enumerate(zip(olds, leaves, strict=True))
        ]
        return jax.tree.unflatten(treedef, moves), _Masters(state.step + 1, inner_state)

    return optax.GradientTransformation(init, update)


def stochastic_round(x, key):
    """float32 -> one of the two nearest bfloat16, x on average; inf and NaN stay what they are."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    bits += jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    # A carry into the bits that stay comes as often as those that go are large.
    cut = jax.lax.bitcast_convert_type(bits & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x), cut, x).astype(jnp.bfloat16)


def _float32(tree):
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)
