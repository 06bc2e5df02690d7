"""A whole iteration of reinforcement learning: rollout, reward, `old` log-probs, update."""

import statistics

import jax
import numpy as np

from cpgd_jax import experience
from cpgd_jax.advantages import advantages
from cpgd_jax.bench import peers as peers_lib
from cpgd_jax.bench import timing, workloads
from cpgd_jax.bench.trainer import Trainer
from cpgd_jax.config import Config
from cpgd_jax.rollout import engine, prompt_ids
from cpgd_jax.types import TrainBatch

CALLS = 3  # of ours a round, as the peers' scripts do


def run(config: Config, repeats: int, peers: dict) -> list[dict]:
    """One row: seconds of an iteration on prompts of full length and responses of full length."""
    iterate = _Iteration(config)
    iterate()  # compiles

    def measure():
        return statistics.median(timing.once(iterate) for _ in range(CALLS))

    own, others, ratio = peers_lib.in_turn(measure, peers, repeats)
    return [
        {
            "name": "iteration",
            "seconds": statistics.median(own),
            "ratio": ratio,
            "peers_seconds": others,
            "dtype": config.model.dtype,
        }
    ]


class _Iteration:
    """Each call samples with another key, and trains on what it sampled."""

    def __init__(self, config: Config):
        self.trainer, self.index = Trainer(config), 0
        r = config.rollout
        self.prompt_QS = workloads.prompts(config.model.vocab_size, r.prompts, r.max_prompt_len)

    def __call__(self):
        trainer, config = self.trainer, self.trainer.run.config
        G = config.rollout.samples_per_prompt
        rollout = self._sample()
        reward_B = (rollout.response_BT % 10 == 7).sum(axis=1).astype(np.float32)
        advantage_QG = advantages(trainer.row, reward_B.reshape(-1, G))
        prompt_BS = np.repeat(self.prompt_QS, G, axis=0)
        batch = TrainBatch(
            prompt_BS=prompt_BS,
            prompt_mask_BS=np.ones(prompt_BS.shape, bool),
            response_BT=rollout.response_BT,
            mask_BT=rollout.mask_BT,
            old_logp_BT=None,
            advantage_BT=np.repeat(
                np.asarray(advantage_QG).reshape(-1, 1), rollout.mask_BT.shape[1], axis=1
            ),
            group_B=np.repeat(np.arange(len(self.prompt_QS), dtype=np.int32), G),
        )
        old_BT = experience.rescore(trainer.run, trainer.state.params, batch)
        batch = batch.replace(old_logp_BT=old_BT)
        for k in range(config.minibatches):
            minibatch = experience.minibatch(config, batch, self.index, k)
            metrics = trainer.step(trainer.run.pack(minibatch))
        return jax.device_get(metrics)

    def _sample(self):
        self.index += 1
        run, r = self.trainer.run, self.trainer.run.config.rollout
        return engine.sample(
            run.graphdef,
            self.trainer.state.params,
            self.prompt_QS,
            np.ones(self.prompt_QS.shape, bool),
            prompt_id_Q=prompt_ids(list(self.prompt_QS)),
            group=r.samples_per_prompt,
            max_new_tokens=r.max_response_len,
            key=(run.config.seed, self.index),
            stop_ids=(),
            temperature=r.temperature,
        )
