"""First policies of the study: supervised on imperfect demonstrations, a policy a seed."""

import functools
import hashlib
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from cpgd_jax.stability import policy, tasks
from cpgd_jax.stability.tasks import Task

STEPS, BATCH, POOL, PEAK_LR = 600, 64, 4096, 1e-2


def warm_starts(task: Task, seeds, steps: int = STEPS):
    """Parameters with a leading axis, one for each seed."""
    drawn = [tasks.demonstrations(task, POOL, seed) for seed in seeds]
    token_NBU, mask_NBU = (np.stack(part) for part in zip(*drawn, strict=True))
    return _train(task, steps, jnp.asarray(token_NBU), jnp.asarray(mask_NBU), jnp.asarray(seeds))


def file_of(folder: Path, task: Task, seeds) -> Path:
    """Another one for another task, model or recipe."""
    recipe = repr((task, seeds, policy.MODEL, STEPS, BATCH, POOL, PEAK_LR))
    digest = hashlib.blake2b(recipe.encode(), digest_size=4).hexdigest()
    return Path(folder) / f"start_{task.name}_{digest}.npz"


def save(file: Path, params) -> None:
    leaves = [np.asarray(x) for x in jax.tree.leaves(params)]
    part = file.with_suffix(".part.npz")
    np.savez(part, *leaves)
    os.replace(part, file)


def load(file: Path):
    """What `save` wrote, of the sizes of `policy.MODEL`."""
    treedef = jax.tree.structure(jax.eval_shape(lambda: policy.init(jax.random.key(0))))
    with np.load(file) as arrays:
        return jax.tree.unflatten(treedef, [jnp.asarray(arrays[name]) for name in arrays.files])


@functools.partial(jax.jit, static_argnames=("task", "steps"))
def _train(task: Task, steps: int, token_NBU, mask_NBU, seed_N):
    graphdef, first = policy.graphdef(), task.prompt_len
    schedule = optax.warmup_cosine_decay_schedule(0.0, PEAK_LR, steps // 20 + 1, steps, 0.0)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule, b2=0.95))

    def one(xs):
        token_BU, mask_BU, seed = xs

        def step(state, index):
            params, opt_state = state
            key = jax.random.fold_in(jax.random.key(seed), index)
            rows_B = jax.random.randint(key, (BATCH,), 0, len(token_BU))
            mask_BT = mask_BU[rows_B][:, first:]

            def loss(params):
                logp_BT = policy.logprobs(graphdef, params, token_BU[rows_B], first)
                return -jnp.where(mask_BT, logp_BT, 0.0).sum() / mask_BT.sum()

            updates, opt_state = optimizer.update(jax.grad(loss)(params), opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), None

        params = policy.init(jax.random.key(seed))
        return jax.lax.scan(step, (params, optimizer.init(params)), jnp.arange(steps))[0][0]

    return jax.lax.map(one, (token_NBU, mask_NBU, seed_N))
