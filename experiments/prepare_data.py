"""Makes a data set: `python -m experiments.prepare_data --input=F.jsonl --output=DIR`.

Rows {question, answer} or MM-EUREKA's {message, answer}, with images below --images=ROOT, become a
TFDS builder stored as ArrayRecord: `--config.data.source=tfds --config.data.path=DIR:train
--config.data.held_out_path=DIR:held_out`. Broken rows are left out and named, as are answers that
the reward cannot compare by value; DIR/report.json lists them.
"""

from absl import flags

from cpgd_jax import cli, progress
from cpgd_jax.data import prepare
from cpgd_jax.data.rows import Fields

_INPUT = flags.DEFINE_string("input", None, "JSON lines, one question each")
_OUTPUT = flags.DEFINE_string("output", None, "folder to make; it must not exist, or be empty")
_NAME = flags.DEFINE_string("name", "questions", "name of the set and of its files")
_IMAGES = flags.DEFINE_string("images", "", "folder below which the rows' images are")
_HELD_OUT = flags.DEFINE_integer("held_out", 0, "rows for split held_out", lower_bound=0)
_MAX_BROKEN = flags.DEFINE_float(
    "max_broken", 0.01, "share of broken rows above which nothing is made", 0.0, 1.0
)
_QUESTION = flags.DEFINE_string("question_field", "question", "field of the question")
_ANSWER = flags.DEFINE_string("answer_field", "answer", "field of the answer")
flags.mark_flags_as_required(["input", "output"])


def main() -> None:
    fields = Fields(_QUESTION.value, _ANSWER.value)
    options = _IMAGES.value, _HELD_OUT.value, _MAX_BROKEN.value, fields
    report = prepare.build(prepare.Plan(_INPUT.value, _OUTPUT.value, _NAME.value, *options))
    for way, meaning in (("text", "are compared as text"), ("nothing", "are empty, never paid")):
        if found := report["golds"][way]:
            warn_of_golds(found, meaning)
    splits = ", ".join(f"{rows} rows in {split}" for split, rows in report["splits"].items())
    print(
        f"{_OUTPUT.value}: {splits}, {report['images']} images; {report['broken']['rows']} broken"
        f" rows left out, {report['repeated_questions']['rows']} questions repeated"
    )


def warn_of_golds(found: dict, meaning: str) -> None:
    if found["rows"]:
        golds = [(gold["line"], " ".join(gold["gold"].split())) for gold in found["first"]]
        shown = ", ".join(f"line {line}: {gold:.40}" for line, gold in golds)
        progress.warn(f"{found['rows']} answers {meaning} ({shown})")


if __name__ == "__main__":
    cli.run(main)
