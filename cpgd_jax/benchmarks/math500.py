"""MATH-500 (arXiv 2305.20050): competition problems of seven subjects and five levels."""

from cpgd_jax.benchmarks import rules
from cpgd_jax.benchmarks.records import Benchmark, Item, groups


def item(row: dict) -> Item:
    return Item(
        str(row["unique_id"]), row["problem"], row["answer"], groups=groups(row, "subject", "level")
    )


BENCHMARK = Benchmark(
    title="MATH-500",
    files=("test.jsonl", "test*.parquet"),
    count=500,
    fields="problem,solution,answer,subject,level,unique_id",
    item=item,
    rule=rules.verified,
    rule_name=f"variant: {rules.VERIFIER}",
)
