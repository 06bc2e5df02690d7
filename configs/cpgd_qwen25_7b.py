"""CPGD with the paper's batch on Qwen2.5-7B-Instruct, text only, on a TPU slice.

    python -m experiments.train --config=configs/cpgd_qwen25_7b.py \\
        --workdir=runs/cpgd_qwen25_7b

128 prompts of up to 3,000 tokens x 8 responses of up to 4,096, base.py's settings. Model: the
Hugging Face folder of Qwen2.5-7B-Instruct in `models/`. Data: `data/questions.jsonl` and
`data/held_out.jsonl`, rows {question, answer}. Another slice is named after the file, as below.
Hardware: v5p:4x4x4 or v5e:16x16. Hours: unknown. Result: not yet run on hardware, but planned:

    python -m experiments.plan --config=configs/cpgd_qwen25_7b.py --topology=v5p:4x4x4
                 arguments temporary  peak GiB    TFLOP   HBM GB links GB  seconds   MFU   tokens/s
      train_step      1.33     43.33     44.71   718.54   2792.2    85.89   1.5654   60%    334,913
      score           0.44      1.31      2.65   218.12    251.8    27.95   0.4752   65%  1,103,280
      prefill         0.44      3.05     22.79    57.24     98.4    27.87   0.1247   72%  1,539,504
      decode         18.18      0.25     19.81     0.28     22.8     0.00   0.0083    7%    123,924
      its MFU if nothing of that is hidden: 54%
      fits, 53% of the memory left

    python -m experiments.plan --config=configs/cpgd_qwen25_7b.py:v5e:16x16 --topology=v5e:16x16
      train_step      0.38      4.29      4.71   212.78    600.8    37.48   1.0801   50%    485,404
      score           0.13      0.74      1.10    54.53     87.0    10.00   0.2768   65%  1,894,085
      prefill         0.13      1.61     10.17    28.62     55.6     8.72   0.1453   72%  2,642,983
      decode          8.09      0.12      8.55     0.07      9.4     0.00   0.0114    3%     89,556
      its MFU if nothing of that is hidden: 37%
      fits, 35% of the memory left
"""

from configs import base

LAYOUTS = {"v5p:4x4x4": (64, 1, 128, "dots"), "v5e:16x16": (128, 2, 128, "block")}


def get_config(slice_name="v5p:4x4x4"):
    return base.on_slice(text("qwen2.5-7b", "models/Qwen2.5-7B-Instruct"), slice_name, LAYOUTS)


def text(size: str, folder: str):
    """The paper's batch on text, for a model of this size."""
    c = base.get_config()
    c.model.size = size
    c.model.init_from = folder
    c.model.dtype = "bfloat16"
    c.data.source = "jsonl"
    c.data.path = "data/questions.jsonl"
    c.data.held_out_path = "data/held_out.jsonl"
    c.num_rollouts = 240
    c.eval.every = 30
    c.eval.problems = 256
    c.eval.samples = 1
    c.checkpoint.every = 30
    return c
