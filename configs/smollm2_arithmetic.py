"""RL of a real language model on a laptop: SmolLM2-135M-Instruct learns to add and subtract.

    python -m experiments.train --config=configs/smollm2_arithmetic.py \\
        --config.model.init_from=SmolLM2-135M-Instruct.Q4_1.gguf --workdir=runs/smollm2_arithmetic

The model starts as published, from a GGUF file or a Hugging Face folder; no supervised stage. Three
worked sums in the prompt show it the form, temperature 0.7 keeps its samples sensible.
Hardware: 2 CPU cores, 6 GB of memory. Time and result: README, section Results.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.size = "smollm2-135m"
    c.model.init_from = "models/smollm2-135m"
    c.model.remat = "none"
    c.data.source = "arithmetic"
    c.data.system_prompt = "worked_sums"
    c.data.arithmetic.max_operand = 20
    c.data.arithmetic.three_operand_frac = 0.3
    c.rollout.max_prompt_len = 160
    c.rollout.max_response_len = 36
    c.rollout.temperature = 0.7
    c.rollout.prompts = 8
    c.rollout.samples_per_prompt = 8
    c.train.minibatch_size = 32  # 4 groups: 2 optimiser steps a rollout
    c.train.microbatch_size = 32
    c.optim.lr = 2e-5
    c.num_rollouts = 44
    c.eval.problems = 100
    c.eval.samples = 2
    c.eval.every = 15
    c.checkpoint.every = 15
    return c
