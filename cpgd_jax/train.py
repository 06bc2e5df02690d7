"""Reinforcement learning with rule-based rewards: the algorithm box of arXiv 2505.12504.

For each rollout: prompts -> samples -> rewards -> advantages -> `old` log-probs -> several steps of
the optimiser over minibatches of whole groups. Which algorithm: one row of `ALGORITHMS`.
"""

import time

import jax
from flax import nnx

from cpgd_jax import algorithms, experience, optim, progress
from cpgd_jax import run as run_lib
from cpgd_jax.config import Config
from cpgd_jax.loop import Stage, Stepped, run_loop
from cpgd_jax.losses.policy import policy_loss
from cpgd_jax.losses.reduce import token_weights
from cpgd_jax.ops import masked
from cpgd_jax.rewards import Verifier
from cpgd_jax.rollout.scoring import packed_logprobs
from cpgd_jax.train_step import make_train_step


def train(config: Config, workdir: str) -> dict:
    """Runs or resumes training; returns the summary (see `loop.run_loop`)."""
    row, warnings = algorithm_row(config)
    verifier = Verifier(config.reward.workers, config.reward.timeout_s, config.reward.functions)
    run, state = run_lib.build(config, workdir)
    for warning in warnings:
        progress.warn(warning)
    step = make_step(run, row)
    reference = jax.tree.map(jax.numpy.copy, state.params) if row.kl_coef > 0 else None
    learning_rate = optim.schedule(config.optim, config.total_steps)

    def collect(state, index, position):
        started = time.monotonic()
        made = experience.collect(run, row, state.params, reference, verifier, index, position)
        made.shared["time/rollout_s"] = time.monotonic() - started
        return made

    def optimise(state, made, index, k):
        made = experience.look_again(run, state.params, made)
        if k and k % config.minibatches == 0:  # an epoch has ended
            epoch_BT = experience.rescore(run, state.params, made.batch, made.seen)
            made = made._replace(batch=made.batch.replace(epoch_logp_BT=epoch_BT))
        minibatch = experience.minibatch(config, made.batch, index, k)
        started = time.monotonic()
        state, metrics = step(state, run.pack(minibatch, made.seen))
        metrics = jax.device_get(metrics)
        seconds = time.monotonic() - started
        done = index * config.steps_per_rollout + k + 1
        found = {
            "step": done,
            "lr": float(learning_rate(done - 1)),
            **masked.to_host(metrics),
            **made.shared,
            **run.speed(minibatch, seconds),
        }
        return Stepped(state, made, found, minibatch, masked.rows(metrics))

    stage = Stage("rollout", config.num_rollouts, config.steps_per_rollout, collect, optimise)
    with verifier:
        return run_loop(run, state, verifier, stage)


def algorithm_row(config: Config) -> tuple[algorithms.Algorithm, list[str]]:
    """The configured row and warnings; contradictions raise UserError."""
    cells = {**vars(config.advantage), **vars(config.loss)}
    cells["dynamic_sampling"] = config.rollout.dynamic_sampling
    cells["max_response_len"] = config.rollout.max_response_len
    row = algorithms.resolve(config.algorithm, **cells)
    warnings = algorithms.check(
        row,
        samples_per_prompt=config.rollout.samples_per_prompt,
        steps_per_rollout=config.minibatches,
        epochs=config.train.epochs,
    )
    return row, warnings


def make_step(run: run_lib.Run, row: algorithms.Algorithm):
    """The jitted optimiser step of this row: `step(state, microbatches) -> (state, metrics)`."""
    temperature = run.config.rollout.temperature

    def logprobs(params, packed):
        return packed_logprobs(nnx.merge(run.graphdef, params), packed, temperature=temperature)

    def loss(batch, logp_BT, entropy_BT, weight_BT):
        return policy_loss(
            row,
            logp_BT=logp_BT,
            old_logp_BT=batch.old_logp_BT,
            advantage_B=batch.advantage_BT,
            mask_BT=batch.mask_BT,
            group_B=batch.group_B,
            ref_logp_BT=batch.ref_logp_BT,
            sampler_logp_BT=batch.sampler_logp_BT,
            epoch_ratio_logp_BT=batch.epoch_logp_BT,
            entropy_BT=entropy_BT,
            weight_BT=weight_BT,
        )

    def weights(batch):
        return token_weights(row.aggregation, batch.mask_BT, batch.group_B, row.max_response_len)

    return make_train_step(logprobs, weights, loss, run.optimizer, run.shardings, run.mesh)
