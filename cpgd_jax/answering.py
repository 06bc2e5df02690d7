"""A model answers benchmarks' items: chunks of similar length, each response kept at once."""

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from cpgd_jax import asking, checkpoint, jsonl, models, progress, sharding
from cpgd_jax.benchmarks import reading, scoring
from cpgd_jax.data import images, rows
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.rollout import generate


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
    min_pixels: int = 0  # an image is resized to so many at least; 0 = as the model was published
    max_pixels: int = 0  # and to so many at most
    seed: int = 0
    dtype: str = ""  # of the model and its cache; "" = float32
    chunk: int = 64  # items sampled together


class Answerer(NamedTuple):
    """A model, and how it is asked."""

    model: Any  # models.Qwen2 or models.Qwen25VL
    tokenizer: tokenizer_lib.Tokenizer
    sampling: Sampling  # nothing left to a default
    source: str  # where the model is from

    def asker(self, root: Path) -> asking.Asker:
        s, vision = self.sampling, self.model.config.vision
        settings = None
        if vision and not s.without_images:
            sides = vision.patch_size, vision.temporal_patch_size, vision.merge_size
            settings = images.Settings(s.min_pixels, s.max_pixels, *sides)
        return asking.Asker(self.tokenizer, s.system_prompt, root, s.max_prompt_tokens, settings)


def load(model_path: str | None, workdir: str | None, sampling: Sampling, tensor=1) -> Answerer:
    """Of a folder or GGUF file, or of the newest checkpoint of a run, on all devices. UserError.

    tensor: devices that each matrix is split over; the others split the rest of it and the items.
    """
    dtype = sampling.dtype or "float32"
    mesh = sharding.make_mesh(tensor=tensor)
    if model_path is not None:
        model = models.from_pretrained(model_path, dtype, mesh, param_dtype=dtype)
        tokenizer = tokenizer_lib.load(model_path)
        pixels, system_prompt = asking.pixels(model_path), "reasoning"
    else:
        model, tokenizer = checkpoint.load_model(workdir, mesh=mesh)
        data = checkpoint.read_config(workdir).data
        pixels, system_prompt = (data.min_pixels, data.max_pixels), data.system_prompt
    sampling = replace(
        sampling,
        system_prompt=sampling.system_prompt or system_prompt,
        min_pixels=sampling.min_pixels or pixels[0],
        max_pixels=sampling.max_pixels or pixels[1],
    )
    return Answerer(model, tokenizer, sampling, str(model_path or workdir))


def run(answerer: Answerer, loaded: Mapping[str, reading.Loaded], folder: Path):
    """{benchmark: ({item id: its rows}, report)}; rows are kept in NAME.responses.jsonl.

    UserError: the folder holds responses of other settings, or the items have images that the model
    can't see.
    """
    if not answerer.sampling.without_images:
        vision = answerer.model.config.vision
        asking.check_sees(loaded, vision, answerer.tokenizer.image_id)
    _remember(folder, _settings(answerer, loaded))
    return {
        name: (answer(answerer, found, folder / f"{name}.responses.jsonl"), {})
        for name, found in loaded.items()
    }


def answer(answerer: Answerer, loaded: reading.Loaded, path: Path) -> dict[str, list[dict]]:
    """Appends to `path` a row {id, sample, response, tokens, truncated} for each response that is
    not in it yet; an item that can't be asked gets rows with `error`. {item id: its rows}.

    Chunks are always the same, and one that is not complete is sampled again, so that an evaluation
    that was killed gives what it would have given.
    """
    sampling, asker = answerer.sampling, answerer.asker(loaded.root)
    prompts, errors = asker.prompts(loaded.items)
    order = sorted(prompts, key=lambda key: (len(prompts[key].tokens), key))
    chunks = [order[at : at + sampling.chunk] for at in range(0, len(order), sampling.chunk)]
    kept = scoring.by_item(path)
    done = {key for key, found in kept.items() if len(found) == sampling.samples}
    complete = {key for chunk in chunks if done.issuperset(chunk) for key in chunk}
    try:
        file = jsonl.Appender(path, lambda row: scoring.is_row(row) and row["id"] in complete)
        try:
            for row in _unasked(errors, sampling.samples):
                file.append(row)
            with progress.Progress(len(loaded.items), "item", len(complete) + len(errors)) as bar:
                for chunk in chunks:
                    if complete.issuperset(chunk):
                        continue
                    for row in _sample(answerer, asker, {key: prompts[key] for key in chunk}):
                        file.append(row)
                    bar.update(bar.done + len(chunk))
        finally:
            file.close()
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror}") from error
    return scoring.by_item(path)


def _unasked(errors: Mapping[str, str], samples: int) -> Iterator[dict]:
    for key, reason in errors.items():
        for sample in range(samples):
            yield {"id": key, "sample": sample, "response": "", "error": reason}


def _sample(answerer: Answerer, asker, prompts: Mapping[str, asking.Prompt]) -> Iterator[dict]:
    """Rows of the responses to one chunk."""
    sampling, tokenizer = answerer.sampling, answerer.tokenizer
    shown, errors = {}, {}
    for key, prompt in prompts.items():
        try:
            shown[key] = asker.patches(prompt)
        except rows.Broken as error:
            errors[key] = error.kind
    yield from _unasked(errors, sampling.samples)
    groups = generate(
        answerer.model,
        [prompts[key].tokens for key in shown],
        samples_per_prompt=sampling.samples,
        max_new_tokens=sampling.max_new_tokens,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        stop_ids=tokenizer.stop_ids,
        forbidden_ids=tokenizer.forbidden_ids,
        seed=sampling.seed,
        dtype=sampling.dtype,
        images=list(shown.values()) if any(shown.values()) else None,
    )
    for key, group in zip(shown, groups, strict=True):
        for sample, completion in enumerate(group):
            yield {
                "id": key,
                "sample": sample,
                "response": tokenizer.decode(completion.tokens),
                "tokens": len(completion.tokens),
                "truncated": completion.truncated,
            }


def _remember(folder: Path, settings: dict) -> None:
    """Writes what responses depend on. UserError: the folder holds those of other settings."""
    path = folder / "settings.json"
    text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
    try:
        if path.exists() and path.read_text(errors="replace") != text:
            known = jsonl.decode(path.read_bytes()) or {}
            changed = sorted(k for k in {*known, *settings} if known.get(k) != settings.get(k))
            raise UserError(
                f"{str(folder)!r} holds responses of other settings ({', '.join(changed)}):"
                " give another --output, or the same settings to go on"
            )
        path.write_text(text)
    except OSError as error:
        raise UserError(f"cannot write {str(path)!r}: {error.strerror}") from error


def _settings(answerer: Answerer, loaded: Mapping[str, reading.Loaded]) -> dict:
    """What responses depend on; of the items a checksum of their prompts."""
    sums = {
        name: zlib.crc32(repr([(i.id, i.prompt) for i in found.items]).encode("utf-8", "replace"))
        for name, found in loaded.items()
    }
    return {"source": answerer.source, **asdict(answerer.sampling), "items": sums}
