"""One jitted optimiser step: microbatches accumulated in float32, state donated.

The step knows neither the model nor the loss: `train.py` and `supervised.py` pass them in. Weights
of tokens are taken over the whole step first, so cutting it into microbatches changes nothing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from cpgd_jax import optim
from cpgd_jax.ops import masked
from cpgd_jax.types import Microbatches, TrainBatch, TrainState


def make_train_step(
    logprobs: Callable,
    token_weights: Callable,
    loss: Callable,
    optimizer: optax.GradientTransformation,
    state_shardings,
    mesh: Mesh,
) -> Callable:
    """`step(state, microbatches) -> (state, metrics)`; the state's buffers are reused.

    logprobs(params, packed) -> (logp_WC, entropy_WC) of the packed targets, differentiable
    token_weights(batch) -> weight_BT of the whole optimiser step
    loss(batch, logp_BT, entropy_BT, weight_BT) -> (scalar, metrics); losses of microbatches add up
    state_shardings: a TrainState of shardings on the mesh, which the result keeps
    """

    def micro_loss(params, micro: Microbatches, weight_BT):
        rows, packed = micro.rows, micro.packed
        found = logprobs(params, packed)
        logp_BT, entropy_BT = (to_rows(x, packed.place_WC, rows.mask_BT) for x in found)
        return loss(rows, logp_BT, entropy_BT, weight_BT)

    def add_microbatch(grads, xs, trained, frozen):
        def loss_of(trained):
            return micro_loss(nnx.merge_state(trained, frozen), *xs)

        (_, metrics), grad = jax.value_and_grad(loss_of, has_aux=True)(trained)
        return jax.tree.map(lambda a, g: a + g.astype(a.dtype), grads, grad), metrics

    def step(state: TrainState, micro: Microbatches):
        trained, frozen = optim.split(state.params)
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), trained)
        grads, metrics = jax.lax.scan(
            lambda grads, xs: add_microbatch(grads, xs, trained, frozen),
            zeros,
            (micro, _weights(token_weights, micro.rows)),
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, trained)
        params = nnx.merge_state(optax.apply_updates(trained, updates), frozen)
        metrics = masked.total(metrics)
        metrics["grad_norm"] = masked.Max(optax.tree.norm(grads))
        return TrainState(state.step + 1, params, opt_state), metrics

    jitted = jax.jit(step, donate_argnums=0, out_shardings=(state_shardings, None))

    def on_mesh(state, micro):
        with jax.set_mesh(mesh):  # the model and its head see where they are
            return jitted(state, micro)

    return on_mesh


def to_rows(x_WC, place_WC, mask_BT):
    """What belongs to the packed targets, at their places in an array [B, T]; 0 elsewhere."""
    flat = jnp.zeros(mask_BT.size, x_WC.dtype)
    placed = flat.at[place_WC.reshape(-1)].add(x_WC.reshape(-1), mode="drop")
    return placed.reshape(mask_BT.shape)


def init_state(params, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step; the optimiser knows of trained parameters only."""
    trained, _ = optim.split(params)
    return TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(trained))


def _weights(token_weights, rows: TrainBatch):
    """weight_MBT: the weights of the step's responses all together, microbatch by microbatch."""
    shape = rows.mask_BT.shape
    whole = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)
    return token_weights(whole).reshape(shape)
