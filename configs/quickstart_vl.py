"""`make quickstart-vl`, second stage: CPGD on generated pictures, from the warm start's checkpoint.

    python -m experiments.train --config=configs/quickstart_vl.py \\
        --workdir=runs/quickstart_vl/cpgd_seed0

A tiny Qwen2.5-VL counts the shapes of a kind in a picture. The vision tower is frozen here, so it
sees a picture once a rollout. Hardware: 2 CPU cores. Time and result: README, section Results.
"""

from ml_collections import ConfigDict

from configs import base, quickstart


def tiny(c):
    """The tiny model and the task of both stages."""
    c = quickstart.tiny(c)
    c.model.vision = ConfigDict(
        {
            "num_layers": 2,
            "hidden_size": 64,
            "mlp_size": 128,
            "num_heads": 2,
            "full_attention": (1,),
            "window_size": 112,
            "patch_size": 14,
            "temporal_patch_size": 2,
            "merge_size": 2,
            "rope_sections": (4, 6, 6),
            "image_id": 4,  # of the pictures' own tokenizer
            "other_ids": (5, 6, 7),
        }
    )
    c.data.source = "pictures"
    c.data.pictures.slip_frac = 0.6
    c.data.pictures.bad_format_frac = 0.2
    c.rollout.max_prompt_len = 17
    c.rollout.max_response_len = 18
    c.eval.blank_images = True
    return c


def get_config():
    c = tiny(base.get_config())
    c.model.init_from = "runs/quickstart_vl/warmstart_seed0"
    c.num_rollouts = 40
    c.rollout.prompts = 32
    c.rollout.samples_per_prompt = 8
    c.train.minibatch_size = 64  # 8 groups: 4 optimiser steps a rollout
    c.train.microbatch_size = 64
    c.optim.lr = 5e-4
    c.eval.every = 10
    c.checkpoint.every = 10
    return c
