"""Trains by a config: reinforcement learning, or the supervised stage when config.stage says so.

    python -m experiments.train --config=configs/quickstart.py --workdir=runs/quickstart

With several processes or hosts: the same command on each, which a TPU pod needs no more for;
elsewhere also --coordinator=HOST:PORT of the first, --num_processes and --process_id (launch/).

`--config.a.b=value` overrides a field (configs/base.py explains them all). The same command again
resumes from the newest checkpoint. Writes config.json, metrics.jsonl, rollouts.jsonl, checkpoints/,
TensorBoard events and report.html; the last line printed is a JSON summary. With --dry_run config,
data, tokenizer, mesh, memory and a reward are looked at, and nothing is written.
"""

from absl import flags
from ml_collections import config_flags

from cpgd_jax import cli, distributed, dry_run, progress, supervised, train

CONFIG = config_flags.DEFINE_config_file("config", None, "Config file, e.g. configs/quickstart.py")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; made if missing")
COORDINATOR = flags.DEFINE_string("coordinator", "", "Of several processes: HOST:PORT of the first")
NUM_PROCESSES = flags.DEFINE_integer("num_processes", 0, "How many processes there are")
PROCESS_ID = flags.DEFINE_integer("process_id", -1, "Which of them this one is, from 0")
DRY_RUN = flags.DEFINE_bool("dry_run", False, "Check everything and stop before the first step")
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    settings = cli.load_config(CONFIG)
    distributed.start(COORDINATOR.value, NUM_PROCESSES.value, PROCESS_ID.value)
    progress.console.quiet = not distributed.is_first()
    if DRY_RUN.value:
        return dry_run.dry_run(settings, WORKDIR.value)
    stage = supervised if settings.stage == "supervised" else train
    try:
        stage.train(settings, WORKDIR.value)
    except Exception as error:
        distributed.leave_if_lost(error)
        raise


if __name__ == "__main__":
    cli.run(main, after_interrupt="the same command resumes from the last checkpoint")
