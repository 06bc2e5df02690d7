"""CPGD with the paper's batch on Qwen2.5-32B-Instruct, text only, on a TPU slice.

    python -m experiments.train --config=configs/cpgd_qwen25_32b.py \\
        --workdir=runs/cpgd_qwen25_32b

As cpgd_qwen25_7b.py, with the folder of Qwen2.5-32B-Instruct in `models/`.
Hardware: v5p:4x4x8. Hours: unknown. Result: not yet run on hardware, but planned:

    python -m experiments.plan --config=configs/cpgd_qwen25_32b.py --topology=v5p:4x4x8 \\
        --programs=train_step
                 arguments temporary  peak GiB    TFLOP   HBM GB links GB  seconds   MFU   tokens/s
      train_step      2.87     68.09     71.01  1566.04   8469.4   384.08   3.4118   60%    153,667
      its MFU if nothing of that is hidden: 50%
      fits, 26% of the memory left
"""

from configs import base, cpgd_qwen25_7b

LAYOUTS = {"v5p:4x4x8": (128, 1, 128, "dots")}


def get_config(slice_name="v5p:4x4x8"):
    c = cpgd_qwen25_7b.text("qwen2.5-32b", "models/Qwen2.5-32B-Instruct")
    return base.on_slice(c, slice_name, LAYOUTS)
