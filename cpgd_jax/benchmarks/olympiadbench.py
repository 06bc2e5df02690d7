"""OlympiadBench OE_MM_maths_en_COMP (arXiv 2402.14008): open competition answers, images."""

from cpgd_jax.benchmarks import rules
from cpgd_jax.benchmarks.records import Benchmark, Item, Verdict, groups, shown
from cpgd_jax.rewards import answers

_MAX_IMAGES = 9  # columns image_1 ... of the published tables


def item(row: dict) -> Item:
    finals = row["final_answer"]
    golds = [finals] if isinstance(finals, str) else [str(each) for each in finals or ()]
    if not golds:
        raise ValueError("'final_answer' is empty")
    context = f"{row['context']}\n" if row.get("context") else ""
    columns = [row.get(f"image_{n}") for n in range(1, _MAX_IMAGES + 1)]
    images = row.get("images") or [column for column in columns if column]
    return Item(
        str(row["id"]),
        context + row["question"] + _hint(row),
        ", ".join(golds),
        shown(*images),
        groups(row, "subfield", "answer_type"),
        {"errors": errors(row.get("error")), "several": bool(row.get("is_multiple_answer"))},
    )


def errors(given) -> tuple[float, ...]:
    """Absolute tolerances of the answers: none, one for all, or one each (comma list)."""
    return tuple(float(part) for part in str(given or "").split(",") if part.strip())


def _hint(row: dict) -> str:
    unit = f", in {row['unit']} but without the unit," if row.get("unit") else ""
    if row.get("is_multiple_answer"):
        return f"\nThere are several answers: give them all{unit} in one \\boxed{{}}, with commas."
    return f"\nGive the answer{unit} in \\boxed{{}}."


def rule(item: Item, response: str, verifier) -> Verdict:
    """As the official judge: lists in any order, both signs of ±, tolerances; the boxes of an
    answer that has several values are one list."""
    block, _ = answers.answer_block(response)
    found = answers.boxes(block) if item.row["several"] else []
    if len(found) > 1 and all(end >= 0 for _, _, end in found):
        outer = [box for box in found if not any(a < box[0] and box[2] < b for a, _, b in found)]
        response = f"\\boxed{{{', '.join(block[at:end] for _, at, end in outer)}}}"
    return rules.verified(item, response, verifier, errors=item.row["errors"])


BENCHMARK = Benchmark(
    title="OlympiadBench OE_MM_maths_en_COMP",
    files=("OE_MM_maths_en_COMP*.json", "OE_MM_maths_en_COMP*.parquet", "OE_*.jsonl", "*.parquet"),
    count=150,
    fields=(
        "id,subfield,context,question,solution,final_answer,is_multiple_answer,unit,answer_type"
        ",error,images,subject,difficulty,question_type,language,modality,"
    )
    + ",".join(f"image_{n}" for n in range(1, _MAX_IMAGES + 1)),
    item=item,
    rule=rule,
    rule_name="variant: the maths verifier with the official tolerances, right on every test vector"
    " of the official judge; an answer needs no box",
)
