"""Runs a config many times with some fields changed, a folder a trial, and compares the results.

    python -m experiments.sweep --config=configs/quickstart.py --workdir=runs/sweep \\
        --grid=optim.lr=1e-4,3e-4,1e-3 --grid=algorithm=cpgd,grpo --grid=seed=0,1,2
    python -m experiments.sweep ... --random=optim.lr=1e-5:1e-2:log --trials=20
    python -m experiments.sweep ... --file=sweep.json      {"grid": {}, "random": {}, "trials": 0,
                                                            "list": [{}]}
    python -m experiments.sweep ... --commands             lines for a cluster; run nothing

Finished trials are skipped, started ones resumed: the same call goes on. --jobs=0 only collects.
Writes table.csv, table.json, table.md: a row a trial, and the mean and spread over seeds of
--metric. `--config.a.b=value` changes a field for all trials.
"""

import json
from pathlib import Path

from absl import flags
from ml_collections import config_flags

from cpgd_jax import cli, workdir
from cpgd_jax import config as config_lib
from cpgd_jax.errors import UserError
from cpgd_jax.sweep import processes, table, trials, wandb_group

CONFIG = config_flags.DEFINE_config_file("config", None, "Config file, e.g. configs/quickstart.py")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the sweep; made if missing")
GRID = flags.DEFINE_multi_string("grid", [], "FIELD=VALUE,VALUE; several combine")
RANDOM = flags.DEFINE_multi_string("random", [], "FIELD=LOW:HIGH, FIELD=LOW:HIGH:log or FIELD=A,B")
TRIALS = flags.DEFINE_integer("trials", 0, "random draws", lower_bound=0)
FILE = flags.DEFINE_string("file", "", "JSON file with grid, random, trials, list")
SEED = flags.DEFINE_integer("sweep_seed", 0, "of the random draws")
JOBS = flags.DEFINE_integer("jobs", 1, "processes at a time; 0 = only collect", lower_bound=0)
COMMANDS = flags.DEFINE_bool("commands", False, "print the commands of unfinished trials and end")
METRIC = flags.DEFINE_string("metric", "eval/mean_accuracy", "a name of metrics.jsonl; its last")
SMALLEST = flags.DEFINE_bool("smallest", False, "the smallest metric is the best")
WANDB = flags.DEFINE_string("wandb_project", "", "send finished trials there, as one group")
flags.mark_flags_as_required(["config", "workdir"])


def main() -> None:
    root, base = Path(WORKDIR.value), cli.load_config(CONFIG)
    spec = trials.read_spec(FILE.value, GRID.value, RANDOM.value, TRIALS.value)
    todo = trials.make_trials(spec, root, SEED.value)
    for trial in todo:  # all before the first is started
        trials.checked(CONFIG.value, trial)
    if WANDB.value:
        wandb_group.require()
    file = config_flags.get_config_filename(flags.FLAGS["config"])
    overrides = config_flags.get_override_values(flags.FLAGS["config"])
    commands = [(t, trials.command(t, file, overrides)) for t in todo if not t.finished]
    if COMMANDS.value:
        print("\n".join(trials.shell_line(arguments) for _, arguments in commands))
        return
    _claim(root, config_lib.to_dict(base))
    print(f"{len(todo)} trials, {len(todo) - len(commands)} finished before")
    failed = processes.run_all(commands, JOBS.value) if JOBS.value else []
    found = table.write(root, todo, METRIC.value, largest=not SMALLEST.value)
    if WANDB.value:
        wandb_group.send(todo, WANDB.value, root.resolve().name)
    print(table.markdown(found["groups"]) + f"tables: {root / 'table.md'}")
    print(json.dumps({"metric": METRIC.value, "best": found["best"], "failed": len(failed)}))
    if failed:
        raise UserError(
            f"{len(failed)} of {len(todo)} trials failed, the first in {failed[0].folder}: see"
            f" {processes.OUTPUT_FILE} there; the same command tries them again"
        )


def _claim(root: Path, base: dict) -> None:
    """The folder belongs to one base config; trials may be added to it."""
    file = root / "sweep.json"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            workdir.write_json(file, base)
    except OSError as error:
        raise UserError(f"--workdir {str(root)!r} cannot be written: {error.strerror}") from error
    if changed := config_lib.difference(workdir.read(file), base):
        raise UserError(
            f"--workdir {str(root)!r} is a sweep of another config ({'; '.join(changed)}): give"
            " another folder"
        )


if __name__ == "__main__":
    cli.run(main, after_interrupt="the same command goes on where it was")
