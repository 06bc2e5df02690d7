"""CPGD with the paper's settings on Qwen2.5-7B-Instruct and GSM8K.

    python -m experiments.train --config=configs/cpgd_qwen25_7b_gsm8k.py \\
        --workdir=runs/cpgd_qwen25_7b_gsm8k

Model: the Hugging Face folder of Qwen2.5-7B-Instruct in `models/`. Data: train.jsonl and test.jsonl
of https://github.com/openai/grade-school-math (grade_school_math/data, MIT) in `data/gsm8k`.
Batch, learning rate and algorithm are base.py's, which are the paper's; only the response is
shorter, since answers to GSM8K are. Three epochs: 174 rollouts of 128 prompts, 1,392 steps.
Hardware: one host with 8 accelerators of 80 GB or more, or TPU v5p-8: parameters, gradients and
Adam's moments take 122 GB in float32. Hours: unknown. Result: not yet run.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.size = "qwen2.5-7b"
    c.model.init_from = "models/Qwen2.5-7B-Instruct"
    c.model.dtype = "bfloat16"
    c.data.source = "jsonl"
    c.data.path = "data/gsm8k/train.jsonl"
    c.data.held_out_path = "data/gsm8k/test.jsonl"
    c.rollout.max_prompt_len = 320  # the longest question has 212 tokens, the turns around it 55
    c.rollout.max_response_len = 1024
    c.rollout.slots = 512
    c.num_rollouts = 174
    c.eval.every = 29  # half an epoch
    c.eval.problems = 1319  # all of test.jsonl
    c.eval.samples = 1
    c.checkpoint.every = 29
    return c
