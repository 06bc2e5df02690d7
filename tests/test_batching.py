"""Prompts end at the last column, responses start at the first, masks count lengths."""

import numpy as np
import pytest

from cpgd_jax.data import batching, tokenizer
from cpgd_jax.errors import UserError
from cpgd_jax.types import Example

OWN = tokenizer.load()
EXAMPLES = [
    Example("a", "1+2=?", "3", "<think>1+2=3</think>"),
    Example("b", "10+10+10=?", "30", "<answer>"),
]


def test_prompts_end_at_the_last_column():
    batch = batching.prompt_batch(EXAMPLES, OWN, "none", 24)
    assert batch.token_QS.shape == batch.mask_QS.shape == (2, 24)
    assert batch.token_QS.dtype == np.int32 and batch.mask_QS.dtype == bool
    for example, token_S, mask_S in zip(EXAMPLES, batch.token_QS, batch.mask_QS, strict=True):
        ids = OWN.encode_prompt(example.prompt)
        assert token_S[mask_S].tolist() == ids
        assert mask_S.tolist() == [False] * (24 - len(ids)) + [True] * len(ids)
        assert (token_S[~mask_S] == OWN.pad_id).all()


def test_a_prompt_of_exactly_the_limit_fits_and_one_more_token_is_refused():
    length = len(OWN.encode_prompt(EXAMPLES[1].prompt))
    assert batching.prompt_batch(EXAMPLES, OWN, "none", length).mask_QS[1].all()
    with pytest.raises(UserError, match=rf"prompt 'b' has {length} tokens, over config\.rollout"):
        batching.prompt_batch(EXAMPLES, OWN, "none", length - 1)


def test_the_system_prompt_is_in_the_prompt():
    with pytest.raises(UserError, match="tokens, over"):
        batching.prompt_batch(EXAMPLES, OWN, "reasoning", 24)


def test_demonstrations_start_at_column_0_and_end_in_a_stop():
    _, batch = batching.demonstration_batch(EXAMPLES, OWN, "none", 24, 12)
    for example, token_T, mask_T in zip(EXAMPLES, batch.response_BT, batch.mask_BT, strict=True):
        ids = [*OWN.encode(example.target), OWN.stop_ids[0]]
        assert token_T[: len(ids)].tolist() == ids
        assert mask_T.tolist() == [True] * len(ids) + [False] * (12 - len(ids))
    assert batch.group_B.tolist() == [0, 1]


def test_a_demonstration_keeps_its_stop_or_is_refused():
    length = len(OWN.encode(EXAMPLES[0].target)) + 1
    assert batching.demonstration_batch(EXAMPLES, OWN, "none", 24, length)[1].mask_BT[0].all()
    with pytest.raises(UserError, match=f"demonstration of 'a' has {length} tokens"):
        batching.demonstration_batch(EXAMPLES, OWN, "none", 24, length - 1)


def test_masks_do_not_come_from_the_pad_id():
    """A pad id inside a response is a token like any other."""
    target = OWN.fast.decode([OWN.pad_id])
    _, batch = batching.demonstration_batch([Example("p", "1=?", "1", target)], OWN, "none", 24, 4)
    assert batch.response_BT[0, 0] == OWN.pad_id
    assert batch.mask_BT.tolist() == [[True, True, False, False]]
