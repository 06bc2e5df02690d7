"""`make quickstart-vl`, first stage: a tiny Qwen2.5-VL learns the task from faulty demonstrations.

    python -m experiments.train --config=configs/quickstart_vl_warmstart.py \\
        --workdir=runs/quickstart_vl/warmstart_seed0

The vision tower is trained too. Six in ten demonstrations answer one too many, two in ten lack
tags, so that the policy is right some of the time and reinforcement learning has something to
reinforce. Hardware: 2 CPU cores. Time and result: README, section Results.
"""

from configs import base, quickstart_vl


def get_config():
    c = quickstart_vl.tiny(base.get_config())
    c.stage = "supervised"
    c.supervised.steps = 600
    c.supervised.batch_size = 64
    c.train.microbatch_size = 64
    c.optim.lr = 3e-3
    c.optim.warmup_steps = 20
    c.optim.train_vision = True
    c.eval.every = 0
    c.checkpoint.every = 200
    return c
