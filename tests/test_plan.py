"""The planner: work counted against XLA and by hand, loops and groups read from program text.

What compiles for a TPU needs libtpu (extra `tpu`) and is skipped without it.
"""

import importlib.util
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from configs import base
from cpgd_jax import config as config_lib
from cpgd_jax import flops, plan, sharding
from cpgd_jax.errors import UserError
from cpgd_jax.plan import advice, chips, costs, hlo, programs, table, work

needs_libtpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs pip install 'cpgd_jax[tpu]'"
)
TINY = {
    "num_layers": 3,
    "hidden_size": 64,
    "mlp_size": 160,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "rope_theta": 1e4,
    "norm_eps": 1e-6,
    "qkv_bias": True,
    "tie_embeddings": False,
    "max_positions": 4096,
}


def tiny(**fields) -> config_lib.Config:
    c = base.get_config()
    c.model.update(TINY)
    c.rollout.update(prompts=4, samples_per_prompt=4, max_prompt_len=40, max_response_len=88)
    c.train.update(minibatch_size=16, microbatch_size=8)
    c.update_from_flattened_dict(fields)
    return config_lib.from_config_dict(c)


def test_products_are_counted_as_often_as_loops_run():
    x, w = jnp.ones((8, 16)), jnp.ones((5, 16, 16))

    def f(x, w):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    traced = jax.jit(f).trace(x, w)
    by_hand = 5 * 2 * 8 * 16 * 16
    assert work.flops(traced.jaxpr.jaxpr) == by_hand
    compiled = traced.lower().compile()
    assert compiled.cost_analysis()["flops"] < by_hand / 2  # the trap: a body counts once
    assert hlo.Program(compiled.as_text()).dot_flops() == by_hand


def test_nested_loops_and_branches_of_the_jaxpr():
    def f(x):
        def outer(x, _):
            return jax.lax.fori_loop(0, 3, lambda _, x: x @ x, x), None

        x = jax.lax.scan(outer, x, length=2)[0]
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ x, lambda x: x, x)

    assert work.flops(jax.make_jaxpr(f)(jnp.ones((4, 4))).jaxpr) == 7 * 2 * 4**3


def test_a_shard_counts_for_each_device():
    mesh = sharding.make_mesh(1, 4, 1)
    f = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=P("fsdp"), out_specs=P("fsdp"))
    assert work.flops(jax.make_jaxpr(f)(jnp.ones((8, 16))).jaxpr) == 4 * 2 * 2 * 16 * 2


@pytest.fixture(scope="module")
def step():
    """The tiny train step, traced, and its program compiled for 4 CPU devices."""
    config = tiny(**{"model.attention": "dense"})
    mesh = sharding.make_mesh(1, 2, 2)
    traced = programs.train_step(programs.parts(config, mesh))
    return config, mesh, traced, hlo.Program(traced.program.lower().compile().as_text())


BLOCKS = 3 * (64 * (4 + 2 * 2) * 16 + 4 * 16 * 64 + 3 * 64 * 160)  # parameters in products


def test_the_train_step_counted_three_ways(step):
    _, mesh, traced, program = step
    counted = work.flops(traced.program.jaxpr.jaxpr)
    assert math.isclose(counted, program.dot_flops() * mesh.size, rel_tol=0.1)
    # 2 microbatches x 2 rows of 512 slots, 384 of them targets. Forward, twice that backward, and
    # the blocks forward again, without the last product of the MLP; the head's logits again.
    slots, targets = 4 * 512, 4 * 384
    again = 2 * (BLOCKS - 3 * 64 * 160) * slots
    scores = 4 * 4 * 16 * 512 * slots * 3
    by_hand = 6 * BLOCKS * slots + again + 4 * scores + 8 * 64 * 512 * targets
    assert math.isclose(counted, by_hand, rel_tol=1e-3)


def test_needed_work_is_six_a_parameter_and_token(step):
    _, _, traced, _ = step
    tokens, targets = 16 * 88 + 4 * 39, 16 * 88
    pairs = 4 * (39 * 40 // 2) + 16 * (88 * 39 + 88 * 89 // 2)
    attention = 12 * 3 * 4 * 16 * pairs
    assert traced.needed_flops == 6 * BLOCKS * tokens + 6 * 64 * 512 * targets + attention


def test_collectives_of_the_train_step(step):
    config, mesh, _, program = step
    found = {costs.axes(mesh, group) for _, count, group in program.collectives() if count > 1000}
    assert {"fsdp", "tensor"} <= found
    assert program.memory_bytes() > 0


def test_groups_in_each_notation():
    line = "x), replica_groups="
    assert hlo._group(line + "{{0,2},{1,3}}, y") == (0, 2)
    assert hlo._group(line + "[2,2]<=[4], y") == (0, 1)
    assert hlo._group(line + "[2,2]<=[2,2]T(1,0), y") == (0, 2)
    assert hlo._group(line + "mesh['a'=2,'b'=2] {'b'}, y") == (0, 1)
    assert hlo._group(line + "mesh['a'=2,'b'=2] {'a'}, y") == (0, 2)
    turned = "mesh['a'=2,'b'=1,'c'=4], device_ids=([4,2]T(1,0))"
    assert hlo._group(line + turned + " {'a'}, y") == (0, 1)
    assert hlo._group(line + turned + " {'c'}, y") == (0, 2, 4, 6)
    with pytest.raises(ValueError, match="unknown notation"):
        hlo._group(line + "<new>, y")


def test_axes_of_a_group():
    mesh = sharding.make_mesh(2, 1, 2)
    assert costs.axes(mesh, (0, 2)) == "data"
    assert costs.axes(mesh, (0, 1)) == "tensor"
    assert costs.axes(mesh, (0, 1, 2, 3)) == "data+tensor"
    assert costs.axes(mesh, (0, 3)) == "other"


def test_bytes_that_travel():
    text = """HloModule m

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %x = f32[8,4]{1,0} get-tuple-element(%p), index=1
  %i = s32[] get-tuple-element(%p), index=0
  %r = f32[8,4]{1,0} all-reduce(%x), replica_groups={{0,1,2,3}}, to_apply=%sum
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i, %r)
}

%cond (p.1: (s32[], f32[8,4])) -> pred[] {
  %p.1 = (s32[], f32[8,4]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%p.1), index=0
  %n = s32[] constant(6)
  ROOT %lt = pred[] compare(%i.1, %n), direction=LT
}

ENTRY %main (q: (s32[], f32[8,4])) -> f32[32,4] {
  %q = (s32[], f32[8,4]{1,0}) parameter(0)
  %w = (s32[], f32[8,4]{1,0}) while(%q), condition=%cond, body=%body
  %y = f32[8,4]{1,0} get-tuple-element(%w), index=1
  ROOT %g = f32[32,4]{1,0} all-gather(%y), dimensions={0}, replica_groups={{0,1,2,3}}
}
"""
    found = {kind: count for kind, count, _ in hlo.Program(text).collectives()}
    assert found == {"all-reduce": 6 * 2 * 128 * 3 / 4, "all-gather": 512 * 3 / 4}


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("h100:8x8", "choose one of v5e, v5p, v6e"),
        ("v5p:4x4", "v5p:4x4x4"),
        ("v5e", "v5e:4x4"),
        ("v5e:3x16", "nearest is v5e:4x16"),
    ],
)
def test_topologies_that_do_not_exist(name, told):
    with pytest.raises(UserError, match=told):
        chips.topology(name)


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_libtpu():
    with pytest.raises(UserError, match=r"pip install 'cpgd_jax\[tpu\]'"):
        chips.topology("v5e:4x4")


def test_slices_by_their_size():
    assert [chips.slice_of("v5p", n) for n in (64, 256, 4096)] == [
        "v5p:4x4x4",
        "v5p:4x8x8",
        "v5p:16x16x16",
    ]
    assert chips.slice_of("v5e", 256) == "v5e:16x16"
    with pytest.raises(UserError, match="power of two"):
        chips.slice_of("v5e", 100)


def test_links_of_a_group():
    class Device:
        def __init__(self, *coords):
            self.coords = coords

    ring = [Device(x, 0, 0) for x in range(4)]
    line = [Device(x, 0, 0) for x in range(2)]
    v5p = chips.Topology("", chips.CHIPS["v5p"], (4, 4, 4), [])
    assert chips.bytes_per_s(v5p, ring) == 2 * 9e10
    assert chips.bytes_per_s(v5p, line) == 9e10


def test_advice_tries_changes_and_keeps_those_that_fit():
    def measure(config):
        fits = config.optim.master_dtype == "bfloat16" or config.mesh.tensor == 4
        mfu = 0.4 if config.mesh.tensor == 4 else 0.5
        return {"fits": fits, "headroom": 0.2, "programs": {"train_step": {"mfu": mfu}}}

    found = advice.changes(tiny(), measure)
    assert [x["mfu"] for x in found] == [0.5, 0.4]
    assert found[0]["change"] == "--config.optim.master_dtype=bfloat16"
    plan = {"fits": False, "headroom": -0.5, "changes": found}
    assert "master_dtype=bfloat16 (20% left" in table.verdict(plan)


def test_every_response_of_the_longest_batch_counts():
    batch = programs.longest_batch(tiny(), programs.train.algorithm_row(tiny())[0], 8)
    found = flops.work(batch.prompt_mask_BS, batch.mask_BT, batch.group_B)
    assert found.head_tokens == 8 * 88
    assert found.tokens == 8 * 88 + 2 * 39
    assert np.all(batch.group_B == [0] * 4 + [1] * 4)


VISION = {
    "num_layers": 3,
    "hidden_size": 32,
    "mlp_size": 48,
    "num_heads": 2,
    "full_attention": (1,),
    "window_size": 56,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "rope_sections": (2, 3, 3),
    "image_id": 4,
    "other_ids": (5, 6, 7),
}


def test_chips_look_at_their_own_images():
    """Weights travel, not what is computed of the images, which is many times as much."""
    fields = {"rollout.max_prompt_len": 2000, "model.vision": ConfigDict(VISION)}
    config = tiny(**fields)
    parts = programs.parts(config, sharding.make_mesh(1, 4, 1))
    traced = programs.see(parts)
    program = hlo.Program(traced.program.lower().compile().as_text())
    travels = sum(count for _, count, _ in program.collectives())
    weights = sum(4 * x.size for x in jax.tree.leaves(parts.state.params["visual"]))
    rows_NYD = 512 * 16 * 32 * 4  # of one image in one layer, in float32
    assert 0 < travels < 2 * weights < rows_NYD
    assert traced.tokens == 4 * (2000 - programs.TEXT)


@pytest.mark.slow
@needs_libtpu
def test_a_mesh_splits_an_axis_of_the_slice():
    """2 of 4x8x8 chips are no axis of it."""
    devices = chips.topology("v5p:4x8x8").devices
    mesh = sharding.make_mesh(1, 128, 2, devices)
    assert dict(mesh.shape) == {"data": 1, "fsdp": 128, "tensor": 2}
    assert {d.id for d in mesh.devices.flat} == {d.id for d in devices}


@pytest.mark.slow
@needs_libtpu
def test_a_slice_is_planned_with_the_attention_kernel():
    fields = {"model.head_dim": 128, "rollout.max_prompt_len": 512, "train.microbatch_size": 16}
    config = tiny(**fields, **{"rollout.max_response_len": 512, "model.dtype": "bfloat16"})
    topology = chips.topology("v5e:2x2")
    traced = programs.train_step(
        programs.parts(config, sharding.make_mesh(1, 4, 1, topology.devices))
    )
    text = traced.program.lower().compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') >= 3  # forward, dq, dk and dv
    found = plan.plan(config, "v5e:2x2")
    assert found["fits"] and set(found["programs"]) == {"train_step", "score", "prefill", "decode"}
    assert "fits" in table.details(found)
