"""Checkpoints hold a state exactly, on any mesh, and survive what a kill leaves behind."""

import json
import shutil

import jax
import numpy as np
import optax
import pytest
import tiny
from flax import nnx

from cpgd_jax import checkpoint, config, models, optim, sharding
from cpgd_jax.checkpoint import Checkpointer
from cpgd_jax.data import tokenizer
from cpgd_jax.errors import UserError
from cpgd_jax.train_step import init_state

CONFIG = tiny.config(
    model__vocab_size=64, model__num_heads=4, model__num_kv_heads=4, model__tie_embeddings=False
)


def make_state(mesh=None, tie=False, seed=0):
    sizes = checkpoint.model_config(CONFIG.model)
    sizes = models.ModelConfig(**{**vars(sizes), "tie_embeddings": tie})
    graphdef, params = nnx.split(models.Qwen2(sizes, nnx.Rngs(seed)))
    state = init_state(params, optim.make_optimizer(CONFIG.optim, 10))
    # Moments of zero would hide an exchange of leaves.
    fill = np.random.default_rng(seed)
    moments = jax.tree.map(
        lambda x: jax.numpy.asarray(fill.normal(size=x.shape)).astype(x.dtype), state.opt_state
    )
    state = state.replace(step=jax.numpy.int32(7), opt_state=moments)
    return state if mesh is None else jax.device_put(state, sharding.param_shardings(mesh, state))


def assert_equal(a, b):
    assert jax.tree.structure(a) == jax.tree.structure(b)
    tiny.assert_equal(jax.device_get(jax.tree.leaves(a)), jax.device_get(jax.tree.leaves(b)))


@pytest.mark.parametrize("tie", [True, False])
def test_a_state_comes_back_exactly(tmp_path, tie):
    state = make_state(tie=tie)
    with Checkpointer(tmp_path, 2) as checkpoints:
        assert checkpoints.restore(make_state(tie=tie, seed=1)) is None
        checkpoints.save(3, state, {"done": 3, "before": {"x": 0.1}})
    with Checkpointer(tmp_path, 2) as checkpoints:
        like = make_state(tie=tie, seed=1)
        restored, progress = checkpoints.restore(like)
    assert_equal(restored, state)
    assert progress == {"done": 3, "before": {"x": 0.1}}
    assert all(x.is_deleted() for x in jax.tree.leaves(like))


def test_what_happens_after_save_does_not_reach_the_files(tmp_path):
    """Writing goes on while the next step reuses the state's buffers."""
    state = make_state()
    kept = jax.device_get(state)
    kept = jax.tree.map(np.array, kept)
    grow = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    grown = grow(make_state())  # compiled before the race
    with Checkpointer(tmp_path, 1) as checkpoints:
        checkpoints.save(1, state, {})
        for _ in range(5):
            state = grow(state)
    del grown
    with Checkpointer(tmp_path, 1) as checkpoints:
        assert_equal(checkpoints.restore(make_state(seed=1))[0], kept)


def test_another_mesh(tmp_path):
    with Checkpointer(tmp_path, 1) as checkpoints:
        checkpoints.save(1, make_state(sharding.make_mesh(1, 2, 2)), {})
    like = make_state(sharding.make_mesh(2, 1, 2), seed=1)
    placed = jax.tree.map(lambda x: x.sharding, like)
    with Checkpointer(tmp_path, 1) as checkpoints:
        restored, _ = checkpoints.restore(like)
    assert_equal(restored, make_state())
    assert jax.tree.map(lambda x: x.sharding, restored) == placed


def test_the_newest_are_kept(tmp_path):
    with Checkpointer(tmp_path, 2) as checkpoints:
        for index in (1, 2, 3):
            checkpoints.save(index, make_state(), {"done": index})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["2", "3"]


def test_a_half_written_checkpoint_is_passed_over_and_written_again(tmp_path):
    with Checkpointer(tmp_path, 2) as checkpoints:
        checkpoints.save(1, make_state(), {"done": 1})
    for name in ("2.orbax-checkpoint-tmp", "2.orbax-checkpoint-tmp-123"):
        (tmp_path / "checkpoints" / name / "params").mkdir(parents=True)
    with Checkpointer(tmp_path, 2) as checkpoints:
        assert checkpoints.restore(make_state(seed=1))[1] == {"done": 1}
        checkpoints.save(2, make_state(), {"done": 2})
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run's folder by hand: config, tokenizer, one checkpoint; more ids than the tokenizer's."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_text(json.dumps(config.to_dict(CONFIG)))
    tokenizer.load().save_pretrained(folder / "tokenizer")
    with Checkpointer(folder, 1) as checkpoints:
        checkpoints.save(5, make_state(sharding.make_mesh(1, 4, 1)), {})
    return folder


def test_load_model(workdir):
    model, own = checkpoint.load_model(workdir)
    assert own.vocab_size < model.config.vocab_size == 64
    assert_equal(nnx.state(model), make_state().params)
    assert all(len(x.devices()) == 1 for x in jax.tree.leaves(nnx.state(model)))
    logits = models.logits(model, [own.encode_prompt("1+2=?")])
    assert np.isfinite(np.asarray(logits)).all()


def test_folders_that_hold_no_model(tmp_path, workdir):
    with pytest.raises(UserError, match=r"config\.json' not found: give the workdir"):
        checkpoint.load_model(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(UserError, match="damaged"):
        checkpoint.load_model(tmp_path)
    (tmp_path / "config.json").write_bytes((workdir / "config.json").read_bytes())
    with pytest.raises(UserError, match="holds no checkpoints"):
        checkpoint.load_model(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        checkpoint.load_model(tmp_path)
    assert not list((tmp_path / "checkpoints").iterdir())


def test_optimiser_leaves_keep_their_order(tmp_path):
    """Leaves are stored by number: a state of another optimiser must not fit."""
    with Checkpointer(tmp_path, 1) as checkpoints:
        checkpoints.save(1, make_state(), {})
    state = make_state()
    other = state.replace(opt_state=optax.sgd(0.1, momentum=0.9).init(state.params))
    with Checkpointer(tmp_path, 1) as checkpoints, pytest.raises(UserError):
        checkpoints.restore(other)


def damage(folder):
    """Cuts every file of a checkpoint's parameters to five bytes."""
    for file in (folder / "params").rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[:5])


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path):
    state = make_state()
    with Checkpointer(tmp_path, 2) as checkpoints:
        for done in (1, 2):
            checkpoints.save(done, state, {"done": done})
    damage(tmp_path / "checkpoints" / "2")
    with Checkpointer(tmp_path, 2) as checkpoints:
        restored, progress = checkpoints.restore(make_state(seed=1))
        assert progress == {"done": 1}
        assert_equal(restored, state)
        checkpoints.save(2, state, {"done": 2})  # its place is free again
    assert (tmp_path / "damaged_checkpoints" / "2").is_dir()
    with Checkpointer(tmp_path, 2) as checkpoints:
        assert checkpoints.restore(make_state(seed=1))[1] == {"done": 2}


@pytest.mark.parametrize("lost", ["params", "progress"])
def test_only_damaged_checkpoints_are_one_line(tmp_path, lost):
    with Checkpointer(tmp_path, 2) as checkpoints:
        checkpoints.save(1, make_state(), {"done": 1})
    folder = tmp_path / "checkpoints" / "1"
    if lost == "params":
        damage(folder)
    else:
        shutil.rmtree(folder / "progress")
    with Checkpointer(tmp_path, 2) as checkpoints, pytest.raises(UserError, match="restore one"):
        checkpoints.restore(make_state(seed=1))
