"""Samples responses: `python -m experiments.sample --workdir=RUN_DIR --prompt="What is 2 + 3?"`.

The model is a run's newest checkpoint (--workdir) or a Hugging Face folder (--model). Questions
come from --prompt, or from the rows {question} of a JSON-lines file, in the chat template. To a
Qwen2.5-VL, --image=FILE (once or several times) shows what --prompt is about, and the rows' images
are read from below the file's folder.
"""

import functools
from collections.abc import Callable
from pathlib import Path

from absl import flags
from rich.console import Console
from rich.markup import escape

from cpgd_jax import checkpoint, cli, models
from cpgd_jax.data import batching, image_files, images, rows, sources
from cpgd_jax.data import prompts as prompts_lib
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.rollout import generate
from cpgd_jax.types import Example

_MODEL = flags.DEFINE_string("model", None, "Hugging Face folder: weights and tokenizer")
_WORKDIR = flags.DEFINE_string("workdir", None, "workdir of a run: its newest checkpoint")
_PROMPT = flags.DEFINE_string("prompt", None, "the question")
_PROMPTS = flags.DEFINE_string("prompts", None, "JSON lines {question}: many questions")
_IMAGES = flags.DEFINE_multi_string("image", [], "image that --prompt is about")
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
    examples, fetch = read_questions()
    model, tokenizer, system_prompt, pixels = load()
    reader = None
    if any(example.images for example in examples):
        images.check_model(model.config.vision, tokenizer.image_id)
        reader = images.Reader(fetch, images.settings(model.config.vision, *pixels))
    try:
        asked = [batching.prompt(e, tokenizer, system_prompt, reader) for e in examples]
    except rows.Broken as error:
        raise UserError(str(error)) from error
    groups = generate(
        model,
        [ids for ids, _ in asked],
        samples_per_prompt=_SAMPLES.value,
        max_new_tokens=_MAX_NEW_TOKENS.value,
        temperature=_TEMPERATURE.value,
        top_k=_TOP_K.value,
        top_p=_TOP_P.value,
        stop_ids=tokenizer.stop_ids,
        forbidden_ids=tokenizer.forbidden_ids,
        seed=_SEED.value,
        images=[shown for _, shown in asked],
    )
    console = Console(highlight=False)
    for example, group in zip(examples, groups, strict=True):
        console.print(f"\n[bold]{escape(example.prompt)}[/bold]", soft_wrap=True)
        for completion in group:
            console.print(describe(completion), style="dim")
            console.print(escape(tokenizer.decode(completion.tokens)), soft_wrap=True)


def describe(completion) -> str:
    end = "truncated" if completion.truncated else "ended"
    return f"-- {len(completion.tokens)} tokens, {end}, logp {sum(completion.logp):.2f}"


def read_questions() -> tuple[list[Example], Callable[[str], bytes]]:
    """(the questions, what reads their images)."""
    if (_PROMPT.value is None) == (_PROMPTS.value is None):
        raise UserError("give one of --prompt=TEXT and --prompts=FILE.jsonl")
    if _PROMPT.value is not None:
        return [Example("prompt", _PROMPT.value, "", images=tuple(_IMAGES.value))], read_image
    if _IMAGES.value:
        raise UserError("--image goes with --prompt; rows of --prompts name their own images")
    root = Path(_PROMPTS.value).parent.resolve()
    fetch = functools.partial(image_files.fetch, root=root)
    fields = rows.Fields(answer="")
    return list(sources.read_jsonl(_PROMPTS.value, "--prompts", fields, fetch=fetch)), fetch


def read_image(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"--image={path} cannot be read: {error.strerror}") from error


def load():
    """(model, tokenizer, system prompt, (fewest, most) pixels of an image)."""
    if (_MODEL.value is None) == (_WORKDIR.value is None):
        raise UserError("give one of --model=FOLDER and --workdir=RUN")
    if _MODEL.value is not None:
        tokenizer, model = tokenizer_lib.load(_MODEL.value), models.from_pretrained(_MODEL.value)
        return model, tokenizer, _SYSTEM.value or "none", ()
    model, tokenizer = checkpoint.load_model(_WORKDIR.value)
    data = checkpoint.read_config(_WORKDIR.value).data
    pixels = data.min_pixels, data.max_pixels
    return model, tokenizer, _SYSTEM.value or data.system_prompt, pixels


if __name__ == "__main__":
    cli.run(main)
