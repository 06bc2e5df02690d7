"""Says whether a config fits on TPU slices and how fast it would be; needs no TPU.

    python -m experiments.plan --config=configs/pods/qwen25_7b.py --topology=v5p:4x4x4

--topology several times: a line each. --scale=64,256,1024,4096 with one chip (--topology=v5p): the
train step on ever more of them, the batch growing with the chips. --json=FILE: everything, a JSON
line for each slice. Times are rooflines: upper bounds of speed. Needs pip install 'cpgd_jax[tpu]'.
"""

import json
from pathlib import Path

import jax
from absl import flags
from ml_collections import config_flags

from cpgd_jax import cli, plan
from cpgd_jax.errors import UserError
from cpgd_jax.plan import table

CONFIG = config_flags.DEFINE_config_file("config", None, "Config file, e.g. configs/base.py")
TOPOLOGY = flags.DEFINE_multi_string("topology", None, "Slice, e.g. v5p:4x4x4; may be repeated")
SCALE = flags.DEFINE_list("scale", [], "Numbers of chips, of the one chip that --topology names")
PROGRAMS = flags.DEFINE_list("programs", list(plan.PROGRAMS), "Which programs are compiled")
JSON = flags.DEFINE_string("json", "", "File for the plans, a JSON line each; '' = printed")
flags.mark_flags_as_required(["config", "topology"])


def main() -> None:
    jax.config.update("jax_platforms", "cpu")  # what else there is stays untouched
    config = cli.load_config(CONFIG)
    plans = _scaled(config) if SCALE.value else []
    for name in () if SCALE.value else TOPOLOGY.value:
        plans.append(plan.plan(config, name, tuple(PROGRAMS.value)))
        print(table.details(plans[-1]), flush=True)
    if len(plans) > 1:
        print(table.summary(plans))
    lines = "".join(json.dumps(p) + "\n" for p in plans)
    if JSON.value:
        Path(JSON.value).write_text(lines)
    else:
        print(lines, end="")


def _scaled(config) -> list[dict]:
    counts = SCALE.value
    if len(TOPOLOGY.value) != 1 or not all(n.isdecimal() and int(n) for n in counts):
        raise UserError("--scale takes numbers of chips, and one --topology, e.g. v5p")
    return plan.weak_scaling(config, TOPOLOGY.value[0].partition(":")[0], [*map(int, counts)])


if __name__ == "__main__":
    cli.run(main)
