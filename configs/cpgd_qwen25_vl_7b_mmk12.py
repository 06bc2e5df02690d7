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
Hardware: TPU v5p:4x4x4 or v5e:16x16. Hours: unknown. Result: not yet run on hardware, but planned,
each prompt with one image of 2,872 tokens:

    python -m experiments.plan --config=configs/cpgd_qwen25_vl_7b_mmk12.py --topology=v5p:4x4x4
                 arguments temporary  peak GiB    TFLOP   HBM GB links GB  seconds   MFU   tokens/s
      train_step      1.43     43.34     44.80   718.54   2793.2    85.89   1.5654   60%    334,913
      score           0.49      1.31      2.70   218.12    252.2    27.95   0.4752   65%  1,103,280
      see             0.12      1.01      2.05    65.04   1949.4     2.66   0.7050   20%    260,714
      prefill         0.47      3.05     22.82    57.24     98.5    27.87   0.1247   72%  1,539,504
      decode         18.18      0.25     19.85     0.28     22.8     0.00   0.0083    7%    123,923
      its MFU if nothing of that is hidden: 54%
      fits, 53% of the memory left

    python -m experiments.plan --config=configs/cpgd_qwen25_vl_7b_mmk12.py:v5e:16x16 \\
        --topology=v5e:16x16
      train_step      0.43      4.83      5.29   212.78    601.1    37.48   1.0801   50%    485,404
      score           0.15      0.74      1.12    54.53     87.2    10.00   0.2768   65%  1,894,085
      see             0.10      0.90      1.26    32.52   1949.0     1.34   2.3798    7%    154,475
      prefill         0.16      1.61     10.20    28.62     55.7     8.72   0.1453   72%  2,642,983
      decode          8.09      0.12      8.57     0.07      9.4     0.00   0.0114    3%     89,553
      its MFU if nothing of that is hidden: 37%
      fits, 35% of the memory left
"""

from configs import base

LAYOUTS = {"v5p:4x4x4": (64, 1, 128, "dots"), "v5e:16x16": (128, 2, 128, "block")}


def get_config(slice_name="v5p:4x4x4"):
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
    return base.on_slice(c, slice_name, LAYOUTS)
