"""Scores a model on benchmarks:
`python -m experiments.evaluate --model=DIR --benchmark=gsm8k,math500 --data=DIR --output=DIR`.

--data holds a folder a benchmark (or is the one file). --output gets, for each benchmark,
NAME.responses.jsonl as they come and NAME.scored.jsonl, then summary.json, table.md, table.html.
The same command again goes on where it stopped. --responses=FILE.jsonl scores what another system
answered: rows {id, response}, with sample and benchmark where there are several.
"""

from absl import flags

from cpgd_jax import answering, cli, progress
from cpgd_jax.benchmarks import contamination, paper, reading, results, scoring, table
from cpgd_jax.benchmarks.judge import Judge
from cpgd_jax.data.prompts import SYSTEM_PROMPTS
from cpgd_jax.errors import UserError

_MODEL = flags.DEFINE_string("model", None, "Hugging Face folder or GGUF file")
_CHECKPOINT = flags.DEFINE_string("checkpoint", None, "workdir of a run: its newest checkpoint")
_RESPONSES = flags.DEFINE_string("responses", None, "JSON lines {id, response}: score these")
_BENCHMARK = flags.DEFINE_list("benchmark", None, f"some of {', '.join(table.BENCHMARKS)}")
_DATA = flags.DEFINE_string("data", None, "folder of the benchmarks' folders, or one file")
_OUTPUT = flags.DEFINE_string("output", None, "folder for responses, scores and tables")
_LIMIT = flags.DEFINE_integer("limit", None, "the first so many items of each", lower_bound=1)
_SAMPLES = flags.DEFINE_integer("samples", 1, "responses an item: pass@k, maj@k", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float("temperature", None, "default: 0 for one sample, else 1")
_TOP_P = flags.DEFINE_float("top_p", 1.0, "probability mass kept; 1 = all")
_TOP_K = flags.DEFINE_integer("top_k", 0, "most probable tokens kept; 0 = all")
_MAX_NEW = flags.DEFINE_integer("max_new_tokens", 1024, "length cap of a response", lower_bound=1)
_MAX_PROMPT = flags.DEFINE_integer("max_prompt_tokens", 8192, "longer prompts are not asked")
_SYSTEM = flags.DEFINE_enum(
    "system_prompt", None, sorted(SYSTEM_PROMPTS), "default: the run's, else reasoning"
)
_BLIND = flags.DEFINE_bool("without_images", False, "ask the text alone")
_MIN_PIXELS = flags.DEFINE_integer("min_pixels", 0, "of an image; 0 = as the model was published")
_MAX_PIXELS = flags.DEFINE_integer("max_pixels", 0, "of an image; 0 = as the model was published")
_SEED = flags.DEFINE_integer("seed", 0, "the same seed gives the same responses")
_DTYPE = flags.DEFINE_string("dtype", "", "of the model: float32, bfloat16; default: float32")
_CHUNK = flags.DEFINE_integer("chunk", 64, "items sampled, and kept, together", lower_bound=1)
_TENSOR = flags.DEFINE_integer("tensor", 1, "devices that each matrix is split over")
_TRAINING_DATA = flags.DEFINE_list("training_data", [], "JSON lines: report items that are in them")
_BASELINE = flags.DEFINE_string(
    "baseline", paper.BASELINE, "of Overall: a model of the paper, or a summary.json"
)
_PAPER = flags.DEFINE_bool("paper", False, "the paper's rows beside the scores")
_JUDGE_URL = flags.DEFINE_string("judge_url", None, "OpenAI-compatible address of a judge, to /v1")
_JUDGE_MODEL = flags.DEFINE_string("judge_model", "", "its model")
_JUDGE_KEY = flags.DEFINE_string("judge_key_env", "OPENAI_API_KEY", "variable with its key")
_WORKERS = flags.DEFINE_integer("workers", 2, "verifier processes", lower_bound=1)
flags.mark_flags_as_required(["benchmark", "data", "output"])


def main() -> None:
    sources = [_MODEL.value, _CHECKPOINT.value, _RESPONSES.value]
    if sum(source is not None for source in sources) != 1:
        raise UserError("give one of --model=DIR, --checkpoint=DIR and --responses=FILE.jsonl")
    source = next(source for source in sources if source is not None)
    baseline = results.baseline(_BASELINE.value)
    judge = None
    if _JUDGE_URL.value:
        judge = Judge(_JUDGE_URL.value, _JUDGE_MODEL.value, _JUDGE_KEY.value)
    loaded = {
        name: reading.load(table.named(name), name, _DATA.value, _LIMIT.value)
        for name in dict.fromkeys(_BENCHMARK.value)
    }
    contamination.report(loaded, _TRAINING_DATA.value)
    folder = results.make_folder(_OUTPUT.value)
    if _RESPONSES.value:
        responses = {
            name: scoring.read_responses(source, name, found.items)
            for name, found in loaded.items()
        }
    else:
        answerer = answering.load(_MODEL.value, _CHECKPOINT.value, sampling(), _TENSOR.value)
        responses = answering.run(answerer, loaded, folder)
    summary = results.score(folder, loaded, responses, judge, _WORKERS.value)
    summary["answers_of"] = source
    summary |= results.overall(summary, baseline, _BASELINE.value)
    tables = results.publish(folder, source, summary, _PAPER.value)
    title, cells, notes = tables[0]
    progress.table(title, cells[0], cells[1:])
    print("\n".join([*notes, f"Written to {folder}/table.html, table.md and summary.json"]))


def sampling() -> answering.Sampling:
    temperature = _TEMPERATURE.value
    return answering.Sampling(
        samples=_SAMPLES.value,
        temperature=float(_SAMPLES.value > 1) if temperature is None else temperature,
        top_p=_TOP_P.value,
        top_k=_TOP_K.value,
        max_new_tokens=_MAX_NEW.value,
        max_prompt_tokens=_MAX_PROMPT.value,
        system_prompt=_SYSTEM.value or "",
        without_images=_BLIND.value,
        min_pixels=_MIN_PIXELS.value,
        max_pixels=_MAX_PIXELS.value,
        seed=_SEED.value,
        dtype=_DTYPE.value,
        chunk=_CHUNK.value,
    )


if __name__ == "__main__":
    cli.run(main, after_interrupt="the same command goes on where it stopped")
