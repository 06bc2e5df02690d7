"""One jitted optimiser step: microbatches accumulated in float32, state donated.

The step knows neither the model nor the loss: `train.py` and `supervised.py` pass them in. Weights
of tokens are taken over the whole step first, so cutting it into microbatches changes nothing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from cpgd_jax.ops import masked
from cpgd_jax.types import TrainBatch, TrainState


def make_train_step(
    logprobs: Callable,
    token_weights: Callable,
    loss: Callable,
    optimizer: optax.GradientTransformation,
    microbatch_size: int,
    state_shardings=None,
) -> Callable:
    """`step(state, batch) -> (state, metrics)`; the state's buffers are reused.

    logprobs(params, batch) -> (logp_BT, entropy_BT), differentiable
    token_weights(batch) -> weight_BT of the whole optimiser step
    loss(batch, logp_BT, entropy_BT, weight_BT) -> (scalar, metrics); losses of microbatches add up
    state_shardings: a TrainState of shardings that the result keeps; None leaves it to the compiler
    """

    def micro_loss(params, batch, weight_BT):
        logp_BT, entropy_BT = logprobs(params, batch)
        return loss(batch, logp_BT, entropy_BT, weight_BT)

    def add_microbatch(grads, xs, params):
        batch, weight_BT = xs
        (_, metrics), grad = jax.value_and_grad(micro_loss, has_aux=True)(params, batch, weight_BT)
        return jax.tree.map(lambda a, g: a + g.astype(a.dtype), grads, grad), metrics

    def step(state: TrainState, batch: TrainBatch):
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), state.params)
        grads, metrics = jax.lax.scan(
            lambda grads, xs: add_microbatch(grads, xs, state.params),
            zeros,
            _split((batch, token_weights(batch)), microbatch_size),
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = masked.total(metrics)
        metrics["grad_norm"] = masked.Max(optax.tree.norm(grads))
        return TrainState(state.step + 1, params, opt_state), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(state_shardings, None))


def init_state(params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))


def _split(tree, size: int):
    """[B, ...] -> [B/size, size, ...]; microbatch j takes rows j, j + B/size, ... so that rows
    sharded over devices stay evenly spread."""
    return jax.tree.map(
        lambda x: jnp.swapaxes(x.reshape(size, x.shape[0] // size, *x.shape[1:]), 0, 1), tree
    )
