"""What a rollout will hold, told before it is allocated, and the slots that fit."""

import jax
import pytest
import tiny

from cpgd_jax import sharding
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig
from cpgd_jax.rollout import generate, memory, plan
from cpgd_jax.rollout.shapes import Requests

CONFIG = ModelConfig(64, 3, 16, 32, 4, 2, 4)
COLUMN = 2 * 3 * 2 * 4 * 4  # keys and values, layers, heads, head_dim, float32
PROMPTS = [[1] * n for n in (3, 30)] * 8


@pytest.fixture(scope="module")
def model():
    return tiny.random_model(CONFIG)


@pytest.fixture
def room(monkeypatch):
    """Sets the bytes that each device has left."""
    return lambda there: monkeypatch.setattr(memory, "available", lambda mesh: there)


def test_bytes_by_hand(model):
    """16 prompts of 32 columns, each with 2 samples, all at once: 1 page of 16 and the recent."""
    found = plan(model, PROMPTS, samples_per_prompt=2, max_new_tokens=16)
    assert found.slots == 32 and found.kv_bytes == (16 * 32 + 32 * 2 * 16) * COLUMN
    assert found.bytes > found.kv_bytes


def test_half_the_bytes_in_bfloat16(model):
    whole, half = (plan(model, PROMPTS, cache_dtype=d).kv_bytes for d in ("", "bfloat16"))
    assert whole == 2 * half


def test_as_many_slots_as_fit(model, room):
    room(10**12)
    all_at_once = plan(model, PROMPTS)
    assert all_at_once.slots == 128 == all_at_once.most_slots
    room(all_at_once.bytes // 3)
    fewer = plan(model, PROMPTS)
    assert 1 < fewer.slots == fewer.most_slots < 128 and fewer.bytes <= all_at_once.bytes // 3
    assert plan(model, PROMPTS, slots=fewer.slots) == fewer


def test_too_many_slots_name_what_fits(model, room):
    room(10**12)
    room(plan(model, PROMPTS).bytes // 3)
    most = plan(model, PROMPTS).most_slots
    with pytest.raises(UserError, match=rf"slots is 128: .* GiB .*; give slots up to {most}"):
        generate(model, PROMPTS, slots=128)
    room(1000)
    with pytest.raises(UserError, match=r"slots is 1: .*; shorten prompts or max_new_tokens"):
        plan(model, PROMPTS)


def test_a_large_rollout_is_planned_without_allocating_it(room):
    room(10 * 2**30)
    large = ModelConfig(151_936, 28, 3584, 18_944, 28, 4, 128)
    mesh = sharding.make_mesh(devices=jax.devices()[:1])
    found = memory.plan(large, mesh, Requests(1024, 8, 3000, 4096), None, "bfloat16")
    assert 1 <= found.slots < 256 and found.bytes <= 10 * 2**30


def test_unknown_memory_limits_nothing(model, room):
    room(None)
    assert plan(model, PROMPTS).available_bytes is None and plan(model, PROMPTS).slots == 128


def test_this_machine_knows_its_memory():
    there = memory.available(sharding.make_mesh(devices=jax.devices()[:1]))
    assert there is None or there > 2**20
