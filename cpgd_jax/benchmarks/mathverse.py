"""MathVerse testmini (arXiv 2403.14624): 788 problems in 5 versions, from all text to all image."""

from cpgd_jax.benchmarks import rules
from cpgd_jax.benchmarks.records import Benchmark, Item, groups, shown


def item(row: dict) -> Item:
    """The prompt is the official chain-of-thought query where the row has it."""
    meta = dict(row.get("metadata") or {})
    names = {"subject": meta.get("subject") or meta.get("subjects")}
    names["subfield"] = meta.get("subfield") or meta.get("subfields")
    names["version"] = row.get("problem_version") or meta.get("problem_version")
    names["question_type"] = row["question_type"].replace("_", "-")
    choices = row.get("choices") or ()
    listed = "\nChoices:\n" + "\n".join(choices) if choices else ""
    return Item(
        str(row.get("sample_index") or row["pid"]),
        row.get("query_cot") or row["question"].strip() + listed,
        # The official file holds degree signs that were read in another encoding.
        str(row["answer"]).replace("\u63b3", "°"),
        shown(row["image"]),
        groups(names, "version", "subject", "subfield", "question_type"),
    )


BENCHMARK = Benchmark(
    title="MathVerse testmini",
    files=("testmini.json", "testmini*.parquet", "*.parquet", "testmini*.json", "*.jsonl"),
    count=3940,
    fields=(
        "sample_index,problem_index,problem_version,question,image,answer,question_type,metadata"
        ",query_wo,query_cot,question_for_eval"
    ),
    item=item,
    rule=rules.verified,
    rule_name=f"variant: {rules.VERIFIER} (officially a language model extracts and judges)",
    judged=True,
)
