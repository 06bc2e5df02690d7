"""A decode step after a prefill: logits are those of the uncached model; weights for decoding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from cpgd_jax import models, sharding
from cpgd_jax.config import Lora
from cpgd_jax.models import decoder as decoder_lib
from cpgd_jax.models import kv_cache
from cpgd_jax.models.kv_cache import Cache, Store, Visible
from cpgd_jax.models.qwen2 import ModelConfig

V, Q, G, S, STEPS = 61, 2, 3, 6, 5
B = Q * G
CONFIG = ModelConfig(V, 2, 24, 40, 4, 2, 10)
GRID = {
    "grouped": {},
    "one_kv_head": {"num_kv_heads": 1},
    "untied": {"tie_embeddings": False},
    "llama": {"qkv_bias": False},
    "adapters": {"lora": Lora(rank=2, alpha=3.0, targets=("q", "o", "up"))},
}
MASK_QS = np.arange(S) >= np.array([[2], [0]])


def ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, V, shape)


def prepared(model, dtype=""):
    graphdef, params = nnx.split(model)
    decoder = decoder_lib.decoder(graphdef, params, dtype)
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    return decoder, decoder_lib.weights(graphdef, params, decoder.config.dtype, mesh)


def visible(column):
    columns = jnp.arange(STEPS)
    return Visible(
        prompt_mask_QS=jnp.asarray(MASK_QS),
        lane_B=jnp.arange(B),
        lane_slot_QG=jnp.arange(B).reshape(Q, G),
        page_mask_UW=jnp.zeros((0, STEPS), bool),
        page_slot_U=jnp.zeros(0, int),
        page_BJ=jnp.zeros((B, 1), int),
        recent_mask_BW=jnp.broadcast_to(columns <= column, (B, STEPS)),
    )


def decode(model, prompt_QS, response_BT, dtype=""):
    """[B, 1 + STEPS, V] logits after the prompt and after each token."""
    decoder, weights = prepared(model, dtype)
    c = decoder.config
    hidden_QD, k, v = model.prefill(jnp.asarray(prompt_QS), jnp.asarray(MASK_QS))
    prompts = zip(k.transpose(0, 1, 3, 4, 2), v.swapaxes(2, 3), strict=True)
    sizes = (c.num_kv_heads, c.head_dim, STEPS, c.dtype)
    cache = Cache(
        tuple(Store(*store) for store in prompts),
        (kv_cache.empty(0, *sizes),) * c.num_layers,
        (kv_cache.empty(B, *sizes),) * c.num_layers,
    )
    step = jax.jit(decoder_lib.step, static_argnums=0)
    logits = [jnp.repeat(model.head(hidden_QD), G, axis=0)]
    for t, token_B in enumerate(jnp.asarray(response_BT).T):
        position_B = jnp.asarray(np.repeat(MASK_QS.sum(1), G) + t)
        logits_BV, cache = step(decoder, weights, token_B, position_B, t, cache, visible(t))
        logits.append(logits_BV)
    return np.stack(logits, axis=1)


@pytest.mark.parametrize("change", GRID.values(), ids=GRID.keys())
def test_cached_logits_equal_those_of_the_whole_sequence(change):
    """Two prompts of unlike length, three responses each, decoded a token at a time."""
    model = tiny.random_model(dataclasses.replace(CONFIG, **change))
    prompt_QS, response_BT = ids(Q, S), ids(B, STEPS, seed=1)
    token_BT = np.concatenate([np.repeat(prompt_QS, G, 0), response_BT], axis=1)
    mask_BT = np.concatenate([np.repeat(MASK_QS, G, 0), np.ones((B, STEPS), bool)], axis=1)
    whole_BTV = models.logits(model, token_BT, mask_BT)[:, S - 1 :]
    got_BTV = decode(model, prompt_QS, response_BT)
    np.testing.assert_allclose(got_BTV, whole_BTV, rtol=1e-4, atol=1e-4)


def test_weights_are_cast_but_norms_are_not():
    model = tiny.random_model(CONFIG)
    decoder, weights = prepared(model, "bfloat16")
    assert decoder.config.dtype == "bfloat16" and model.config.dtype == "float32"
    assert weights.embed_VD.dtype == jnp.bfloat16 and weights.unembed_VD is None
    layer = weights.layers[1]
    assert layer["attention"]["q"][...].dtype == layer["mlp"]["down"][...].dtype == jnp.bfloat16
    assert layer["mlp_norm"][...].dtype == weights.final_norm_D.dtype == jnp.float32
    np.testing.assert_array_equal(layer["mlp_norm"][...], model.blocks.mlp_norm[...][1])
    exact, low = (decode(model, ids(Q, S), ids(B, STEPS, seed=1), d) for d in ("", "bfloat16"))
    np.testing.assert_array_equal(low[:, 0], exact[:, 0])  # the prefill is the model's own
    error = np.abs(low - exact)[:, 1:].max() / np.abs(exact).max()
    assert 1e-4 < error < 0.05
