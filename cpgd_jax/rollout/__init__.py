"""Sampling responses: `generate` for people, `engine.sample` for training, `scoring` after it."""

import zlib

import numpy as np
from flax import nnx

from cpgd_jax import types
from cpgd_jax.errors import UserError
from cpgd_jax.models import seeing
from cpgd_jax.rollout import engine, memory
from cpgd_jax.rollout.shapes import Requests

__all__ = ["generate", "plan"]
MIN_BUCKET = 16  # prompt lengths are padded to powers of two from here, so few shapes are compiled


def generate(
    model,
    prompts,
    samples_per_prompt: int = 8,
    max_new_tokens=128,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    stop_ids=(1,),
    seed: int = 0,
    slots: int | None = None,
    forbidden_ids=(),
    dtype: str = "",
    cache_dtype: str = "",
    images=None,
) -> list[list[types.Completion]]:
    """Samples `samples_per_prompt` responses to each prompt: Q lists of G `Completion`s.

    model: an NNX module such as `models.Qwen2`. prompts: Q lists of token ids. temperature 0 is
    greedy; the ln-probabilities reported then are those at temperature 1, else those of the law
    sampled (after temperature, top-k, top-p). stop_ids: each ends a response and is its last token.
    forbidden_ids: never sampled. max_new_tokens: the length cap, or one a prompt. slots: at most so
    many responses are decoded at a time; None = as many as fit into memory, see `plan`. dtype,
    cache_dtype: of decoding and of its keys and values ("float32", "bfloat16"; "" = the model's).
    images: for a Qwen2.5-VL, a tuple of `types.ImagePatches` a prompt, in which the image id stands
    once for each of their tokens; None = text only. Ids that stand for images are never sampled.
    The samples of a prompt depend on the seed, the prompt and how often the same prompt stood
    earlier in the list, not on the other prompts, their order, `slots` or devices.
    Raises UserError for arguments outside their range.
    """
    prompts = [np.asarray(p).reshape(-1) for p in prompts]
    stop_ids, forbidden_ids = tuple(stop_ids), tuple(forbidden_ids)
    vocab_size = model.config.vocab_size
    _check_prompts(prompts, vocab_size)
    _check_ids("stop id", stop_ids, vocab_size)
    _check_ids("forbidden id", forbidden_ids, vocab_size)
    if len(set(forbidden_ids)) == vocab_size:
        raise UserError("forbidden_ids holds every id: leave at least one that can be sampled")
    _check_law(temperature, top_k, top_p)
    _check_counts(samples_per_prompt, max_new_tokens, slots, len(prompts))
    for name, value in (("dtype", dtype), ("cache_dtype", cache_dtype)):
        if value not in ("", "float32", "bfloat16"):
            raise UserError(f"{name} is {value!r}: give 'float32', 'bfloat16' or ''")
    if not prompts:
        return []
    graphdef, params = nnx.split(model)
    seen = seeing.look(graphdef, params, prompts, images, engine.mesh_of(params))
    rollout = engine.sample(
        graphdef,
        params,
        *pad_prompts(prompts),
        prompt_id_Q=prompt_ids(prompts, images),
        group=samples_per_prompt,
        max_new_tokens=np.reshape(max_new_tokens, (-1, 1)),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        stop_ids=stop_ids,
        forbidden_ids=forbidden_ids,
        key=(seed, 0),
        slots=slots,
        dtype=dtype,
        cache_dtype=cache_dtype,
        seen=seen,
    )
    completions = [_completion(rollout, row) for row in range(len(rollout.truncated_B))]
    G = samples_per_prompt
    return [completions[q * G : (q + 1) * G] for q in range(len(prompts))]


def plan(
    model,
    prompts,
    samples_per_prompt: int = 8,
    max_new_tokens=128,
    slots: int | None = None,
    cache_dtype: str = "",
) -> memory.Plan:
    """What `generate` would hold on each device and the most slots that fit; allocates nothing.

    Raises UserError when `slots` do not fit.
    """
    prompts = [np.asarray(p).reshape(-1) for p in prompts]
    _check_prompts(prompts, model.config.vocab_size)
    _check_counts(samples_per_prompt, max_new_tokens, slots, len(prompts))
    asked = Requests(
        len(prompts), samples_per_prompt, max(map(len, prompts)), int(np.max(max_new_tokens))
    )
    mesh = engine.mesh_of(nnx.split(model)[1])
    return memory.plan(model.config, mesh, asked, slots, cache_dtype or model.config.dtype)


def pad_prompts(prompts) -> tuple[np.ndarray, np.ndarray]:
    """Left-padded (token_QS int32, mask_QS bool), S the next power of two (at least 16)."""
    S = max(MIN_BUCKET, 1 << (max(map(len, prompts)) - 1).bit_length())
    token_QS = np.zeros((len(prompts), S), np.int32)
    mask_QS = np.zeros((len(prompts), S), bool)
    for q, prompt in enumerate(prompts):
        token_QS[q, S - len(prompt) :] = prompt
        mask_QS[q, S - len(prompt) :] = True
    return token_QS, mask_QS


def prompt_ids(prompts, images=None) -> np.ndarray:
    """A uint32 a prompt: a checksum of its tokens and images and how often they stood earlier."""
    seen: dict[bytes, int] = {}
    ids = []
    for prompt, shown in zip(prompts, images or ((),) * len(prompts), strict=True):
        data = np.asarray(prompt, np.int32).tobytes()
        data += b"".join(np.ascontiguousarray(image.patch_XC).tobytes() for image in shown)
        seen[data] = seen.get(data, 0) + 1
        ids.append(zlib.crc32(data, seen[data]))
    return np.asarray(ids, np.uint32)


def _completion(rollout: types.Rollout, row: int) -> types.Completion:
    mask_T = rollout.mask_BT[row]
    return types.Completion(
        rollout.response_BT[row][mask_T].tolist(),
        rollout.sampler_logp_BT[row][mask_T].tolist(),
        bool(rollout.truncated_B[row]),
    )


def _check_prompts(prompts, vocab_size: int):
    for q, prompt in enumerate(prompts):
        if not len(prompt):
            raise UserError(f"prompt {q} is empty: give it at least one token, such as the BOS id")
        if not np.issubdtype(prompt.dtype, np.integer):
            raise UserError(f"prompt {q} holds {prompt.dtype} values: give token ids, not text")
        _check_ids(f"prompt {q}: token id", prompt, vocab_size)


def _check_ids(name: str, ids, vocab_size: int):
    for i in ids:
        if not 0 <= i < vocab_size:
            raise UserError(f"{name} {i} is outside the vocabulary: give 0..{vocab_size - 1}")


def _check_counts(samples_per_prompt, max_new_tokens, slots, prompts: int):
    for name, value in (
        ("samples_per_prompt", samples_per_prompt),
        ("max_new_tokens", np.min(max_new_tokens)),
        ("slots", 1 if slots is None else slots),
    ):
        if value < 1:
            raise UserError(f"{name} is {value}: give 1 or more")
    if np.size(max_new_tokens) not in (1, prompts):
        count = np.size(max_new_tokens)
        raise UserError(f"max_new_tokens holds {count} caps for {prompts} prompts: give one each")


def _check_law(temperature, top_k, top_p):
    if not 0 <= temperature < float("inf"):
        raise UserError(f"temperature is {temperature}: give a positive number, or 0 for greedy")
    if top_k < 0 or int(top_k) != top_k:
        raise UserError(f"top_k is {top_k}: give a positive whole number, or 0 to keep every token")
    if not 0 < top_p <= 1:
        raise UserError(f"top_p is {top_p}: give a mass above 0 and up to 1; 1 keeps every token")
