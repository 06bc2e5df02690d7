"""Rebuilds the page of a run from its files: python -m experiments.report --workdir=DIR"""

from absl import flags

from cpgd_jax import cli
from cpgd_jax.report import write_report

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.", required=True)


def main():
    print(write_report(WORKDIR.value))


if __name__ == "__main__":
    cli.run(main)
