"""Samples responses: `python -m experiments.sample --workdir=RUN_DIR --prompt="What is 2 + 3?"`.

The model is a run's newest checkpoint (--workdir) or a Hugging Face folder (--model). Questions
come from --prompt, or from the rows {question} of a JSON-lines file, in the chat template.
"""

from absl import flags
from rich.console import Console
from rich.markup import escape

from cpgd_jax import checkpoint, cli, models
from cpgd_jax.data import prompts as prompts_lib
from cpgd_jax.data import rows, sources
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.rollout import generate

_MODEL = flags.DEFINE_string("model", None, "Hugging Face folder: weights and tokenizer")
_WORKDIR = flags.DEFINE_string("workdir", None, "workdir of a run: its newest checkpoint")
_PROMPT = flags.DEFINE_string("prompt", None, "the question")
_PROMPTS = flags.DEFINE_string("prompts", None, "JSON lines {question}: many questions")
_SYSTEM = flags.DEFINE_enum(
    "system_prompt", None, sorted(prompts_lib.SYSTEM_PROMPTS), "default: the run's, else none"
)
_SAMPLES = flags.DEFINE_integer("samples", 4, "responses a question", lower_bound=1)
_TEMPERATURE = flags.DEFINE_float("temperature", 1.0, "0 = greedy")
_TOP_K = flags.DEFINE_integer("top_k", 0, "most probable tokens kept; 0 = all")
_TOP_P = flags.DEFINE_float("top_p", 1.0, "probability mass kept; 1 = all")
_MAX_NEW_TOKENS = flags.DEFINE_integer("max_new_tokens", 256, "length cap of a response")
_SEED = flags.DEFINE_integer("seed", 0, "the same seed gives the same responses")


def main() -> None:
    questions = read_questions()
    model, tokenizer, system_prompt = load()
    groups = generate(
        model,
        [tokenizer.encode_prompt(question, system_prompt) for question in questions],
        samples_per_prompt=_SAMPLES.value,
        max_new_tokens=_MAX_NEW_TOKENS.value,
        temperature=_TEMPERATURE.value,
        top_k=_TOP_K.value,
        top_p=_TOP_P.value,
        stop_ids=tokenizer.stop_ids,
        forbidden_ids=tokenizer.forbidden_ids,
        seed=_SEED.value,
    )
    console = Console(highlight=False)
    for question, group in zip(questions, groups, strict=True):
        console.print(f"\n[bold]{escape(question)}[/bold]", soft_wrap=True)
        for completion in group:
            console.print(describe(completion), style="dim")
            console.print(escape(tokenizer.decode(completion.tokens)), soft_wrap=True)


def describe(completion) -> str:
    end = "truncated" if completion.truncated else "ended"
    return f"-- {len(completion.tokens)} tokens, {end}, logp {sum(completion.logp):.2f}"


def read_questions() -> list[str]:
    if (_PROMPT.value is None) == (_PROMPTS.value is None):
        raise UserError("give one of --prompt=TEXT and --prompts=FILE.jsonl")
    if _PROMPT.value is not None:
        return [_PROMPT.value]
    examples = sources.read_jsonl(_PROMPTS.value, "--prompts", rows.Fields(answer=""))
    return [example.prompt for example in examples]


def load():
    """(model, tokenizer, system prompt)."""
    if (_MODEL.value is None) == (_WORKDIR.value is None):
        raise UserError("give one of --model=FOLDER and --workdir=RUN")
    if _MODEL.value is not None:
        tokenizer = tokenizer_lib.load(_MODEL.value)
        return models.from_pretrained(_MODEL.value), tokenizer, _SYSTEM.value or "none"
    model, tokenizer = checkpoint.load_model(_WORKDIR.value)
    run_system_prompt = checkpoint.read_config(_WORKDIR.value).data.system_prompt
    return model, tokenizer, _SYSTEM.value or run_system_prompt


if __name__ == "__main__":
    cli.run(main)
