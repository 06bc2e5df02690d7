"""The supervised stage (warm start): cross-entropy on the data source's demonstrations."""

import time

import jax.numpy as jnp
from flax import nnx

from cpgd_jax import optim
from cpgd_jax import run as run_lib
from cpgd_jax.config import Config
from cpgd_jax.data.batching import demonstration_batch
from cpgd_jax.loop import Advanced, run_loop
from cpgd_jax.losses.reduce import token_weights
from cpgd_jax.ops import masked
from cpgd_jax.rewards import Verifier
from cpgd_jax.rollout.scoring import packed_logprobs
from cpgd_jax.train_step import make_train_step


def train(config: Config, workdir: str) -> dict:
    """Runs or resumes the stage; returns the summary (see `loop.run_loop`)."""
    size = config.supervised.batch_size
    verifier = Verifier(config.reward.workers, config.reward.timeout_s, config.reward.functions)
    run, state = run_lib.build(config, workdir)
    step = make_step(run)
    learning_rate = optim.schedule(config.optim, config.total_steps)

    def advance(state, index, position):
        started = time.monotonic()
        examples = [run.source.train(position + i) for i in range(size)]
        batch = demonstration_batch(
            examples,
            run.tokenizer,
            config.data.system_prompt,
            config.rollout.max_prompt_len,
            config.rollout.max_response_len,
        )
        state, metrics = step(state, run.pack(batch))
        row = masked.to_host(metrics)
        seconds = time.monotonic() - started
        row |= {
            "step": index + 1,
            "lr": float(learning_rate(index)),
            **run.speed(batch, seconds),
        }
        return Advanced(state, [row], [], position + size)

    with verifier:
        return run_loop(run, state, verifier, "step", config.supervised.steps, advance)


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
