"""The paper's run: CPGD on Qwen2.5-VL-7B-Instruct and the questions with images of MMK12.

    python -m experiments.train --config=configs/cpgd_qwen25_vl_7b_mmk12.py \\
        --workdir=runs/cpgd_qwen25_vl_7b_mmk12

Model: the Hugging Face folder of Qwen2.5-VL-7B-Instruct in `models/`. Data: the 15,616 training
questions of MMK12 as rows {id, question, answer, image} or MM-EUREKA's {id, message, answer}, with
their images below `data/mmk12_images`, made into ArrayRecord files by
`python -m experiments.prepare_data --input=mmk12.jsonl --images=data/mmk12_images --name=mmk12
--held_out=256 --output=data/mmk12`.
Batch, learning rate and algorithm are base.py's, which are the paper's, and the vision tower is
frozen. A prompt over 3,000 tokens, its image counted, is dropped. The paper does not say how long
it trained: 240 rollouts of 128 prompts are two epochs, 1,920 steps.
Hardware: TPU v5p:4x4x4 or v5e:16x16. Hours: unknown. Result: not yet run.
"""

from configs import base


def get_config():
    c = base.get_config()
    c.model.size = "qwen2.5-vl-7b"
    c.model.init_from = "models/Qwen2.5-VL-7B-Instruct"
    c.model.dtype = "bfloat16"
    c.data.source = "tfds"
    c.data.path = "data/mmk12:train"
    c.data.held_out_path = "data/mmk12:held_out"
    c.data.images = True
    c.num_rollouts = 240
    c.eval.every = 30  # a quarter of an epoch
    c.eval.problems = 256
    c.eval.samples = 1
    c.checkpoint.every = 30
    return c
