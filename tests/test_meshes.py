"""Every mesh of 1, 2, 4 and 8 devices: the same loss, gradients, parameters and sampled tokens."""

import dataclasses

import jax
import numpy as np
import processes
import pytest
import test_refill
import test_train_step
import tiny
from flax import nnx

from cpgd_jax import sharding, train
from cpgd_jax.algorithms import ALGORITHMS
from cpgd_jax.ops import masked

MESHES = [
    (data, fsdp, devices // data // fsdp)
    for devices in (1, 2, 4, 8)
    for data in (1, 2, 4, 8)
    for fsdp in (1, 2, 4, 8)
    if devices % (data * fsdp) == 0
]
HEADS = dict(num_heads=8, num_kv_heads=8)  # as many as `tensor` may have devices


def over(mesh):
    """(parameters less their gradients, metrics, rollout); the optimiser is SGD at rate 1."""
    given, state = test_train_step.fake_run(mesh=mesh)
    batch = given.pack(test_train_step.make_batch())
    state, metrics = train.make_step(given, ALGORITHMS["cpgd"])(state, batch)
    model = tiny.random_model(dataclasses.replace(test_refill.CONFIG, **HEADS))
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
