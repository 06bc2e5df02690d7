"""A few steps of CPGD on real questions with a small real model, on a laptop.

    python -m experiments.train --config=configs/smollm2_gsm8k.py \\
        --workdir=runs/smollm2_gsm8k

Model: as for `smollm2_arithmetic.py`. Data: train.jsonl and test.jsonl of
https://github.com/openai/grade-school-math (grade_school_math/data, MIT) in `data/gsm8k`, as they
are; 7,473 and 1,319 questions. Hardware: 2 CPU cores, 8 GB. It shows that the path works: a model
of this size gets few of the questions right. Result: README, section Results.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.size = "smollm2-135m"
    c.model.init_from = "models/SmolLM2-135M-Instruct.Q4_1.gguf"
    c.model.remat = "none"
    c.data.source = "jsonl"
    c.data.path = "data/gsm8k/train.jsonl"
    c.data.held_out_path = "data/gsm8k/test.jsonl"
    c.data.system_prompt = "worked_questions"
    c.rollout.max_prompt_len = 400  # the longest question has 223 tokens, the turns around it 148
    c.rollout.max_response_len = 96
    c.rollout.prompts = 4
    c.rollout.samples_per_prompt = 8
    c.train.minibatch_size = 16
    c.train.microbatch_size = 8
    c.optim.lr = 1e-5
    c.num_rollouts = 4
    c.eval.problems = 16
    c.eval.samples = 1
    c.eval.every = 0
    c.checkpoint.every = 2
    return c
