"""RL of a real language model on a laptop: SmolLM2-135M-Instruct learns to show sums as asked.

    python -m experiments.train --config=configs/smollm2_arithmetic.py \\
        --workdir=runs/smollm2_arithmetic

The model starts as published: `models/smollm2-135m` is its Hugging Face folder, or name its GGUF
file, --config.model.init_from=FILE.gguf. Hardware: 2 CPU cores. Hours and result: not yet run.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.size = "smollm2-135m"
    c.model.init_from = "models/smollm2-135m"
    c.model.remat = "none"
    c.data.source = "arithmetic"
    c.data.system_prompt = "boxed"
    c.data.arithmetic.max_operand = 20
    c.data.arithmetic.three_operand_frac = 0.5
    c.rollout.max_prompt_len = 80
    c.rollout.max_response_len = 64
    c.rollout.prompts = 8
    c.rollout.samples_per_prompt = 8
    c.reward.format_weight = 0.0  # the short prompt asks for a box, not for tags
    c.train.minibatch_size = 32
    c.train.microbatch_size = 16
    c.optim.lr = 5e-6
    c.num_rollouts = 60
    c.eval.problems = 64
    c.eval.samples = 2
    c.eval.every = 20
    c.checkpoint.every = 20
    return c
