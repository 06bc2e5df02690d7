"""Pages of runs, from their files: of one run, or of several compared.

python -m experiments.report --workdir=runs/a                   # runs/a/report.html
python -m experiments.report runs/a runs/b --output=ab.html     # overlaid curves
"""

from absl import flags

from cpgd_jax import cli
from cpgd_jax.errors import UserError
from cpgd_jax.report import write_report
from cpgd_jax.report.compare import write_comparison

WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run")
OUTPUT = flags.DEFINE_string("output", "comparison.html", "page to write, of several runs")


def main(*runs: str):
    if bool(WORKDIR.value) == bool(runs):
        raise UserError("name one run by --workdir, or two and more to compare: RUN RUN --output=F")
    print(write_comparison(runs, OUTPUT.value) if runs else write_report(WORKDIR.value))


if __name__ == "__main__":
    cli.run(main, many=True)
