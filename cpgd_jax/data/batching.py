"""Examples -> fixed-shape token arrays: prompts left-padded, demonstrations right-padded."""

import numpy as np

from cpgd_jax.data import images
from cpgd_jax.data.tokenizer import Tokenizer
from cpgd_jax.errors import UserError
from cpgd_jax.types import Example, ImagePatches, PromptBatch, TrainBatch


def prompt_batch(
    examples: list[Example],
    tokenizer: Tokenizer,
    system_prompt: str,
    max_prompt_len: int,
    reader: images.Reader | None = None,
) -> PromptBatch:
    """Tokenised prompts, left-padded to max_prompt_len; a longer one is a UserError, never cut.

    reader: of the examples' images; None = they have none.
    """
    encoded = [prompt(example, tokenizer, system_prompt, reader) for example in examples]
    token_QS = np.full((len(examples), max_prompt_len), tokenizer.pad_id, np.int32)
    mask_QS = np.zeros(token_QS.shape, bool)
    for q, (ids, _) in enumerate(encoded):
        check_length(examples[q], len(ids), max_prompt_len)
        token_QS[q, max_prompt_len - len(ids) :] = ids
        mask_QS[q, max_prompt_len - len(ids) :] = True
    return PromptBatch(tuple(examples), token_QS, mask_QS, tuple(shown for _, shown in encoded))


def prompt(
    example: Example, tokenizer: Tokenizer, system_prompt: str, reader: images.Reader | None
) -> tuple[list[int], tuple[ImagePatches, ...]]:
    """(ids, its images). Raises rows.Broken for an image that cannot be used."""
    shown = tuple(reader(name) for name in example.images)
    counts = tuple(len(image.patch_XC) // reader.settings.merge_size**2 for image in shown)
    return tokenizer.encode_prompt(example.prompt, system_prompt, counts), shown


def length(
    example: Example, tokenizer: Tokenizer, system_prompt: str, reader: images.Reader | None
) -> int:
    """Tokens of its prompt; of its images only the headers are read."""
    counts = tuple(reader.tokens(name) for name in example.images)
    return len(tokenizer.encode_prompt(example.prompt, system_prompt, counts))


def check_length(example: Example, tokens: int, limit: int) -> None:
    if tokens > limit:
        raise UserError(
            f"prompt {example.id!r} has {tokens} tokens, over config.rollout.max_prompt_len"
            f" {limit}: raise the limit or drop the row"
        )


def demonstration_batch(
    examples: list[Example],
    tokenizer: Tokenizer,
    system_prompt: str,
    max_prompt_len: int,
    max_response_len: int,
    reader: images.Reader | None = None,
) -> tuple[PromptBatch, TrainBatch]:
    """Prompts and their target responses, each closed by the first stop id (supervised stage)."""
    prompts = prompt_batch(examples, tokenizer, system_prompt, max_prompt_len, reader)
    response_BT = np.full((len(examples), max_response_len), tokenizer.pad_id, np.int32)
    mask_BT = np.zeros(response_BT.shape, bool)
    for b, example in enumerate(examples):
        ids = [*tokenizer.encode(example.target), tokenizer.stop_ids[0]]
        if len(ids) > max_response_len:
            raise UserError(
                f"demonstration of {example.id!r} has {len(ids)} tokens, over"
                f" config.rollout.max_response_len {max_response_len}: raise the limit"
            )
        response_BT[b, : len(ids)] = ids
        mask_BT[b, : len(ids)] = True
    zeros_BT = np.zeros(response_BT.shape, np.float32)
    group_B = np.arange(len(examples), dtype=np.int32)
    batch = TrainBatch(
        prompt_BS=prompts.token_QS,
        prompt_mask_BS=prompts.mask_QS,
        response_BT=response_BT,
        mask_BT=mask_BT,
        old_logp_BT=zeros_BT,
        advantage_BT=zeros_BT,
        group_B=group_B,
    )
    return prompts, batch
