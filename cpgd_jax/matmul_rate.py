"""How fast this machine multiplies matrices: what model FLOPs utilisation is measured by."""

import functools
import time

import jax
import jax.numpy as jnp

PRODUCTS = 8  # a call, so that starting it costs nothing beside them


def program(model, dtype: str, tokens: int = 2048):
    """(a function of one call, its floating-point operations): an MLP's products, up and down.

    model: a ModelConfig or a `config.Model`; these are the largest products of its blocks.
    """
    D, F = model.hidden_size, model.mlp_size
    keys = jax.random.split(jax.random.key(0), 3)
    x, up, down = (
        (jax.random.normal(key, shape) * shape[0] ** -0.5).astype(dtype)
        for key, shape in zip(keys, ((tokens, D), (D, F), (F, D)), strict=True)
    )
    chain = jax.jit(lambda *xs: jax.lax.fori_loop(0, PRODUCTS // 2, _up_and_down, xs)[0])
    return functools.partial(chain, x, up, down), PRODUCTS * 2 * tokens * D * F


def flops_per_s(model, dtype: str, repeats: int = 5) -> float:
    """The best of some calls on the default device; of n devices it is n times that."""
    call, flops = program(model, dtype)
    jax.block_until_ready(call())
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - start)
    return flops / min(seconds)


def _up_and_down(_, xs):
    x, up, down = xs
    return jnp.matmul(jnp.matmul(x, up), down), up, down
