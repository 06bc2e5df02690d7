"""Drawing one token a row by inverse CDF, with its ln-probability; temperature, top-k, top-p.

The random numbers of a token depend on (seed, step, prompt id, sample, token index) and nothing
else, so a response is the same whatever batch, slot, padding or device it was decoded in.
"""

import chex
import jax
import jax.numpy as jnp

BLOCK = 128  # ids a block of the two-level inverse CDF; divides Qwen's 151,936 and 152,064
ONE_BITS = 0x3F800000  # 1.0 in float32; of positive floats, bits have the order of the values
TOP_P_SLACK = 1e-6  # a set whose float32 mass misses top_p by less than this has reached it


def row_keys(key, prompt_id_B, sample_B):
    """A key a row, [B]: `key` folded over the prompt's id and the sample's index in its group."""
    fold = jax.vmap(jax.random.fold_in)
    key_B = jnp.broadcast_to(key, prompt_id_B.shape)
    return fold(fold(key_B, prompt_id_B), sample_B)


def uniforms(key_B, token_index):
    """Two uniforms in [0, 1) a row, [B, 2] float32. token_index: of its token, or one for all."""

    def one_row(key, token_index):
        return jax.random.uniform(jax.random.fold_in(key, token_index), (2,))

    return jax.vmap(one_row)(key_B, jnp.broadcast_to(token_index, key_B.shape))


def sample_token(logits_BV, uniform_B2, *, temperature=1.0, top_k=0, top_p=None, greedy=False):
    """Draws a token a row: (token_B int32, logp_B float32), logp under the law that was sampled.

    temperature: positive scalar, may be traced. top_k: static int, 0 = off; exactly k ids are kept,
    of equal logits the lowest ids. top_p: None = off (static) or a scalar in (0, 1], may be traced:
    the smallest set of most probable ids with mass >= top_p, after top-k, of equal probabilities
    (in float32) the lowest ids. greedy: static; takes the most probable id (lowest id of equals)
    and reports its ln-probability at temperature 1, untruncated. A logit of -inf is never drawn; a
    row must have one finite logit. The vocabulary is never sorted: top-k selects k ids, top-p
    searches for the probability of its last id.
    """
    chex.assert_rank((logits_BV, uniform_B2), 2)
    logits_BV = logits_BV.astype(jnp.float32)
    if greedy:
        token_B = jnp.argmax(logits_BV, axis=-1).astype(jnp.int32)
        return token_B, _pick(jax.nn.log_softmax(logits_BV), token_B)
    logits_BV = logits_BV / temperature
    if not 0 < top_k < logits_BV.shape[-1]:
        return inverse_cdf(logits_BV, uniform_B2, top_p)
    logits_BC, id_BC = jax.lax.top_k(logits_BV, top_k)
    index_B, logp_B = inverse_cdf(logits_BC, uniform_B2, top_p)
    return _pick(id_BC, index_B), logp_B


def inverse_cdf(logits_BV, uniform_B2, top_p=None):
    """Draws from softmax(logits) or its top-p set: (index_B int32, logp_B float32).

    Two levels: a block of ids by its mass with the first uniform, an id within that block with the
    second. Only sums over blocks are accumulated, so the cost is one exponential a logit.
    """
    V = logits_BV.shape[-1]
    peak_B1 = jax.lax.stop_gradient(logits_BV.max(axis=-1, keepdims=True))
    padded_BV = jnp.pad(logits_BV, ((0, 0), (0, -V % BLOCK)), constant_values=-jnp.inf)
    logits_BMW = padded_BV.reshape(len(logits_BV), -1, BLOCK)
    if top_p is not None:
        keep_BMW = _nucleus(jnp.exp(logits_BMW - peak_B1[..., None]), top_p)
        logits_BMW = jnp.where(keep_BMW, logits_BMW, -jnp.inf)
    mass_BM = jnp.exp(logits_BMW - peak_B1[..., None]).sum(axis=-1)
    block_B = _first_above(mass_BM, uniform_B2[:, 0])
    chosen_BW = _block(logits_BMW, block_B) - peak_B1
    within_B = _first_above(jnp.exp(chosen_BW), uniform_B2[:, 1])
    logp_B = _pick(chosen_BW, within_B) - jnp.log(mass_BM.sum(axis=-1))
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


def _nucleus(weight_BMW, top_p):
    """True for the fewest of the largest weights whose mass is top_p; of equals the lowest ids.

    weight_BMW: the largest of a row is 1. The smallest weight that is kept is found by bisection
    over its bits, a masked sum each: no sort.
    """

    def mass(keep_BMW):
        return jnp.where(keep_BMW, weight_BMW, 0.0).sum(axis=1).sum(axis=-1)

    def halve(_, bounds):
        low_B, high_B = bounds
        middle_B = (low_B + high_B) // 2
        enough_B = mass(weight_BMW >= _from_bits(middle_B)) >= target_B
        return jnp.where(enough_B, middle_B, low_B), jnp.where(enough_B, high_B, middle_B)

    target_B = jnp.maximum((top_p - TOP_P_SLACK) * mass(True), 1.0)  # never less than the first id
    low_B = jnp.zeros(len(weight_BMW), jnp.int32)
    low_B, _ = jax.lax.fori_loop(0, 30, halve, (low_B, low_B + ONE_BITS + 1))
    smallest_B11 = _from_bits(low_B)
    more_BMW, equal_BMW = weight_BMW > smallest_B11, weight_BMW == smallest_B11
    missing_B = (target_B - mass(more_BMW)) / smallest_B11[:, 0, 0]
    return more_BMW | (equal_BMW & _up_to(equal_BMW, jnp.ceil(missing_B)))


def _from_bits(bits_B):
    return jax.lax.bitcast_convert_type(bits_B, jnp.float32)[:, None, None]


def _up_to(mask_BMW, count_B):
    """True for every index up to that of the count-th True; everywhere where there are fewer."""
    B, M, W = mask_BMW.shape
    total_BM = jnp.cumsum(mask_BMW.sum(axis=-1), axis=-1)
    block_B = jnp.argmax(total_BM >= count_B[:, None], axis=-1)
    mask_BW = _block(mask_BMW, block_B)
    before_B = _pick(total_BM, block_B) - mask_BW.sum(axis=-1)
    within_B = jnp.argmax(before_B[:, None] + jnp.cumsum(mask_BW, axis=-1) >= count_B[:, None], -1)
    last_B = jnp.where(total_BM[:, -1] >= count_B, block_B * W + within_B, M * W)
    return jnp.arange(M * W).reshape(1, M, W) <= last_B[:, None, None]


def _block(x_BMW, block_B):
    return jnp.take_along_axis(x_BMW, block_B[:, None, None], axis=1)[:, 0]


def _pick(x_BM, index_B):
    return jnp.take_along_axis(x_BM, index_B[:, None], axis=-1)[:, 0]
