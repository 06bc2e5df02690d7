"""A few steps of CPGD on real questions with a small real model, on a laptop.

    python -m experiments.train --config=configs/smollm2_gsm8k.py \\
        --workdir=runs/smollm2_gsm8k

Model: `models/smollm2-135m`, the Hugging Face folder of SmolLM2-135M-Instruct, or its GGUF file by
--config.model.init_from=FILE.gguf. Data: train.jsonl and test.jsonl of
https://github.com/openai/grade-school-math (grade_school_math/data, MIT) in `data/gsm8k`, as they
are; 7,473 and 1,319 questions. Hardware: 2 CPU cores, 8 GB. It shows that the path works: a model
of this size gets few of the questions right. Result: not yet run.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.size = "smollm2-135m"
    c.model.init_from = "models/smollm2-135m"
    c.model.remat = "none"
    c.data.source = "jsonl"
    c.data.path = "data/gsm8k/train.jsonl"
    c.data.held_out_path = "data/gsm8k/test.jsonl"
    c.data.system_prompt = "boxed"
    c.reward.format_weight = 0.0  # the short system prompt asks for no tags
    c.rollout.max_prompt_len = 280  # the longest question has 223 tokens, the turns around it 33
    c.rollout.max_response_len = 160
    c.rollout.prompts = 4
    c.rollout.samples_per_prompt = 8
    c.train.minibatch_size = 16
    c.train.microbatch_size = 8
    c.optim.lr = 2e-6
    c.num_rollouts = 10
    c.eval.problems = 16
    c.eval.samples = 1
    c.eval.every = 0
    c.checkpoint.every = 5
    return c
