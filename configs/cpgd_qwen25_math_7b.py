"""CPGD with the paper's settings on Qwen2.5-Math-7B and competition mathematics.

    python -m experiments.train --config=configs/cpgd_qwen25_math_7b.py \\
        --workdir=runs/cpgd_qwen25_math_7b

Model: the Hugging Face folder of Qwen2.5-Math-7B in `models/`; it was made for 4,096 tokens, prompt
and response together. Data: `data/math/train.jsonl`, rows {question, answer} of the 12,000 problems
of MATH (https://github.com/hendrycks/math, MIT) that are not in MATH-500, and those 500 as
`data/math/test.jsonl`, field `problem` renamed to `question`.
Batch, learning rate and algorithm are base.py's, which are the paper's. Two epochs: 188 rollouts
of 128 prompts, 1,504 steps. Hardware: one host with 8 accelerators of 80 GB or more, or TPU v5p-8.
Hours: unknown. Result: not yet run.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.size = "qwen2.5-math-7b"
    c.model.init_from = "models/Qwen2.5-Math-7B"
    c.model.dtype = "bfloat16"
    c.data.source = "jsonl"
    c.data.path = "data/math/train.jsonl"
    c.data.held_out_path = "data/math/test.jsonl"
    c.rollout.max_prompt_len = 1024
    c.rollout.max_response_len = 3072
    c.rollout.slots = 256
    c.num_rollouts = 188
    c.eval.every = 47  # half an epoch
    c.eval.problems = 500  # all of test.jsonl
    c.eval.samples = 1
    c.checkpoint.every = 47
    return c
