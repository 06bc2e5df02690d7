"""Multiplications and additions that a train step cannot do without, from sizes and lengths.

Model FLOPs as of arXiv 2204.02311, appendix B: matrix products only, the backward pass twice the
forward pass, nothing for what is computed again. A group's prompt counts once, attention counts
what is seen, the head counts the trained tokens, and the embedding, a look-up, nothing.
"""

from typing import NamedTuple

import numpy as np


class Work(NamedTuple):
    """What goes through a model."""

    tokens: int  # through the blocks
    pairs: int  # a query and a key that it sees, summed over the queries
    head_tokens: int


def forward(model, work: Work) -> int:
    """Floating-point operations of one forward pass. model: a ModelConfig or a `config.Model`."""
    D, F, H = model.hidden_size, model.mlp_size, model.head_dim
    N, K = model.num_heads, model.num_kv_heads
    weights = D * (N + 2 * K) * H + N * H * D + 3 * D * F
    layer = 2 * weights * work.tokens + 4 * N * H * work.pairs
    return model.num_layers * layer + 2 * D * model.vocab_size * work.head_tokens


def train_step(model, work: Work) -> int:
    """Of forward and backward pass, every parameter trained."""
    return 3 * forward(model, work)


def work(prompt_mask_BS, mask_BT, group_B) -> Work:
    """The work of a batch of responses (the arrays of a `types.TrainBatch`).

    The last token of a prompt and all but the last of a response predict the response's tokens.
    """
    length_B = np.asarray(mask_BT).sum(axis=1)
    before_B = np.asarray(prompt_mask_BS).sum(axis=1) - 1
    _, first_Q = np.unique(np.where(length_B > 0, group_B, -1), return_index=True)
    before_Q = before_B[first_Q[length_B[first_Q] > 0]]
    pairs_B = length_B * before_B + length_B * (length_B + 1) // 2
    return Work(
        tokens=int(before_Q.sum() + length_B.sum()),
        pairs=int((before_Q * (before_Q + 1) // 2).sum() + pairs_B.sum()),
        head_tokens=int(length_B.sum()),
    )
