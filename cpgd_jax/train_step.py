"""One jitted optimiser step: microbatches accumulated in float32, state donated.

A step whose loss or gradient is not finite leaves parameters and moments as they were, without a
word to the host; the metric guard/skipped tells of it. Two more metrics are of single responses, in
the order of the microbatches: guard/log_ratio, the largest of `logp - old`, and guard/push, the
norm of the loss's gradient with respect to the response's log-probabilities.

The step knows neither the model nor the loss: `train.py` and `supervised.py` pass them in. Weights
of tokens are taken over the whole step first, so cutting it into microbatches changes nothing.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from cpgd_jax import optim, sharding
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
        value, metrics = loss(rows, logp_BT, entropy_BT, weight_BT)
        signs = jax.lax.stop_gradient((logp_BT, entropy_BT))
        return value, metrics | _of_rows(loss, rows, *signs, weight_BT)

    def add_microbatch(grads, xs, trained, frozen):
        def loss_of(trained):
            return micro_loss(nnx.merge_state(trained, frozen), *xs)

        (value, metrics), grad = jax.value_and_grad(loss_of, has_aux=True)(trained)
        return jax.tree.map(lambda a, g: a + g.astype(a.dtype), grads, grad), (value, metrics)

    def step(state: TrainState, micro: Microbatches):
        trained, frozen = optim.split(state.params)
        zeros = jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), trained)
        grads, (loss_M, metrics) = jax.lax.scan(
            lambda grads, xs: add_microbatch(grads, xs, trained, frozen),
            zeros,
            (micro, _weights(token_weights, micro.rows)),
        )
        updates, opt_state = optimizer.update(grads, state.opt_state, trained)
        params = nnx.merge_state(optax.apply_updates(trained, updates), frozen)
        grad_norm = optax.tree.norm(grads)
        sound = jnp.isfinite(loss_M.sum()) & jnp.isfinite(grad_norm)
        metrics = masked.total(metrics)
        metrics["grad_norm"] = masked.Max(grad_norm)
        metrics["guard/skipped"] = masked.Sum(1.0 - sound.astype(jnp.float32))
        moved = TrainState(state.step + 1, params, opt_state)
        return jax.tree.map(lambda new, old: _moved(sound, new, old), moved, state), metrics

    places = (state_shardings, sharding.replicated(mesh))
    jitted = jax.jit(step, donate_argnums=0, out_shardings=places)

    def on_mesh(state, micro):
        with jax.set_mesh(mesh):  # the model and its head see where they are
            return jitted(state, micro)

    on_mesh.jitted = jitted  # for those who compile it ahead of time
    return on_mesh


def _moved(sound, new, old):
    """`new`, or `old` after a step that was not sound; counters of steps move on in any case."""
    return new if jnp.issubdtype(new.dtype, jnp.integer) else jnp.where(sound, new, old)


def _of_rows(loss, rows: TrainBatch, logp_BT, entropy_BT, weight_BT) -> dict:
    """Metrics of the microbatch's single responses."""
    log_ratio_BT = masked.fill(logp_BT - rows.old_logp_BT, rows.mask_BT, -jnp.inf)
    push_BT = jax.grad(lambda x: loss(rows, x, entropy_BT, weight_BT)[0])(logp_BT)
    push_B = jnp.sqrt(jnp.square(masked.fill(push_BT, rows.mask_BT)).sum(axis=1))
    return {
        "guard/log_ratio": masked.Rows(log_ratio_BT.max(axis=1)),
        "guard/push": masked.Rows(push_B),
    }


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
