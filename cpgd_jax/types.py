"""The axis alphabet and the records that pass between stages.

Axes, written as suffixes of array names (`logp_BT`):

    Q prompts       G samples a prompt (the group)    B responses = Q*G, group by group
    S prompt or cache slots    T response tokens      V vocabulary    D width    F mlp width
    N query heads   K key/value heads   R = N/K       H head width    L layers

Prompts are padded on the left to S and responses on the right to T, so that response token t is
always column t and the last prompt token always column S-1. A mask is boolean; True counts.
Masks come from lengths, never from a comparison with the pad id.
"""

from typing import Any, NamedTuple

import jax
import numpy as np
from flax import struct

Array = jax.Array | np.ndarray


class Example(NamedTuple):
    """One problem of a data source."""

    id: str  # stable within its source
    prompt: str  # the question, without chat markup
    gold: str  # the reference answer, as the reward's verifier reads it
    target: str = ""  # a demonstration (supervised stage only)
    images: tuple[str, ...] = ()  # paths or places in its source, in the order of the prompt


class ImagePatches(NamedTuple):
    """An image as Qwen2-VL's processor cuts it: X = t * h * w patches, 2 x 2 neighbours together.

    C = 3 colours * 2 frames * 14 * 14 pixels. A prompt holds the image's placeholder id once for
    every 2 x 2 patches.
    """

    patch_XC: np.ndarray  # float32, normalised
    grid: tuple[int, int, int]  # t, h, w, in patches


class PromptBatch(NamedTuple):
    """Tokenised prompts on the host, left-padded."""

    examples: tuple[Example, ...]  # Q
    token_QS: np.ndarray  # int32
    mask_QS: np.ndarray  # bool, True = a prompt token
    images: tuple[tuple[ImagePatches, ...], ...] = ()  # Q, in the order of the prompt; () = none
    seen: tuple["Seen | None", ...] = ()  # Q, what the model sees of them; () = text only


class Patches(NamedTuple):
    """Images as the vision tower takes them: N windows with room for Y patches of C values each.

    A window is of one frame of one image. Rows that have images of their own: a leading axis W.
    """

    patch_NYC: Array  # float32
    position_NY2: Array  # int32, the patch's row and column in its image
    mask_NY: Array  # bool, True = a patch
    frame_N: Array  # int32, another for each frame of each image; -1 = an empty window
    unit_F: Array  # int32, which of the N * Y / merge_size**2 outputs each image token is


class Seen(NamedTuple):
    """A prompt with images, on the host; features, or the patches that a trained tower needs."""

    position_S3: np.ndarray  # int32, each token's place in time, rows and columns (M-RoPE)
    at_F: np.ndarray  # int32, which of the tokens are an image's
    feature_FD: np.ndarray | None  # what stands there instead of embeddings, from the tower
    patches: Patches | None


class Sight(NamedTuple):
    """What padded sequences see."""

    position_BT3: Array  # int32
    feature_BTD: Array  # in place of the embedding where the token is an image's


class Rollout(NamedTuple):
    """What the sampler returns, on the host: B = Q*G rows, row q*G + g is sample g of prompt q."""

    response_BT: np.ndarray  # int32, right-padded; the sampled stop token is included
    mask_BT: np.ndarray  # bool, True = sampled by the policy (stop token included, padding not)
    sampler_logp_BT: np.ndarray  # float32, under the law that was sampled; 0 where masked
    truncated_B: np.ndarray  # bool, True = hit the length cap without a stop token


class Completion(NamedTuple):
    """One sampled response, as the public `rollout.generate` returns it."""

    tokens: list[int]  # ids as sampled, the stop token included
    logp: list[float]  # ln-probability of each, under the law that was sampled
    truncated: bool  # no stop token within max_new_tokens


@struct.dataclass
class TrainBatch:
    """What an optimiser step consumes. Rows are responses; each repeats its group's prompt."""

    prompt_BS: Array  # int32, left-padded
    prompt_mask_BS: Array  # bool
    response_BT: Array  # int32, right-padded
    mask_BT: Array  # bool, True = the token is trained
    old_logp_BT: Array  # float32, trainer's ln-probability before the rollout's first update
    advantage_BT: Array  # float32, the response's advantage on each of its tokens
    group_B: Array  # int32, the prompt that a row belongs to
    ref_logp_BT: Array | None = None  # float32, the frozen reference's; None when no term uses it
    sampler_logp_BT: Array | None = None  # float32, the sampler's own; None when no term uses it
    epoch_logp_BT: Array | None = None  # float32, at the end of the epoch before; None in the first


class Spans(NamedTuple):
    """What each slot of a packed row sees: no later slot, and of those up to itself the slots of
    its own segment and of its prompt. All int32.
    """

    first_WU: Array  # where its own segment begins; itself for padding
    prompt_first_WU: Array  # its prompt's slots are prompt_first <= slot < prompt_end
    prompt_end_WU: Array


@struct.dataclass
class Packed:
    """Responses in full rows, each prompt once a row. Segments: prompts, then from slot U-C on the
    responses. A response's segment is its prompt's last token and its own tokens but the last, so
    that each of its slots predicts one trained token.
    """

    token_WU: Array  # int32
    position_WU: Array  # int32, or [W, U, 3] with images; a response goes on where its prompt ends
    spans: Spans
    target_WC: Array  # int32, the token that slot U-C+c predicts
    place_WC: Array  # int32, b * T + t of that token in the [B, T] arrays; B * T = padding
    # Where prompts have images, one of the two; P = U - C slots
    feature_WPD: Array | None = None
    patches: Patches | None = None  # its F is P


@struct.dataclass
class Microbatches:
    """An optimiser step's responses, cut up; every array has a leading axis M."""

    rows: TrainBatch  # B / M responses each
    packed: Packed  # the same responses; place_WC counts within its microbatch


@struct.dataclass
class TrainState:
    """Everything that training changes on the device; donated to the train step."""

    step: Array  # int32 [], optimiser steps done
    params: Any  # nnx.State of the model: float32 masters, or bfloat16 by optim.master_dtype
    opt_state: Any  # optax state, of the trained parameters
