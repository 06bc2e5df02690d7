"""MMK12 test (arXiv 2503.07365): multiple choice of four school subjects, 500 each."""

from cpgd_jax.benchmarks import rules
from cpgd_jax.benchmarks.records import Benchmark, Item, groups, shown


def item(row: dict) -> Item:
    """Options stand in the question."""
    return Item(
        str(row["id"]),
        row["question"],
        str(row["answer"]),
        shown(row["image"] if row.get("image") else row["image_path"]),
        groups(row, "subject"),
    )


BENCHMARK = Benchmark(
    title="MMK12 test",
    files=("test*.parquet", "*.parquet", "test.jsonl", "test.json", "*.jsonl"),
    count=2000,
    fields="id,question,answer,subject,image,image_path",
    item=item,
    rule=rules.verified,
    rule_name="the letter that is chosen; free-form answers, where a row has one, by the verifier",
)
