"""`make quickstart`, second stage: CPGD on the arithmetic task, from the warm start's checkpoint.

    python -m experiments.train --config=configs/quickstart.py \\
        --workdir=runs/quickstart/cpgd_seed0

Hardware: 2 CPU cores. Time and result: README, section Results.
"""

from configs import base


def tiny(c):
    """The tiny model and the task of both stages."""
    c.model.num_layers = 2
    c.model.hidden_size = 224
    c.model.mlp_size = 640
    c.model.num_heads = 7
    c.model.num_kv_heads = 1
    c.model.head_dim = 32
    c.model.rope_theta = 10_000.0
    c.model.norm_eps = 1e-6
    c.model.qkv_bias = True
    c.model.tie_embeddings = True
    c.model.max_positions = 1024
    c.model.init_std = 0.06
    c.model.remat = "none"
    c.data.source = "arithmetic"
    c.data.system_prompt = "none"  # the warm start has taught the format; saves 66 tokens a prompt
    c.data.arithmetic.max_operand = 10
    c.data.arithmetic.three_operand_frac = 0.7
    c.data.arithmetic.slip_frac = 0.6
    c.data.arithmetic.bad_format_frac = 0.2
    c.rollout.max_prompt_len = 18
    c.rollout.max_response_len = 28
    c.eval.problems = 200
    c.eval.samples = 4
    return c


def get_config():
    c = tiny(base.get_config())
    c.model.init_from = "runs/quickstart/warmstart_seed0"
    c.num_rollouts = 60
    c.rollout.prompts = 32
    c.rollout.samples_per_prompt = 8
    c.train.minibatch_size = 64  # 8 groups: 4 optimiser steps a rollout
    c.train.microbatch_size = 64
    c.optim.lr = 5e-4
    c.eval.every = 10
    c.checkpoint.every = 10
    return c
