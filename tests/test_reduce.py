import numpy as np
import pytest
import twins
from batches import batch

from cpgd_jax.algorithms import CHOICES
from cpgd_jax.errors import UserError
from cpgd_jax.losses.reduce import token_weights

LENGTHS = np.array([1, 3, 4, 4])  # prompt 1 has responses of 1 and 3 tokens, prompt 2 of 4 and 4
REFERENCE = {
    "prompt_token_mean": [0.125, 0.125, 0.0625, 0.0625],
    "token_mean": [1 / 12] * 4,
    "seq_mean_token_mean": [0.25, 1 / 12, 0.0625, 0.0625],
    "seq_mean_token_sum": [0.25] * 4,
    "constant_length": [0.03125] * 4,
}


@pytest.mark.parametrize("aggregation", CHOICES["aggregation"])
def test_reference_weights(aggregation):
    mask = np.arange(6) < LENGTHS[:, None]
    got = np.asarray(token_weights(aggregation, mask, np.array([1, 1, 2, 2]), 8))
    want = np.where(mask, np.array(REFERENCE[aggregation])[:, None], 0)
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("aggregation", CHOICES["aggregation"])
@pytest.mark.parametrize("group", [[0, 0, 1, 1, 2, 2], [5, 2, 5, 9, 2, 9], [1000, -4, -4, 8, 8, 8]])
@pytest.mark.parametrize("lengths", [[1, 4, 2, 3, 5, 5], [0, 4, 0, 0, 1, 0], [0] * 6])
def test_weights_equal_the_twin(aggregation, group, lengths):
    mask = batch(lengths=lengths)["mask_BT"]
    got = token_weights(aggregation, mask, np.array(group), 8)
    want = twins.weights(aggregation, mask, group, 8)
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-6)


def test_a_mask_with_holes_counts_its_tokens():
    mask = np.array([[True, False, True, True], [False, True, False, False]])
    got = token_weights("seq_mean_token_mean", mask, np.array([0, 0]))
    np.testing.assert_allclose(np.asarray(got)[mask], [1 / 6, 1 / 6, 1 / 6, 1 / 2], rtol=1e-6)


def test_refusals():
    mask, group = np.ones((2, 3), bool), np.array([0, 0])
    with pytest.raises(UserError, match="'mean': pick one of"):
        token_weights("mean", mask, group)
    with pytest.raises(UserError, match="max_response_len"):
        token_weights("constant_length", mask, group)
    for bad in (
        (mask.astype(int), group),
        (mask, group[:1]),
        (mask, group * 1.0),
        (mask[0], group),
    ):
        with pytest.raises(AssertionError):
            token_weights("token_mean", *bad)
