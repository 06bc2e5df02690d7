"""The counted work of a step against sums by hand and against XLA's own count."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from flax import nnx

from cpgd_jax import flops, matmul_rate
from cpgd_jax.models import ModelConfig

CONFIG = ModelConfig(512, 1, 128, 512, 4, 2, 32)  # one layer: XLA counts a scan's body once


def counted(fn, *args) -> float:
    return jax.jit(fn).lower(*args).compile().cost_analysis()["flops"]


@pytest.mark.parametrize("tied", [True, False])
def test_forward_and_backward_against_xla(tied):
    config = ModelConfig(512, 1, 128, 512, 4, 2, 32, tie_embeddings=tied, attention="dense")
    graphdef, params = nnx.split(tiny.random_model(config))
    B, T = 4, 64
    token_BT, mask_BT = jnp.ones((B, T), jnp.int32), jnp.ones((B, T), bool)

    def total(params):
        model = nnx.merge(graphdef, params)
        return jnp.sin(model.head(model.hidden(token_BT, mask_BT))).sum()

    work = flops.Work(B * T, B * T * T, B * T)  # dense attention multiplies what is masked too
    assert flops.forward(config, work) == pytest.approx(counted(total, params), rel=0.05)
    both = counted(jax.value_and_grad(total), params)
    assert flops.train_step(config, work) == pytest.approx(both, rel=0.05)


def test_layers_add_up_and_the_head_counts_its_own_tokens():
    work = flops.Work(tokens=10, pairs=0, head_tokens=0)
    one = flops.forward(CONFIG, work)
    assert one == 2 * 10 * (128 * 8 * 32 + 4 * 32 * 128 + 3 * 128 * 512)
    two = ModelConfig(512, 2, 128, 512, 4, 2, 32)
    assert flops.forward(two, work) == 2 * one
    assert flops.forward(CONFIG, flops.Work(0, 0, 3)) == 2 * 3 * 128 * 512
    assert flops.forward(CONFIG, flops.Work(0, 5, 0)) == 4 * 5 * 4 * 32


def test_work_counts_a_prompt_once_and_what_a_token_sees():
    prompt_mask_BS = np.array([[0, 1, 1, 1]] * 3 + [[1, 1, 1, 1]] * 2, bool)
    length_B = np.array([2, 0, 1, 0, 0])  # the second group has nothing that is trained
    mask_BT = np.arange(3) < length_B[:, None]
    work = flops.work(prompt_mask_BS, mask_BT, np.array([7, 7, 7, 9, 9]))
    assert work.tokens == 2 + 2 + 1
    assert work.pairs == (1 + 2) + (3 + 4) + 3
    assert work.head_tokens == 3
    assert flops.work(prompt_mask_BS, np.zeros((5, 3), bool), np.zeros(5)) == (0, 0, 0)


def test_a_first_row_without_tokens_does_not_hide_its_prompt():
    mask_BT = np.array([[False, False], [True, False]])
    assert flops.work(np.ones((2, 4), bool), mask_BT, np.zeros(2, int)).tokens == 3 + 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_rate_counts_the_products_that_are_made(dtype, monkeypatch):
    """Two products up and two down a loop of two: XLA counts one of each."""
    T, D, F = 16, 128, 512
    arrays = [jnp.ones(shape, dtype) for shape in ((T, D), (D, F), (F, D))]
    assert counted(matmul_rate.products, *arrays) == pytest.approx(2 * 2 * T * D * F, rel=0.05)
    clock = iter(range(100))
    monkeypatch.setattr(matmul_rate.time, "perf_counter", lambda: next(clock))  # a second a call
    rate = matmul_rate.flops_per_s(CONFIG, dtype, repeats=2, tokens=T)
    assert rate == matmul_rate.PRODUCTS * 2 * T * D * F
