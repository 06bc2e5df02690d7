"""A model answers benchmarks' items: chunks of similar length, each response kept at once."""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

from cpgd_jax import checkpoint, jsonl, models, progress
from cpgd_jax.benchmarks import reading, scoring
from cpgd_jax.benchmarks.records import Item
from cpgd_jax.data import rows
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.rollout import generate
from cpgd_jax.types import ImagePatches


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled."""

    samples: int = 1  # an item
    temperature: float = 0.0  # 0 = greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 = all
    max_new_tokens: int = 1024
    max_prompt_tokens: int = 8192  # longer prompts, images counted, are not asked and are reported
    system_prompt: str = ""  # a key of data.prompts.SYSTEM_PROMPTS; "": the run's, else reasoning
    without_images: bool = False  # ask the text alone
    seed: int = 0
    dtype: str = ""  # of decoding; "" = the model's
    chunk: int = 64  # items sampled together


class Prompt(NamedTuple):
    """An item as the model reads it."""

    tokens: list[int]
    images: tuple[ImagePatches, ...]


def run(
    model_path: str | None,
    workdir: str | None,
    loaded: Mapping[str, reading.Loaded],
    sampling: Sampling,
    folder: Path,
) -> dict[str, tuple[dict, dict]]:
    """{benchmark: ({item id: its rows}, report)}; rows are kept in NAME.responses.jsonl.

    The model is a folder or GGUF file, or the newest checkpoint of a run. UserError: the folder
    holds responses of other settings, or the items have images that the model can't see.
    """
    if model_path is not None:
        model, tokenizer = models.from_pretrained(model_path), tokenizer_lib.load(model_path)
        system_prompt = "reasoning"
    else:
        model, tokenizer = checkpoint.load_model(workdir)
        system_prompt = checkpoint.read_config(workdir).data.system_prompt
    sampling = replace(sampling, system_prompt=sampling.system_prompt or system_prompt)
    _remember(folder, _settings(model_path or workdir, sampling, loaded))
    return {
        name: (answer(model, tokenizer, found, sampling, folder / f"{name}.responses.jsonl"), {})
        for name, found in loaded.items()
    }


def answer(model, tokenizer, loaded: reading.Loaded, sampling: Sampling, path: Path):
    """Appends to `path` a row {id, sample, response, tokens, truncated} for each response that is
    not in it yet; an item that can't be asked gets rows with `error`. {item id: its rows}.

    Chunks are always the same, and one that is not complete is sampled again, so that an evaluation
    that was killed gives what it would have given.
    """
    prompts, errors = _prompts(model, tokenizer, loaded, sampling)
    order = sorted(prompts, key=lambda key: (len(prompts[key].tokens), key))
    chunks = [order[at : at + sampling.chunk] for at in range(0, len(order), sampling.chunk)]
    kept = scoring.by_item(path)
    done = {key for key, found in kept.items() if len(found) == sampling.samples}
    complete = {key for chunk in chunks if done.issuperset(chunk) for key in chunk}
    file = jsonl.Appender(path, lambda row: row.get("id") in complete)
    try:
        for key, reason in errors.items():
            for sample in range(sampling.samples):
                file.append({"id": key, "sample": sample, "response": "", "error": reason})
        with progress.Progress(len(loaded.items), "item", len(complete) + len(errors)) as bar:
            for chunk in chunks:
                if complete.issuperset(chunk):
                    continue
                for row in _sample(model, tokenizer, chunk, prompts, sampling):
                    file.append(row)
                bar.update(bar.done + len(chunk))
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror}") from error
    finally:
        file.close()
    return scoring.by_item(path)


def _remember(folder: Path, settings: dict) -> None:
    """Writes what responses depend on. UserError: the folder holds those of other settings."""
    path = folder / "settings.json"
    text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
    if path.exists() and path.read_text() != text:
        known = jsonl.decode(path.read_bytes()) or {}
        changed = sorted(k for k in {*known, *settings} if known.get(k) != settings.get(k))
        raise UserError(
            f"{str(folder)!r} holds responses of other settings ({', '.join(changed)}):"
            " give another --output, or the same settings to go on"
        )
    path.write_text(text)


def _settings(source: str, sampling: Sampling, loaded: Mapping[str, reading.Loaded]) -> dict:
    """What responses depend on; of the items a checksum of their prompts."""
    sums = {
        name: zlib.crc32(repr([(i.id, i.prompt) for i in found.items]).encode("utf-8", "replace"))
        for name, found in loaded.items()
    }
    return {"source": str(source), **asdict(sampling), "items": sums}


def _prompts(model, tokenizer, loaded, sampling) -> tuple[dict[str, Prompt], dict[str, str]]:
    """({item id: its prompt}, {item id: why it can't be asked})."""
    prompts, errors = {}, {}
    for item in loaded.items:
        try:
            prompt = _prompt(model, tokenizer, item, loaded.root, sampling)
        except rows.Broken as error:
            errors[item.id] = error.kind
            continue
        if len(prompt.tokens) > sampling.max_prompt_tokens:
            errors[item.id] = "prompt too long"
        else:
            prompts[item.id] = prompt
    return prompts, errors


def _prompt(model, tokenizer, item: Item, root: Path, sampling: Sampling) -> Prompt:
    if not item.images or sampling.without_images:
        if not item.prompt.strip():
            raise rows.Broken("no text", "its question is an image")
        return Prompt(tokenizer.encode_prompt(item.prompt, sampling.system_prompt), ())
    raise UserError(
        f"item {item.id!r} has images, which this model can't see: give one that can, or"
        " --without_images to ask the text alone"
    )


def _sample(model, tokenizer, chunk, prompts: Mapping[str, Prompt], sampling) -> Iterator[dict]:
    groups = generate(
        model,
        [prompts[key].tokens for key in chunk],
        samples_per_prompt=sampling.samples,
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        stop_ids=tokenizer.stop_ids,
        forbidden_ids=tokenizer.forbidden_ids,
        seed=sampling.seed,
        dtype=sampling.dtype,
        images=[prompts[key].images for key in chunk] if model.config.vision else None,
    )
    for key, group in zip(chunk, groups, strict=True):
        for sample, completion in enumerate(group):
            yield {
                "id": key,
                "sample": sample,
                "response": tokenizer.decode(completion.tokens),
                "tokens": len(completion.tokens),
                "truncated": completion.truncated,
            }
