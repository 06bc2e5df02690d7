"""How fast this machine multiplies matrices: what model FLOPs utilisation is measured by."""

import time

import jax

PRODUCTS = 8  # a call, so that starting it costs nothing beside them


def flops_per_s(model, dtype: str, repeats: int = 5, tokens: int = 2048) -> float:
    """The best of some calls on the default device; of n devices it is n times that.

    The products are those of an MLP, the largest of a block. model: a ModelConfig or a
    `config.Model`.
    """
    D, F = model.hidden_size, model.mlp_size
    keys = jax.random.split(jax.random.key(0), 3)
    arrays = [
        (jax.random.normal(key, shape) * shape[0] ** -0.5).astype(dtype)
        for key, shape in zip(keys, ((tokens, D), (D, F), (F, D)), strict=True)
    ]
    jax.block_until_ready(products(*arrays))  # compiles
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(products(*arrays))
        seconds.append(time.perf_counter() - start)
    return PRODUCTS * 2 * tokens * D * F / min(seconds)


@jax.jit
def products(x_TD, up_DF, down_FD):
    """x times up times down, times up, ... : PRODUCTS matrix products one after another."""
    return jax.lax.fori_loop(0, PRODUCTS // 2, lambda _, x: (x @ up_DF) @ down_FD, x_TD)
