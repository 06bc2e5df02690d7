"""Rematerialisation policies change memory, never a gradient."""

import dataclasses
import functools
import types

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from cpgd_jax import run
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig
from cpgd_jax.models.remat import POLICIES

CONFIG = ModelConfig(
    vocab_size=64, num_layers=5, hidden_size=32, mlp_size=128, num_heads=4, num_kv_heads=2,
    head_dim=8,
)  # fmt: skip
NAMES = ("none", *POLICIES)
TOKENS = np.random.default_rng(0).integers(0, 64, (4, 96)).astype(np.int32)


def gradient(name):
    """(function of the parameters, parameters)."""
    model = tiny.random_model(dataclasses.replace(CONFIG, remat=name))
    graphdef, params = nnx.split(model)

    def loss(params):
        hidden_BTD = nnx.merge(graphdef, params).hidden(TOKENS, jnp.ones(TOKENS.shape, bool))
        return jnp.sum(hidden_BTD**3)

    return jax.grad(loss), params


@functools.cache
def compiled(name):
    fn, params = gradient(name)
    program = jax.jit(fn).lower(params).compile()
    return program.memory_analysis().temp_size_in_bytes, jax.device_get(program(params))


@pytest.mark.parametrize("name", POLICIES)
def test_gradients_are_those_of_none(name):
    expected, got = (jax.tree.leaves(compiled(n)[1]) for n in ("none", name))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


def test_each_policy_takes_less_memory_than_the_one_before():
    none, dots, block, offload = (compiled(name)[0] for name in NAMES)
    assert none > 1.5 * dots and dots > 1.2 * block and offload <= block


def outputs(jaxpr):
    for eqn in jaxpr.eqns:
        yield from (v.aval for v in eqn.outvars)
        for inner in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from outputs(inner)


def test_offload_keeps_the_blocks_inputs_in_the_hosts_memory():
    """All layers' inputs, kept for the backward pass, are one stacked array."""
    shape = (CONFIG.num_layers, *TOKENS.shape, CONFIG.hidden_size)
    for name, place in (("block", jax.memory.Space.Device), ("offload", jax.memory.Space.Host)):
        fn, params = gradient(name)
        kept = [x for x in outputs(jax.make_jaxpr(fn)(params).jaxpr) if x.shape == shape]
        assert kept and {x.memory_space for x in kept} == {place}, name


def test_offload_needs_a_host_memory():
    device = types.SimpleNamespace(
        device_kind="abacus", addressable_memories=lambda: [types.SimpleNamespace(kind="device")]
    )
    mesh = types.SimpleNamespace(devices=np.array([device]))
    with pytest.raises(UserError, match="remat is 'offload', but a abacus has no pinned"):
        run.check_memories(mesh, "offload")
    run.check_memories(mesh, "block")
    run.check_memories(types.SimpleNamespace(devices=np.array(jax.devices())), "offload")
