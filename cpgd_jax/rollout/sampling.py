"""Drawing one token a row by inverse CDF, with its ln-probability; temperature, top-k, top-p.

The random numbers of a token depend on (seed, step, prompt id, sample, token index) and nothing
else, so a response is the same whatever batch, slot, padding or device it was decoded in.
"""

import chex
import jax
import jax.numpy as jnp

BLOCK = 128  # ids a block of the two-level inverse CDF; divides Qwen's 151,936 and 152,064
TOP_P_SLACK = 1e-6  # a set whose float32 mass misses top_p by less than this has reached it


def row_keys(key, prompt_id_B, sample_B):
    """A key a row, [B]: `key` folded over the prompt's id and the sample's index in its group."""
    fold = jax.vmap(jax.random.fold_in)
    key_B = jnp.broadcast_to(key, prompt_id_B.shape)
    return fold(fold(key_B, prompt_id_B), sample_B)


def uniforms(key_B, token_index):
    """Two uniforms in [0, 1) a row for the token at `token_index`: [B, 2] float32."""

    def one_row(key):
        return jax.random.uniform(jax.random.fold_in(key, token_index), (2,))

    return jax.vmap(one_row)(key_B)


def sample_token(logits_BV, uniform_B2, *, temperature=1.0, top_k=0, top_p=None, greedy=False):
    """Draws a token a row: (token_B int32, logp_B float32), logp under the law that was sampled.

    temperature: positive scalar, may be traced. top_k: static int, 0 = off; exactly k ids are kept,
    of equal logits the lowest ids. top_p: None = off (static) or a scalar in (0, 1], may be traced:
    the smallest set of most probable ids with mass >= top_p, after top-k, ties to the lowest ids.
    greedy: static; takes the most probable id (lowest id of equals) and reports its ln-probability
    at temperature 1, untruncated. The vocabulary is sorted only for top_p without top_k. A logit of
    -inf is never drawn; a row must have one finite logit.
    """
    chex.assert_rank((logits_BV, uniform_B2), 2)
    logits_BV = logits_BV.astype(jnp.float32)
    if greedy:
        token_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
        return token_B, _pick(jax.nn.log_softmax(logits_BV), token_B)
    logits_BV = logits_BV / temperature
    if not top_k and top_p is None:
        return inverse_cdf(logits_BV, uniform_B2)
    V = logits_BV.shape[-1]
    logit_BC, id_BC = jax.lax.top_k(logits_BV, min(top_k or V, V))
    if top_p is not None:
        logit_BC = jnp.where(_nucleus(logit_BC, top_p), logit_BC, -jnp.inf)
    index_B, logp_B = inverse_cdf(logit_BC, uniform_B2)
    return _pick(id_BC, index_B), logp_B


def inverse_cdf(logits_BV, uniform_B2):
    """Draws from softmax(logits): (index_B int32, logp_B float32).

    Two levels: a block of ids by its mass with the first uniform, an id within that block with the
    second. Only sums over blocks are accumulated, so the cost is one exponential a logit.
    """
    V = logits_BV.shape[-1]
    peak_B1 = jax.lax.stop_gradient(logits_BV.max(axis=-1, keepdims=True))
    padded_BV = jnp.pad(logits_BV, ((0, 0), (0, -V % BLOCK)), constant_values=-jnp.inf)
    block_BMW = padded_BV.reshape(len(logits_BV), -1, BLOCK)
    mass_BM = jnp.exp(block_BMW - peak_B1[..., None]).sum(axis=-1)
    block_B = _first_above(mass_BM, uniform_B2[:, 0])
    chosen_BW = jnp.take_along_axis(block_BMW, block_B[:, None, None], axis=1)[:, 0]
    within_B = _first_above(jnp.exp(chosen_BW - peak_B1), uniform_B2[:, 1])
    logp_B = _pick(chosen_BW, within_B) - peak_B1[:, 0] - jnp.log(mass_BM.sum(axis=-1))
    return block_B * BLOCK + within_B, jnp.minimum(logp_B, 0.0)


def _first_above(weight_BM, uniform_B):
    """The first index whose cumulative weight exceeds uniform * total; never one of weight 0.

    A parallel cumulative sum may move by a rounding where the weight is 0, hence the explicit test;
    when rounding leaves no index above, it is the last of positive weight.
    """
    total_BM = jnp.cumsum(weight_BM, axis=-1)
    positive_BM = weight_BM > 0
    above_BM = positive_BM & (total_BM > uniform_B[:, None] * total_BM[:, -1:])
    last_B = weight_BM.shape[-1] - 1 - jnp.argmax(positive_BM[:, ::-1], axis=-1)
    found_B = above_BM.any(axis=-1)
    return jnp.where(found_B, jnp.argmax(above_BM, axis=-1), last_B).astype(jnp.int32)


def _nucleus(logit_BC, top_p):
    """Of logits in descending order, True for the shortest prefix with mass >= top_p."""
    probability_BC = jax.nn.softmax(logit_BC, axis=-1)
    before_BC = jnp.cumsum(probability_BC, axis=-1) - probability_BC
    keep_BC = before_BC < top_p - TOP_P_SLACK
    return keep_BC.at[:, 0].set(True)


def _pick(x_BM, index_B):
    return jnp.take_along_axis(x_BM, index_B[:, None], axis=-1)[:, 0]
