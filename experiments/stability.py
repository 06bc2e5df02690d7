"""Which algorithms collapse under pressure and which stay stable: many tiny policies, on a CPU.

    python -m experiments.stability --workdir=runs/stability --fast    # minutes
    python -m experiments.stability --workdir=runs/stability_full      # about 2 hours on 2 cores

All 13 algorithms, each at several learning rates and seeds, on two tasks; the full study adds
stale rollouts and ablations of CPGD. The same call goes on where it was; the same seed on the same
machine gives the same curves. Writes batches/*.json, study.json, study.md, study.html and
pictures; --jobs=0 only writes these anew.
"""

from pathlib import Path

from absl import flags

from cpgd_jax import cli
from cpgd_jax.stability import plan, results, runner

WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder of the study; made if missing", required=True
)
FAST = flags.DEFINE_bool("fast", False, "fewer rates, seeds and rollouts, one task, no ablations")
JOBS = flags.DEFINE_integer("jobs", 2, "processes of one thread; 0 = only draw", lower_bound=0)


def main() -> None:
    scale, root = plan.FAST if FAST.value else plan.FULL, Path(WORKDIR.value)
    batches = plan.batches(scale)
    if JOBS.value:
        runner.run(batches, root, JOBS.value, lambda line: print(line, flush=True))
    results.write(batches, scale, root)
    print((root / "study.md").read_text())
    print(f"study: {root / 'study.html'}")


if __name__ == "__main__":
    cli.run(main, after_interrupt="the same command goes on from the batches that are done")
