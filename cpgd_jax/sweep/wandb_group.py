"""Trials of a sweep as runs of one Weights & Biases group; needs the extra `wandb`."""

from collections.abc import Sequence

from cpgd_jax import jsonl, workdir
from cpgd_jax.errors import UserError
from cpgd_jax.metrics import METRICS_FILE
from cpgd_jax.sweep.trials import Trial

SENT_FILE = "wandb_sent"


def require():
    """The package. UserError where it is not installed."""
    try:
        import wandb
    except ImportError as error:
        raise UserError(
            "--wandb_project needs the extra: pip install 'cpgd_jax[wandb]', or leave it out"
        ) from error
    return wandb


def send(trials: Sequence[Trial], project: str, group: str) -> int:
    """Sends each finished trial once; returns how many were sent."""
    wandb, sent = require(), 0
    for trial in trials:
        if not trial.finished or (trial.folder / SENT_FILE).exists():
            continue
        run = wandb.init(
            project=project,
            group=group,
            name=trial.folder.name,
            config=workdir.read(trial.folder / "config.json"),
        )
        for row in jsonl.read_lines(trial.folder / METRICS_FILE):
            run.log({k: v for k, v in row.items() if k != "step"}, step=row.get("step"))
        run.finish()
        (trial.folder / SENT_FILE).touch()
        sent += 1
    return sent
