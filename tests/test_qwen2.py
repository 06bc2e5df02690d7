"""The decoder against a float64 NumPy twin written from its published definition; invariants."""

import dataclasses

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from cpgd_jax import models, sharding
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2

CONFIG = ModelConfig(
    vocab_size=61,
    num_layers=3,
    hidden_size=24,
    mlp_size=40,
    num_heads=4,
    num_kv_heads=2,
    head_dim=10,
    rope_theta=1000.0,
)
GRID = {
    "grouped": {},
    "one_kv_head": {"num_kv_heads": 1},
    "no_groups": {"num_kv_heads": 4, "head_dim": 6},
    "untied": {"tie_embeddings": False},
    "llama": {"qkv_bias": False, "rope_theta": 1e5, "norm_eps": 1e-5},
}


def make(config=CONFIG, seed=0):
    """A model whose every parameter is random: biases and norm scales too."""
    graphdef, abstract = nnx.split(nnx.eval_shape(lambda: Qwen2(config, nnx.Rngs(0))))
    rng = np.random.default_rng(seed)
    draw = lambda x: jnp.asarray(0.3 * rng.normal(size=x.shape) + 0.1, jnp.float32)  # noqa: E731
    return nnx.merge(graphdef, jax.tree.map(draw, abstract))


def ids(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, CONFIG.vocab_size, shape).astype(np.int32)


# The twin: one row, one head, one position at a time; rotation as a complex multiplication.


def twin_logits(model, token_T):
    c = model.config
    state = nnx.to_flat_state(nnx.state(model, nnx.Param))
    params = {".".join(path): np.asarray(v[...], np.float64) for path, v in state}
    x_TD = params["embed"][token_T]
    for layer in range(c.num_layers):
        p = {k.removeprefix("blocks."): v[layer] for k, v in params.items() if "blocks" in k}
        x_TD = x_TD + twin_attention(c, p, twin_norm(x_TD, p["attention_norm"], c.norm_eps))
        y_TD = twin_norm(x_TD, p["mlp_norm"], c.norm_eps)
        gate_TF = y_TD @ p["mlp.gate"]
        x_TD = x_TD + (gate_TF / (1 + np.exp(-gate_TF)) * (y_TD @ p["mlp.up"])) @ p["mlp.down"]
    head_VD = params["embed" if c.tie_embeddings else "unembed"]
    return twin_norm(x_TD, params["final_norm"], c.norm_eps) @ head_VD.T


def twin_norm(x_TD, scale_D, eps):
    return x_TD / np.sqrt((x_TD**2).mean(-1, keepdims=True) + eps) * scale_D


def twin_rotate(x_TH, theta):
    half = x_TH.shape[1] // 2
    pair_Th = x_TH[:, :half] + 1j * x_TH[:, half:]
    speed_h = theta ** (-np.arange(half) / half)
    turned_Th = pair_Th * np.exp(1j * np.arange(len(x_TH))[:, None] * speed_h)
    return np.concatenate([turned_Th.real, turned_Th.imag], axis=1)


def twin_attention(c, p, x_TD):
    out_TD = np.zeros_like(x_TD)
    for n in range(c.num_heads):
        k = n // (c.num_heads // c.num_kv_heads)
        bias = (lambda name, i: p[f"attention.{name}_bias"][i]) if c.qkv_bias else lambda *_: 0.0
        q_TH = twin_rotate(x_TD @ p["attention.q"][:, n] + bias("q", n), c.rope_theta)
        k_TH = twin_rotate(x_TD @ p["attention.k"][:, k] + bias("k", k), c.rope_theta)
        v_TH = x_TD @ p["attention.v"][:, k] + bias("v", k)
        for t in range(len(x_TD)):
            score_S = k_TH[: t + 1] @ q_TH[t] / np.sqrt(c.head_dim)
            weight_S = np.exp(score_S - score_S.max())
            out_TD[t] += weight_S @ v_TH[: t + 1] / weight_S.sum() @ p["attention.o"][n]
    return out_TD


@pytest.mark.parametrize("change", GRID.values(), ids=GRID.keys())
def test_equals_the_numpy_twin(change):
    model = make(dataclasses.replace(CONFIG, **change))
    token_BT = ids(2, 9)
    ours = np.asarray(models.logits(model, token_BT))
    theirs = np.stack([twin_logits(model, row) for row in token_BT])
    assert np.abs(theirs).max() > 0.5  # the parameters are large enough to matter
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pads", [0, 1, 3, 8])
def test_padding_and_company_change_nothing(pads, side):
    model, token_T = make(), ids(1, 7)[0]
    alone_TV = models.logits(model, token_T[None])[0]
    token_BT, mask_BT = ids(3, 7 + pads, seed=1), np.ones((3, 7 + pads), bool)
    columns = slice(pads, None) if side == "left" else slice(0, 7)
    mask_BT[1] = False
    mask_BT[1, columns], token_BT[1, columns] = True, token_T
    among_TV = models.logits(model, token_BT, mask_BT)[1, columns]
    np.testing.assert_allclose(among_TV, alone_TV, rtol=1e-5, atol=1e-5)


def test_later_tokens_change_nothing_earlier():
    model, token_BT = make(), ids(1, 10)
    changed_BT = token_BT.copy()
    changed_BT[0, 6] = (token_BT[0, 6] + 1) % CONFIG.vocab_size
    before, after = (np.asarray(models.logits(model, t))[0] for t in (token_BT, changed_BT))
    np.testing.assert_array_equal(before[:6], after[:6])
    assert (np.abs(before[6:] - after[6:]).max(axis=-1) > 1e-3).all()


def test_a_row_of_padding_only_is_finite():
    mask_BT = np.array([[True] * 4, [False] * 4])
    assert np.isfinite(models.logits(make(), ids(2, 4), mask_BT)).all()


def loss_of(graphdef, token_BT):
    def loss(params):
        model = nnx.merge(graphdef, params)
        logits_BTV = model.head(model.hidden(token_BT, jnp.ones(token_BT.shape, bool)))
        logp_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
        return -jnp.take_along_axis(logp_BTV, token_BT[:, 1:, None], axis=-1).mean()

    return loss


def equations(jaxpr) -> int:
    inner = (jax.extend.core.jaxprs_in_params(e.params) for e in jaxpr.eqns)
    return len(jaxpr.eqns) + sum(equations(getattr(j, "jaxpr", j)) for js in inner for j in js)


@pytest.mark.parametrize("remat", ["none", "block"])
def test_the_program_does_not_grow_with_depth(remat):
    def count(num_layers):
        config = dataclasses.replace(CONFIG, num_layers=num_layers, remat=remat)
        graphdef, params = nnx.split(nnx.eval_shape(lambda: Qwen2(config, nnx.Rngs(0))))
        loss = loss_of(graphdef, jnp.zeros((2, 8), jnp.int32))
        return equations(jax.make_jaxpr(jax.value_and_grad(loss))(params).jaxpr)

    assert count(2) == count(12) > 100


def test_bfloat16_computes_close_to_float32_with_float32_parameters():
    models_by = {d: make(dataclasses.replace(CONFIG, dtype=d)) for d in ("float32", "bfloat16")}
    exact, rounded = (models.logits(models_by[d], ids(2, 9)) for d in ("float32", "bfloat16"))
    assert rounded.dtype == jnp.float32
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(nnx.state(models_by["bfloat16"]))}
    assert dtypes == {jnp.dtype("float32")}
    assert 1e-4 < float(jnp.abs(rounded - exact).max() / jnp.abs(exact).max()) < 0.05


@pytest.mark.parametrize("change", GRID.values(), ids=GRID.keys())
def test_every_parameter_names_its_axes(change):
    config = dataclasses.replace(CONFIG, **change)
    state = nnx.state(nnx.eval_shape(lambda: Qwen2(config, nnx.Rngs(0))))
    for path, variable in nnx.to_flat_state(state):
        axes = variable.get_metadata()["logical_axes"]
        assert len(axes) == len(variable.get_raw_value().shape), path
        assert set(axes) <= set(sharding.RULES), path


def test_logits_refuses_wrong_input():
    model = make()
    for arguments, words in (
        ((ids(4),), "batch"),
        ((ids(2, 4), np.ones((2, 3), bool)), "mask"),
        ((np.array([[0, 61]]),), "0..60"),
        ((ids(2, 4), None, {"pixel_values": 0}), "images"),
    ):
        with pytest.raises(UserError, match=words):
            models.logits(model, *arguments)
