"""Rows {problem or question, answer} with or without an id, as AIME and its like are published."""

from cpgd_jax.benchmarks import rules
from cpgd_jax.benchmarks.records import Benchmark, Item, groups
from cpgd_jax.data import rows


def item(row: dict) -> Item:
    return Item(
        str(row.get("id") or row.get("unique_id") or ""),
        row["problem"] if "problem" in row else row["question"],
        rows.gold_of(str(row["answer"])),
        groups=groups(row, "subject", "level", "year"),
    )


BENCHMARK = Benchmark(
    title="AIME-style questions",
    files=("test.jsonl", "*.jsonl", "*.parquet"),
    count=0,
    fields="id,unique_id,problem,question,answer,solution,subject,level,year,url",
    item=item,
    rule=rules.verified,
    rule_name=f"variant: {rules.VERIFIER}",
)
