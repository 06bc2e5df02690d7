"""Training on meshes of four devices equals training on one; the table and its errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from cpgd_jax import sharding
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2

CONFIG = ModelConfig(
    vocab_size=64,
    num_layers=2,
    hidden_size=16,
    mlp_size=32,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
)
OPTIMISER = optax.adam(1e-2, eps=1e-3)  # so that rounding of a gradient near 0 stays small


def abstract_params(**change):
    config = dataclasses.replace(CONFIG, **change)
    return nnx.state(nnx.eval_shape(lambda: Qwen2(config, nnx.Rngs(0))), nnx.Param)


def random_params():
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda x: np.float32(0.3 * rng.normal(size=x.shape)), abstract_params())


def update(graphdef, params, opt_state, token_BT):
    def loss(params):
        model = nnx.merge(graphdef, params)
        hidden_BTD = model.hidden(token_BT, jnp.ones(token_BT.shape, bool))
        logp_BTV = jax.nn.log_softmax(model.head(hidden_BTD)[:, :-1])
        return -jnp.take_along_axis(logp_BTV, token_BT[:, 1:, None], axis=-1).mean()

    value, grads = jax.value_and_grad(loss)(params)
    updates, opt_state = OPTIMISER.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state, value


def train(mesh, steps=3):
    """Parameters and losses after some steps, all arrays placed by the table."""
    graphdef = nnx.graphdef(nnx.eval_shape(lambda: Qwen2(CONFIG, nnx.Rngs(0))))
    abstract = abstract_params()
    places = sharding.param_shardings(mesh, (abstract, jax.eval_shape(OPTIMISER.init, abstract)))
    params = jax.device_put(random_params(), places[0])
    opt_state = jax.jit(OPTIMISER.init, out_shardings=places[1])(params)
    token_BT = np.random.default_rng(0).integers(0, 64, (8, 12)).astype(np.int32)
    token_BT = jax.device_put(token_BT, sharding.batch_sharding(mesh))
    out_places = (*places, sharding.replicated(mesh))
    step = jax.jit(lambda *args: update(graphdef, *args), out_shardings=out_places)
    losses = []
    for _ in range(steps):
        params, opt_state, loss = step(params, opt_state, token_BT)
        losses.append(float(loss))
    return params, opt_state, losses


@pytest.fixture(scope="module")
def single():
    return train(sharding.make_mesh(1, 1, 1, devices=jax.devices()[:1]))


@pytest.mark.parametrize("sizes", [(4, 1, 1), (1, 4, 1), (1, 2, 2)])
def test_training_on_a_mesh_equals_one_device(single, sizes):
    params, opt_state, losses = train(sharding.make_mesh(*sizes))
    np.testing.assert_allclose(losses, single[2], atol=1e-5)
    assert losses[-1] < losses[0] - 0.05
    for ours, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(single[0]), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    ways = {"q": sizes[1] * sizes[2], "q_bias": sizes[2], "attention_norm": 1}
    for tree in (params, opt_state[0].mu, opt_state[0].nu):  # parameters and both moments
        for name, expected in ways.items():
            holder = tree["blocks"] if name == "attention_norm" else tree["blocks"]["attention"]
            array = holder[name].get_raw_value()
            assert array.size == expected * array.addressable_shards[0].data.size, name


def test_the_table_places_every_parameter():
    abstract = abstract_params(tie_embeddings=False)
    places = sharding.param_shardings(sharding.make_mesh(1, 2, 2), abstract)
    spec = lambda *path: nnx.to_pure_dict(places)[path[0]].spec  # noqa: E731
    assert spec("embed") == spec("unembed") == P("tensor", "fsdp")
    assert spec("final_norm") == P(None)
    attention = places["blocks"]["attention"]
    assert attention["o"].get_raw_value().spec == P(None, "tensor", None, "fsdp")
    assert jax.tree.structure(places) == jax.tree.structure(abstract)


def test_mesh_sizes():
    assert dict(sharding.make_mesh().shape) == {"data": 1, "fsdp": 4, "tensor": 1}
    assert dict(sharding.make_mesh(-1, 2, 1).shape) == {"data": 2, "fsdp": 2, "tensor": 1}
    two = sharding.make_mesh(1, 1, -1, devices=jax.devices()[:2])
    assert dict(two.shape) == {"data": 1, "fsdp": 1, "tensor": 2}


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ((1, 3, 1), "fsdp = 3.*4 devices"),
        ((1, 2, 1), "multiply to 2.*4 devices"),
        ((3, -1, 1), "data = 3.*4 devices"),
        ((-1, -1, 1), "data and fsdp"),
        ((1, 0, 1), "fsdp = 0"),
        ((1, -2, 1), "fsdp = -2"),
    ],
)
def test_mesh_sizes_that_do_not_fit(sizes, words):
    with pytest.raises(UserError, match=words) as caught:
        sharding.make_mesh(*sizes)
    assert "\n" not in str(caught.value)


def test_a_mesh_axis_that_does_not_divide_names_both():
    with pytest.raises(UserError, match=r"tensor = 4 .* kv_heads = 2 of blocks.attention.k"):
        sharding.param_shardings(sharding.make_mesh(1, 1, 4), abstract_params())
    with pytest.raises(UserError, match=r"fsdp = 4 .* embed = 18 of blocks.attention.k"):
        sharding.param_shardings(sharding.make_mesh(1, 4, 1), abstract_params(hidden_size=18))


def test_colliding_axes_are_an_error():
    rules = {**sharding.RULES, "embed": ("fsdp", "tensor")}
    with pytest.raises(UserError, match="embed and mlp .* mesh axis tensor"):
        sharding.partition_spec(("layers", "embed", "mlp"), rules)
    with pytest.raises(UserError, match="'width' is not in the sharding table"):
        sharding.partition_spec(("layers", "width"))


def test_a_parameter_without_axes_is_an_error():
    state = nnx.State({"w": nnx.Param(jnp.zeros((4, 4)))})
    with pytest.raises(UserError, match="parameter w .* needs a logical axis"):
        sharding.param_shardings(sharding.make_mesh(), state)
