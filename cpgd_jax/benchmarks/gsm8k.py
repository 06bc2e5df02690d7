"""GSM8K test (arXiv 2110.14168): the number after `####` of the worked solution."""

from cpgd_jax.benchmarks import rules
from cpgd_jax.benchmarks.records import Benchmark, Item
from cpgd_jax.data import rows


def item(row: dict) -> Item:
    """Rows have no ids: `reading` numbers them."""
    return Item(str(row.get("id") or ""), row["question"], rows.gold_of(row["answer"]))


BENCHMARK = Benchmark(
    title="GSM8K test",
    files=("test.jsonl", "test*.parquet"),
    count=1319,
    fields="question,answer",
    item=item,
    rule=rules.verified,
    rule_name=f"variant: {rules.VERIFIER} (officially the number after ####)",
)
