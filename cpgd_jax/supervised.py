"""The supervised stage (warm start): cross-entropy on the data source's demonstrations."""

import time

import jax
import jax.numpy as jnp
from flax import nnx

from cpgd_jax import optim
from cpgd_jax import run as run_lib
from cpgd_jax.config import Config
from cpgd_jax.data.batching import demonstration_batch
from cpgd_jax.loop import Stage, Stepped, run_loop
from cpgd_jax.losses.reduce import token_weights
from cpgd_jax.ops import masked
from cpgd_jax.rewards import Verifier
from cpgd_jax.rollout.scoring import packed_logprobs
from cpgd_jax.train_step import make_train_step
from cpgd_jax.work import Work


def train(config: Config, workdir: str) -> dict:
    """Runs or resumes the stage; returns the summary (see `loop.run_loop`)."""
    size = config.supervised.batch_size
    verifier = Verifier(config.reward.workers, config.reward.timeout_s, config.reward.functions)
    run, state = run_lib.build(config, workdir)
    step = make_step(run)
    learning_rate = optim.schedule(config.optim, config.total_steps)

    def collect(state, index, position):
        examples = run.read(range(position, position + size))
        prompts, batch = demonstration_batch(
            examples,
            run.tokenizer,
            config.data.system_prompt,
            config.rollout.max_prompt_len,
            config.rollout.max_response_len,
            run.reader,
        )
        seen = run.look(state.params, prompts).seen
        return Work(batch, {}, [], position + size, seen=seen)

    def optimise(state, made, index, k):
        started = time.monotonic()
        state, metrics = step(state, run.pack(made.batch, made.seen))
        metrics = jax.device_get(metrics)
        seconds = time.monotonic() - started
        found = {
            "step": index + 1,
            "lr": float(learning_rate(index)),
            **masked.to_host(metrics),
            **run.speed(made.batch, seconds),
        }
        return Stepped(state, made, found, made.batch, masked.rows(metrics))

    with verifier:
        stage = Stage("step", config.supervised.steps, 1, collect, optimise)
        return run_loop(run, state, verifier, stage)


def make_step(run):
    """The jitted step whose loss is the mean over demonstration tokens of -ln p(token)."""

    def logprobs(params, packed):
        return packed_logprobs(nnx.merge(run.graphdef, params), packed, temperature=1.0)

    def loss(batch, logp_BT, entropy_BT, weight_BT):
        nll = -jnp.sum(weight_BT * logp_BT)
        metrics = {
            "loss/nll": masked.Sum(nll),
            "entropy": masked.mean(entropy_BT, batch.mask_BT),
        }
        return nll, metrics

    def weights(batch):
        return token_weights("token_mean", batch.mask_BT, batch.group_B)

    return make_train_step(logprobs, weights, loss, run.optimizer, run.shardings, run.mesh)
