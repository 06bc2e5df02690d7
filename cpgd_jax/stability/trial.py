"""Trials of one algorithm, all in one program: rollouts, rewards, advantages, optimiser steps.

The algorithm is the project's: a row of `ALGORITHMS` through `advantages` and `policy_loss`. What
differs between the trials of a batch is data: first parameters, learning rate and seed.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from cpgd_jax import optim
from cpgd_jax.advantages import advantages, group_stats, overlong_penalty
from cpgd_jax.algorithms import Algorithm
from cpgd_jax.config import Optim
from cpgd_jax.losses.policy import policy_loss
from cpgd_jax.stability import policy, tasks
from cpgd_jax.stability.tasks import Task

# lr: 1, as the updates are scaled by each trial's own; constant, so that pressure does not fade
OPTIM = Optim(
    lr=1.0,
    lr_end_frac=1.0,
    warmup_steps=0,
    b1=0.9,
    b2=0.95,
    eps=1e-8,
    weight_decay=0.01,
    grad_clip=1.0,
    freeze=(),
    train_vision=False,
    master_dtype="float32",
)
FORMAT_WEIGHT = 0.5
REFILLS = 1  # extra rollouts at most per rollout of dynamic sampling


@dataclasses.dataclass(frozen=True)
class Pressure:
    """How hard a rollout is used."""

    rollouts: int = 100
    prompts: int = 16  # a rollout (Q)
    group: int = 8  # G
    minibatch: int = 16  # responses an optimiser step: whole groups
    epochs: int = 1  # above 1 with the truncated weight of section 6.1
    lag: int = 0  # rollouts by which the sampling policy is behind
    grad_clip: float = 1.0  # global norm

    @property
    def minibatches(self) -> int:
        return self.prompts * self.group // self.minibatch


class Batch(NamedTuple):
    """A rollout ready for training; leading axis B = Q * G."""

    token_BU: Any  # prompt and response
    mask_BT: Any
    old_BT: Any
    advantage_BT: Any
    group_B: Any
    ref_BT: Any


@functools.partial(jax.jit, static_argnames=("row", "pressure", "task"))
def run(row: Algorithm, pressure: Pressure, task: Task, start, lr_N, seed_N) -> dict:
    """Curves {name: float32 [N, rollouts]} of N trials; start: parameters with a leading axis N."""
    graphdef = policy.graphdef()
    row = dataclasses.replace(row, max_response_len=task.max_len)
    optimizer = optim.make_optimizer(dataclasses.replace(OPTIM, grad_clip=pressure.grad_clip), 2)

    def one_trial(start, lr, seed):
        def rollout(carry, index):
            history, opt_state = carry
            key = jax.random.fold_in(jax.random.key(seed), index)
            batch, found = _collect(graphdef, row, pressure, task, history[0], start, key)
            params, opt_state, steps = _optimise(
                graphdef, row, pressure, task, optimizer, lr, history[-1], opt_state, batch, key
            )
            return ((*history[1:], params), opt_state), found | steps

        carry = ((start,) * (pressure.lag + 1), optimizer.init(start))
        return jax.lax.scan(rollout, carry, jnp.arange(pressure.rollouts))[1]

    # one after the other: vmap would take half as long again on a CPU
    return jax.lax.map(lambda xs: one_trial(*xs), (start, lr_N, seed_N))


def _collect(graphdef, row, pressure, task, params, reference, key):
    """(Batch, curves' values) of a rollout by `params`."""
    draws = 1 + (REFILLS if row.dynamic_sampling else 0)
    Q, G, T = pressure.prompts * draws, pressure.group, task.max_len
    problem_key, sample_key = jax.random.split(key)
    operand_QK = jax.random.randint(problem_key, (Q, task.operands), 0, 10)
    prompt_QS, gold_Q = tasks.prompts(task, operand_QK)
    uniform_TB2 = jax.random.uniform(sample_key, (T, Q * G, 2))
    sampled = policy.sample(graphdef, params, prompt_QS, uniform_TB2, G)
    right_B, form_B = tasks.rewards(sampled.response_BT, sampled.mask_BT, jnp.repeat(gold_Q, G))
    length_B = sampled.mask_BT.sum(axis=1)
    reward_B = right_B + FORMAT_WEIGHT * form_B
    if row.overlong:
        reward_B += overlong_penalty(length_B, T)
    signal_Q = group_stats(reward_B.reshape(Q, G)).signal_Q1[:, 0]
    found = {
        "accuracy": right_B.mean(),
        "format": form_B.mean(),
        "length": length_B.mean(dtype=jnp.float32),
        "signal": signal_Q.mean(dtype=jnp.float32),
        "entropy": -sampled.logp_BT.sum() / length_B.sum(),
    }
    # Groups with a signal first; the others take part in no sum, as in `experience`.
    pick_Q = jnp.argsort(~signal_Q, stable=True)[: pressure.prompts]
    pick_B = _rows(pick_Q, G) if draws > 1 else slice(None)
    mask_BT = sampled.mask_BT & (jnp.repeat(signal_Q, G)[:, None] | (draws == 1))
    token_BU = jnp.concatenate([jnp.repeat(prompt_QS, G, axis=0), sampled.response_BT], axis=1)
    token_BU, mask_BT, old_BT, reward_B = (
        x[pick_B] for x in (token_BU, mask_BT, sampled.logp_BT, reward_B)
    )
    ref_BT = None
    if row.kl_coef > 0:
        ref_BT = jnp.where(
            mask_BT, policy.logprobs(graphdef, reference, token_BU, task.prompt_len), 0.0
        )
    in_reward = row.kl_coef > 0 and row.kl_in == "reward"
    advantage = advantages(
        row,
        reward_B.reshape(-1, G),
        mask_BT.sum(axis=1).reshape(-1, G),
        log_ratio_to_ref_QGT=(old_BT - ref_BT).reshape(-1, G, T) if in_reward else None,
        mask_QGT=mask_BT.reshape(-1, G, T) if in_reward else None,
    )
    advantage_BT = jnp.broadcast_to(advantage.reshape(len(mask_BT), -1), mask_BT.shape)
    group_B = jnp.repeat(jnp.arange(pressure.prompts), G)
    return Batch(token_BU, mask_BT, old_BT, advantage_BT, group_B, ref_BT), found


def _optimise(graphdef, row, pressure, task, optimizer, lr, params, opt_state, batch, key):
    """(params, opt_state, curves' values) after every step of every epoch."""
    state, found = (params, opt_state), []
    for epoch in range(pressure.epochs):
        order_Q = jax.random.permutation(jax.random.fold_in(key, epoch), pressure.prompts)
        rows_MB = _rows(order_Q, pressure.group).reshape(pressure.minibatches, -1)
        epoch_BT = None
        if epoch:  # section 6.1: the policy at the end of the epoch before, scored once
            epoch_BT = policy.logprobs(graphdef, state[0], batch.token_BU, task.prompt_len)

        def step(state, rows_B, epoch_BT=epoch_BT):
            here, epoch_bT = jax.tree.map(lambda x: x[rows_B], (batch, epoch_BT))
            return _step(graphdef, row, optimizer, lr, *state, here, epoch_bT)

        state, metrics = jax.lax.scan(step, state, rows_MB)
        found.append(metrics)
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts), *found)
    return *state, _curves(joined)


def _rows(group_Q, G: int):
    """The rows of these groups, one group after the other."""
    return (group_Q[:, None] * G + jnp.arange(G)[None]).reshape(-1)


def _step(graphdef, row, optimizer, lr, params, opt_state, batch: Batch, epoch_BT):
    first = batch.token_BU.shape[1] - batch.mask_BT.shape[1]

    def loss(params):
        return policy_loss(
            row,
            logp_BT=policy.logprobs(graphdef, params, batch.token_BU, first),
            old_logp_BT=batch.old_BT,
            advantage_B=batch.advantage_BT,
            mask_BT=batch.mask_BT,
            group_B=batch.group_B,
            ref_logp_BT=batch.ref_BT if row.kl_in == "loss" else None,
            epoch_ratio_logp_BT=epoch_BT,
        )

    grads, metrics = jax.grad(loss, has_aux=True)(params)
    norm = optax.tree.norm(grads)
    updates, moved = optimizer.update(grads, opt_state, params)
    new = (jax.tree.map(lambda p, u: p + lr * u, params, updates), moved)
    sound = jnp.isfinite(norm)  # as `train_step`: what is not finite moves nothing
    params, opt_state = jax.tree.map(lambda a, b: jnp.where(sound, a, b), new, (params, opt_state))
    return (params, opt_state), metrics | {"grad_norm": norm}


def _curves(metrics) -> dict:
    """A number a rollout of metrics stacked over its optimiser steps."""
    low, high = metrics["ratio/clip_frac_low"], metrics["ratio/clip_frac_high"]
    drift = metrics["kl/old"]
    return {
        "clipped": (low.sum + high.sum).sum() / jnp.maximum(low.count.sum(), 1),
        "ratio_max": metrics["ratio/max"].value.max(),
        "kl_old": drift.sum.sum() / jnp.maximum(drift.count.sum(), 1),
        "grad_norm": metrics["grad_norm"].mean(),
        "grad_norm_max": metrics["grad_norm"].max(),
    }
