"""Meshes of 1 to 8 devices: equal losses, gradients, parameters, samples; what is split on them."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import processes
import pytest
import test_refill
import test_train_step
import tiny
from flax import nnx

from configs import base
from cpgd_jax import config as config_lib
from cpgd_jax import sharding, train
from cpgd_jax.algorithms import ALGORITHMS
from cpgd_jax.ops import logprobs, masked
from cpgd_jax.plan import programs

MESHES = [
    (data, fsdp, devices // data // fsdp)
    for devices in (1, 2, 4, 8)
    for data in (1, 2, 4, 8)
    for fsdp in (1, 2, 4, 8)
    if devices % (data * fsdp) == 0
]
HEADS = dict(num_heads=8, num_kv_heads=8)  # as many as `tensor` may have devices
VOCAB = dict(vocab_size=88)  # likewise


def over(mesh):
    """(parameters less their gradients, metrics, rollout); the optimiser is SGD at rate 1."""
    given, state = test_train_step.fake_run(mesh=mesh)
    batch = given.pack(test_train_step.make_batch())
    state, metrics = train.make_step(given, ALGORITHMS["cpgd"])(state, batch)
    model = tiny.random_model(dataclasses.replace(test_refill.CONFIG, **HEADS, **VOCAB))
    rollout = test_refill.over(mesh, model, slots=16, max_new_tokens=24)
    return jax.device_get(nnx.to_pure_dict(state.params)), masked.to_host(metrics), rollout


def compare() -> None:
    """All meshes with the first; in a process with eight devices."""
    test_train_step.SIZES = dataclasses.replace(test_train_step.SIZES, **HEADS)
    one = None
    for sizes in MESHES:
        mesh = sharding.make_mesh(*sizes, devices=jax.devices()[: np.prod(sizes)])
        params, metrics, rollout = over(mesh)
        one = one or (params, metrics, rollout)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), params, one[0])
        assert metrics == pytest.approx(one[1], rel=1e-4, abs=1e-5), sizes
        np.testing.assert_array_equal(rollout.response_BT, one[2].response_BT, str(sizes))
        np.testing.assert_array_equal(rollout.mask_BT, one[2].mask_BT, str(sizes))
        np.testing.assert_allclose(rollout.sampler_logp_BT, one[2].sampler_logp_BT, atol=1e-5)
        print("same:", sizes, flush=True)


@pytest.mark.slow
def test_every_mesh_equals_one_device():
    assert len(MESHES) == 1 + 3 + 6 + 10
    (told,) = processes.finish([processes.launch("meshes", 8, [])], timeout=900)
    assert told.count("same:") == len(MESHES)


def config_of(**changes) -> config_lib.Config:
    c = base.get_config()
    c.update_from_flattened_dict({name.replace("__", "."): x for name, x in changes.items()})
    return config_lib.from_config_dict(c)


def test_every_large_parameter_of_7b_is_split_over_fsdp():
    mesh = sharding.make_mesh(1, 4, 1)
    state = programs.parts(config_of(model__size="qwen2.5-7b"), mesh).state
    params = jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(state.params))
    assert sum(x.size for _, x in params) == 7_615_616_512  # as its model card has it
    large = [(path, x) for path, x in params if x.size * x.dtype.itemsize > 10**6]
    assert len(large) == 2 + 7  # both heads, the projections of a stack of layers
    for path, x in large:
        split = math.prod(x.shape) // math.prod(x.sharding.shard_shape(x.shape))
        assert split == 4 and "fsdp" in x.sharding.spec, path
    moments = [x for x in jax.tree.leaves(state.opt_state) if x.size > 10**6]
    assert len(moments) == 2 * len(large)
    assert all("fsdp" in x.sharding.spec for x in moments)


V, D = 5_003 * 2, 48  # of several tiles; no other array has such sides


def compiled_step(mesh, tied) -> str:
    """The program of a train step, as text."""
    sizes = dict(vocab_size=V, hidden_size=D, num_layers=2, mlp_size=64, head_dim=16)
    sizes |= dict(num_heads=4, num_kv_heads=2, rope_theta=1e4, norm_eps=1e-6, qkv_bias=True)
    model = {f"model__{k}": x for k, x in sizes.items()} | {"model__tie_embeddings": tied}
    rollout = dict(rollout__prompts=2, rollout__samples_per_prompt=4)
    lengths = dict(rollout__max_prompt_len=8, rollout__max_response_len=24)
    train = dict(train__minibatch_size=8, train__microbatch_size=4, model__max_positions=64)
    config = config_of(**model, **rollout, **lengths, **train)
    return programs.train_step(programs.parts(config, mesh)).program.lower().compile().as_text()


def whole_heads(text: str) -> list[str]:
    """Its lines that make an array of the whole head or of a tensor slice in its whole width."""
    sides = [f"[{v},{D}]" for v in (V, V // 2)] + [f"[{D},{v}]" for v in (V, V // 2)]
    return [line for line in text.splitlines() if any(side in line for side in sides)]


@pytest.mark.parametrize(
    ("sizes", "tied"), [((1, 4, 1), False), ((1, 2, 2), True), ((2, 2, 1), True)], ids=str
)
def test_a_train_step_never_has_the_whole_head(sizes, tied):
    text = compiled_step(sharding.make_mesh(*sizes), tied)
    assert " all-gather(" in text and not whole_heads(text)


def test_a_plain_head_would_be_seen(monkeypatch):
    def plain(hidden, head_VD, token, *, temperature):
        logp_V = jax.nn.log_softmax(hidden @ head_VD.T.astype(hidden.dtype) / temperature)
        return jnp.take_along_axis(logp_V, token[..., None], -1)[..., 0], logp_V.sum(-1)

    monkeypatch.setattr(logprobs, "token_logprobs", plain)
    found = whole_heads(compiled_step(sharding.make_mesh(1, 4, 1), False))
    assert any(" all-gather(" in line for line in found)
