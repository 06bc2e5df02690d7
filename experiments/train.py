"""Trains by a config: reinforcement learning, or the supervised stage when config.stage says so.

    python -m experiments.train --config=configs/quickstart.py --workdir=runs/quickstart

`--config.a.b=value` overrides a field (configs/base.py explains them all). The same command again
resumes from the newest checkpoint. Writes config.json, metrics.jsonl, rollouts.jsonl, checkpoints/,
TensorBoard events and report.html; the last line printed is a JSON summary.
"""

from absl import flags
from ml_collections import config_flags

from cpgd_jax import cli, supervised, train

CONFIG = config_flags.DEFINE_config_file("config", None, "Config file, e.g. configs/quickstart.py")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; made if missing")
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    settings = cli.load_config(CONFIG)
    stage = supervised if settings.stage == "supervised" else train
    stage.train(settings, WORKDIR.value)


if __name__ == "__main__":
    cli.run(main, after_interrupt="the same command resumes from the last checkpoint")
