"""Adapters: they start as nothing, are all that is trained, and can be merged."""

import dataclasses
import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_train_step
import tiny
from flax import nnx

from cpgd_jax import (
    checkpoint,
    convert,
    initial,
    models,
    optim,
    rollout,
    sharding,
    supervised,
    train,
)
from cpgd_jax.algorithms import ALGORITHMS
from cpgd_jax.checkpoint import Checkpointer
from cpgd_jax.config import Lora, to_dict
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.models import lora
from cpgd_jax.models.hf_layout import by_path
from cpgd_jax.train_step import init_state

ALL = ("q", "k", "v", "o", "gate", "up", "down")
SIZES = models.ModelConfig(
    vocab_size=64, num_layers=2, hidden_size=16, mlp_size=32, num_heads=4, num_kv_heads=2,
    head_dim=6, lora=Lora(rank=3, alpha=6.0, targets=ALL),
)  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 64, (2, 9)).astype(np.int32)


def with_targets(*targets):
    return dataclasses.replace(SIZES, lora=dataclasses.replace(SIZES.lora, targets=targets))


def params(model):
    return {name: np.asarray(x[...]) for name, x in by_path(nnx.state(model, nnx.Param)).items()}


def test_a_model_starts_as_its_base():
    base = models.Qwen2(dataclasses.replace(SIZES, lora=lora.OFF), nnx.Rngs(0))
    adapted = models.Qwen2(SIZES, nnx.Rngs(0))
    own, known = params(adapted), params(base)
    assert all((own[name] == value).all() for name, value in known.items())
    new = own.keys() - known.keys()
    assert len(new) == 2 * len(ALL)
    assert all(own[name].any() == name.endswith(".a") for name in new)
    same = jax.jit(lambda m: m.hidden(TOKENS, jnp.ones(TOKENS.shape, bool)))
    np.testing.assert_array_equal(same(adapted), same(base))


@pytest.mark.parametrize("targets", [("q", "v"), ("o",), ("gate", "down"), ALL], ids=str)
def test_merged_equals_adapted(targets):
    model = tiny.random_model(with_targets(*targets))
    merged = lora.merge(model)
    assert merged.config.lora == lora.OFF
    assert not [name for name in params(merged) if "lora" in name]
    moved = {name for name, x in params(merged).items() if (x != params(model)[name]).any()}
    assert {name.rpartition(".")[2] for name in moved} == set(targets)
    before, after = (np.asarray(models.logits(m, TOKENS)) for m in (model, merged))
    np.testing.assert_allclose(before, after, atol=1e-5 * np.abs(after).max(), rtol=1e-5)
    assert lora.merge(merged) is merged


def test_the_projection_is_the_published_formula():
    """y = xW + (alpha / rank) x A B, for the two-axis input of the output projection."""
    model = tiny.random_model(with_targets("o"))
    attention = jax.tree.map(lambda x: x[1], nnx.state(model.blocks.attention))
    layer = nnx.merge(nnx.graphdef(model.blocks.attention), attention)
    x_NH = np.random.default_rng(1).normal(size=(5, 4, 6)).astype(np.float32)
    w, a, b = (
        np.asarray(p[...], np.float64)
        for p in (attention["o"], attention["o_lora"]["a"], attention["o_lora"]["b"])
    )
    expected = x_NH.reshape(5, -1) @ (w.reshape(24, 16) + 2.0 * a.reshape(24, 3) @ b)
    np.testing.assert_allclose(layer.out(jnp.asarray(x_NH)), expected, rtol=1e-4, atol=1e-4)


def test_rollouts_and_saved_folders_have_the_adapters(tmp_path):
    model = tiny.random_model(SIZES)
    models.save_pretrained(model, tmp_path / "model")
    loaded = models.from_pretrained(tmp_path / "model")
    np.testing.assert_allclose(
        models.logits(loaded, TOKENS), models.logits(model, TOKENS), rtol=1e-4, atol=1e-3
    )
    texts = [
        rollout.generate(m, [TOKENS[0]], 2, max_new_tokens=6, temperature=0.0)
        for m in (model, loaded)
    ]
    assert [c.tokens for c in texts[0][0]] == [c.tokens for c in texts[1][0]]
    base = models.Qwen2(dataclasses.replace(SIZES, lora=lora.OFF), nnx.Rngs(0))
    kept = optim.split(optim.freeze(nnx.state(model), (), lora.is_adapter))[1]
    nnx.update(base, kept)
    other = rollout.generate(base, [TOKENS[0]], 2, max_new_tokens=6, temperature=0.0)
    assert [c.tokens for c in other[0]] != [c.tokens for c in texts[0][0]]


def frozen_run():
    """The run of test_train_step with adapters, whose B is not 0, on q and down."""
    sizes = dataclasses.replace(test_train_step.SIZES, lora=Lora(2, 4.0, ("q", "down")))
    given, _ = test_train_step.fake_run(microbatch_size=4)
    given.graphdef, random = nnx.split(tiny.random_model(sizes))
    marked = optim.freeze(random, (), lora.is_adapter)
    given.optimizer = optim.make_optimizer(dataclasses.replace(given.config.optim, lr=0.1), 10)
    state = init_state(marked, given.optimizer)
    state = jax.device_put(state, sharding.param_shardings(given.mesh, state))
    given.shardings = jax.tree.map(lambda x: x.sharding, state)
    return given, state


def test_a_step_moves_the_adapters_and_nothing_else():
    given, state = frozen_run()
    adapters = sum(x.size for x in jax.tree.leaves(lora.adapters(state.params)))
    assert sum(x.size for x in jax.tree.leaves(state.opt_state) if x.ndim) == 2 * adapters
    before = {name: np.array(x[...]) for name, x in by_path(state.params).items()}
    step = train.make_step(given, ALGORITHMS["cpgd"])
    state, metrics = step(state, given.pack(test_train_step.make_batch()))
    for name, x in by_path(state.params).items():
        assert (np.array(x[...]) != before[name]).any() == ("lora" in name), name
    assert float(metrics["grad_norm"].value) > 0


def test_the_loss_is_differentiated_by_the_adapters_only(monkeypatch):
    """So no gradient of a frozen weight is computed or accumulated."""
    given, state = frozen_run()
    names, value_and_grad = [], jax.value_and_grad

    def spied(fn, **kwargs):
        inner = value_and_grad(fn, **kwargs)

        def call(trained):
            names.extend(by_path(trained))
            return inner(trained)

        return call

    monkeypatch.setattr(jax, "value_and_grad", spied)
    step = train.make_step(given, ALGORITHMS["cpgd"])
    step(state, given.pack(test_train_step.make_batch()))
    assert len(names) == 4 and all("_lora." in name for name in names)


@pytest.fixture(scope="module")
def base_run(tmp_path_factory):
    """The workdir of a run without adapters."""
    folder, config = tmp_path_factory.mktemp("base") / "run", tiny.config(model__vocab_size=128)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(to_dict(config)))
    tokenizer_lib.load().save_pretrained(folder / "tokenizer")
    model = models.Qwen2(checkpoint.model_config(config.model), nnx.Rngs(5))
    with Checkpointer(folder, 1) as checkpoints:
        checkpoints.save(1, init_state(nnx.state(model), optim.make_optimizer(config.optim, 2)), {})
    return folder


LORA = {"rank": 2, "alpha": 4.0, "targets": ["q", "v", "down"]}


def adapted_config(base, **changes):
    changes = {"model__lora": LORA, "optim__lr": 0.03, "supervised__steps": 3} | changes
    changes["rollout__max_response_len"] = 24
    return tiny.config(
        stage="supervised", model__init_from=str(base), model__vocab_size=128, **changes
    )


@pytest.mark.slow
@pytest.mark.usefixtures("one_device")
def test_a_run_with_adapters_from_end_to_end(base_run, tmp_path):
    """From a base, trained, resumed, exported; and taken as the base of other adapters."""
    config = adapted_config(base_run, checkpoint__every=2)
    summary = supervised.train(config, str(tmp_path / "run"))
    rows = [row for row in tiny.lines(tmp_path / "run") if "grad_norm" in row]
    assert len(rows) == summary["steps"] == 3 and rows[-1]["loss/nll"] < rows[0]["loss/nll"]
    model, _ = checkpoint.load_model(tmp_path / "run")
    base = params(checkpoint.load_model(base_run)[0])
    trained = params(model)
    assert all((trained[name] == base[name]).all() for name in base)
    assert all(trained[name].any() for name in trained if name.endswith("_lora.b"))

    shutil.rmtree(tmp_path / "run" / "checkpoints" / "3")
    (tmp_path / "run" / "summary.json").unlink()
    assert supervised.train(config, str(tmp_path / "run"))["steps"] == 3
    resumed = params(checkpoint.load_model(tmp_path / "run")[0])
    assert all((resumed[name] == x).all() for name, x in trained.items())

    convert.convert(tmp_path / "run", tmp_path / "exported")
    exported = models.from_pretrained(tmp_path / "exported")
    merged = params(lora.merge(model))
    assert all((x == merged[name]).all() for name, x in params(exported).items())

    mesh, optimizer = sharding.make_mesh(), optim.make_optimizer(config.optim, 2)
    for source, rank, expected in (
        ("run", 2, trained),
        ("run", 3, merged),
        ("exported", 3, merged),
    ):
        config = adapted_config(tmp_path / source, model__lora=LORA | {"rank": rank})
        _, state = initial.state(config, mesh, optimizer)
        got = {name: np.asarray(x[...]) for name, x in by_path(state.params).items()}
        assert all(np.allclose(got[name], x, atol=1e-6) for name, x in expected.items())
        assert len(got) == len(base) + 6
