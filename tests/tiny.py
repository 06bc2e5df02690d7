"""A run small enough for a test: a decoder of one layer on the arithmetic task."""

from configs import base
from cpgd_jax import config as config_lib

TINY = {
    "num_rollouts": 2,
    "model.num_layers": 1,
    "model.hidden_size": 32,
    "model.mlp_size": 64,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.head_dim": 16,
    "model.rope_theta": 10_000.0,
    "model.tie_embeddings": True,
    "model.remat": False,
    "data.system_prompt": "none",
    "data.arithmetic.max_operand": 9,
    "data.arithmetic.three_operand_frac": 0.0,
    "rollout.prompts": 4,
    "rollout.samples_per_prompt": 4,
    "rollout.max_prompt_len": 13,
    "rollout.max_response_len": 8,
    "reward.workers": 1,
    "train.minibatch_size": 8,
    "train.microbatch_size": 4,
    "optim.lr": 1e-3,
    "supervised.steps": 4,
    "supervised.batch_size": 8,
    "eval.every": 0,
    "eval.problems": 4,
    "eval.samples": 2,
    "checkpoint.every": 100,
    "log.tensorboard": False,
}


def values(**changes):
    """The ConfigDict; a change is named by its key with __ for the dots."""
    c = base.get_config()
    c.update_from_flattened_dict(TINY)
    with c.unlocked():
        for key, value in changes.items():
            *parents, name = key.split("__")
            section = c
            for parent in parents:
                section = section[parent]
            del section[name]
            section[name] = value
    return c


def config(**changes) -> config_lib.Config:
    return config_lib.from_config_dict(values(**changes))
