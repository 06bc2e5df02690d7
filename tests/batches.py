"""Random batches for the tests of losses and advantages."""

import numpy as np

from cpgd_jax.types import TrainBatch


def batch(seed=0, Q=2, G=3, T=5, spread=0.5, lengths=None):
    """Keyword arguments of policy_loss: B = Q*G rows, at least one token each unless told."""
    rng = np.random.default_rng(seed)
    B = Q * G
    length_B = rng.integers(1, T + 1, B) if lengths is None else np.asarray(lengths)
    old = rng.normal(-1.5, 0.7, (B, T))
    return {
        "logp_BT": (old + rng.normal(0, spread, (B, T))).astype(np.float32),
        "old_logp_BT": old.astype(np.float32),
        "advantage_B": rng.normal(size=B).astype(np.float32),
        "mask_BT": np.arange(T) < length_B[:, None],
        "group_B": np.repeat(np.arange(Q) * 7 + 3, G).astype(np.int32),
    }


def train_batch(prompts, lengths, T=None, vocab_size=99, seed=0) -> TrainBatch:
    """prompts: tokens of each group's prompt; lengths: tokens of each of its responses.

    Padding holds other tokens.
    """
    rng = np.random.default_rng(seed)
    S, T = max(prompts), T or max(max(row) for row in lengths)
    group_B = np.repeat(np.arange(len(prompts), dtype=np.int32), [len(row) for row in lengths])
    B = len(group_B)
    prompt_QS = rng.integers(1, vocab_size, (len(prompts), S)).astype(np.int32)
    prompt_mask_QS = np.arange(S) >= S - np.array(prompts)[:, None]
    return TrainBatch(
        prompt_BS=prompt_QS[group_B],
        prompt_mask_BS=prompt_mask_QS[group_B],
        response_BT=rng.integers(1, vocab_size, (B, T)).astype(np.int32),
        mask_BT=np.arange(T) < np.concatenate(lengths).astype(int)[:, None],
        old_logp_BT=rng.normal(-np.log(vocab_size), 0.3, (B, T)).astype(np.float32),
        advantage_BT=np.repeat(rng.normal(size=(B, 1)), T, axis=1).astype(np.float32),
        group_B=group_B,
    )


def rows(batch, index):
    return {k: v[index] for k, v in batch.items()}


def pad(batch, T, value=np.nan):
    """Wider padding, filled with `value`."""

    def one(x):
        if np.ndim(x) != 2:
            return x
        fill = False if x.dtype == bool else value
        return np.concatenate([x, np.full((len(x), T - x.shape[1]), fill, x.dtype)], axis=1)

    return {k: one(v) for k, v in batch.items()}
