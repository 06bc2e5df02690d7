"""`make quickstart`, first stage: a tiny Qwen2 learns the task from imperfect demonstrations.

    python -m experiments.train --config=configs/quickstart_warmstart.py \\
        --workdir=runs/quickstart/warmstart_seed0

Six in ten demonstrations answer one too many, two in ten lack tags, so that the policy is right
some of the time and reinforcement learning has something to reinforce. Hardware: 2 CPU cores. Time
and result: README, section Results.
"""

from configs import base, quickstart


def get_config():
    c = quickstart.tiny(base.get_config())
    c.stage = "supervised"
    c.supervised.steps = 400
    c.supervised.batch_size = 64
    c.train.microbatch_size = 64
    c.optim.lr = 3e-3
    c.optim.warmup_steps = 20
    c.eval.every = 0
    c.checkpoint.every = 200
    return c
