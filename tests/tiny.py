"""A run small enough for a test: a decoder of one layer on the arithmetic task; its files read."""

import contextlib
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from configs import base
from cpgd_jax import checkpoint, sharding
from cpgd_jax import config as config_lib
from cpgd_jax.models import make
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2

# Differ between equal runs.
TIMED = ("time/", "rollout/tokens_per_s", "train/tokens_per_s", "train/mfu")

TINY = {
    "num_rollouts": 2,
    "model.num_layers": 1,
    "model.hidden_size": 32,
    "model.mlp_size": 64,
    "model.num_heads": 2,
    "model.num_kv_heads": 1,
    "model.head_dim": 16,
    "model.rope_theta": 10_000.0,
    "model.norm_eps": 1e-6,
    "model.qkv_bias": True,
    "model.tie_embeddings": True,
    "model.max_positions": 1024,
    "model.remat": "none",
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


def random_model(config: ModelConfig) -> Qwen2:
    """Every parameter normal, the biases too; made in NumPy, which compiles nothing."""
    rng = np.random.default_rng(0)
    graphdef, shapes = nnx.split(nnx.eval_shape(lambda: make(config, nnx.Rngs(0))))
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 0.5, x.shape), x.dtype), shapes)
    return nnx.merge(graphdef, params)


def use_one_device(patch):
    """Meshes are of one of the four devices: what many do at once is the train step's test."""
    make_mesh = functools.partial(sharding.make_mesh, devices=jax.devices()[:1])
    patch.setattr(sharding, "make_mesh", make_mesh)


@contextlib.contextmanager
def compilations():
    """A list that gets an entry for every program compiled inside the context."""
    compiled = []

    def listen(event, *_, **__):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def lines(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def untimed(folder):
    return [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in lines(folder)]


def params_of(folder):
    model, _ = checkpoint.load_model(folder)
    return jax.device_get(jax.tree.leaves(nnx.state(model)))


def assert_equal(a, b):
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)
