"""CPGD with the paper's batch on Qwen2.5-72B-Instruct, text only, on a TPU slice.

    python -m experiments.train --config=configs/cpgd_qwen25_72b.py \\
        --workdir=runs/cpgd_qwen25_72b

As cpgd_qwen25_7b.py, with the folder of Qwen2.5-72B-Instruct in `models/`.
Hardware: v5p:4x8x8 or v6e:16x16; on the latter it fits, but its links and memory hold it up.
Hours: unknown. Result: not yet run on hardware, but planned:

    python -m experiments.plan --config=configs/cpgd_qwen25_72b.py --topology=v5p:4x8x8 \\
        --programs=train_step
                 arguments temporary  peak GiB    TFLOP   HBM GB links GB  seconds   MFU   tokens/s
      train_step      3.20     15.99     19.21  2093.08   6535.2   337.19   4.5601   50%    114,973
      its MFU if nothing of that is hidden: 40%
      fits, 80% of the memory left

    python -m experiments.plan --config=configs/cpgd_qwen25_72b.py:v6e:16x16 \\
        --topology=v6e:16x16 --programs=train_step
      train_step      3.20     15.77     19.00  2093.08   6532.6   339.66   3.9833   28%    131,622
      its MFU if nothing of that is hidden: 20%
      fits, 39% of the memory left
"""

from configs import base, cpgd_qwen25_7b

LAYOUTS = {"v5p:4x8x8": (128, 2, 128, "block"), "v6e:16x16": (128, 2, 128, "block")}


def get_config(slice_name="v5p:4x8x8"):
    c = cpgd_qwen25_7b.text("qwen2.5-72b", "models/Qwen2.5-72B-Instruct")
    return base.on_slice(c, slice_name, LAYOUTS)
