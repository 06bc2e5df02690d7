"""Conversions in every direction are exact, checked, and leave nothing when they fail."""

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import subprocess
import sys

import gguf_files
import jax
import numpy as np
import optax
import pytest
import tiny
from flax import nnx

from configs import base
from cpgd_jax import checkpoint, config, convert, initial, models, sharding
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_config, safetensors_file
from cpgd_jax.train_step import init_state

RUN = tiny.config(model__vocab_size=128, model__num_kv_heads=2)  # more ids than the tokenizer has
BASE = config.from_config_dict(base.get_config())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The workdir of a run on four devices, by hand: config, tokenizer, checkpoints 1 and 2."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "config.json").write_text(json.dumps(config.to_dict(RUN)))
    tokenizer_lib.load().save_pretrained(folder / "tokenizer")
    params = nnx.split(tiny.random_model(checkpoint.model_config(RUN.model)))[1]
    params = jax.device_put(params, sharding.param_shardings(sharding.make_mesh(1, 2, 2), params))
    with checkpoint.Checkpointer(folder, 2) as checkpoints:
        for index in (1, 2):
            params = jax.tree.map(lambda x: x + 0.01, params)
            checkpoints.save(index, init_state(params, optax.sgd(0.1)), {})
    return folder


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The Hugging Face folder of the run's newest checkpoint."""
    folder = tmp_path_factory.mktemp("exported") / "model"
    assert convert.convert(run, folder) == convert.Check(0.0, 0.0)
    return folder


def params(model):
    return jax.device_get(jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_a_run(run, exported):
    own, tokenizer = checkpoint.load_model(run)
    model = models.from_pretrained(exported)
    tiny.assert_equal(params(model), params(own))
    assert model.config.vocab_size == 128 > tokenizer.vocab_size
    assert model.config.max_positions == 1024
    assert tokenizer_lib.load(exported).stop_ids == tokenizer.stop_ids
    assert {p.name for p in exported.iterdir()} >= {"generation_config.json", "tokenizer.json"}


def test_an_earlier_checkpoint(run, exported, tmp_path):
    convert.convert(run, tmp_path / "first", step=1)
    first, last = (models.from_pretrained(f) for f in (tmp_path / "first", exported))
    assert all(np.abs(a - b).max() > 0 for a, b in zip(params(first), params(last), strict=True))
    with pytest.raises(UserError, match="holds no checkpoint 7, only 1, 2"):
        convert.convert(run, tmp_path / "seventh", step=7)


def test_round_trip_by_a_checkpoint(exported, tmp_path):
    """Folder -> start checkpoint -> folder: every file the same."""
    convert.convert(exported, tmp_path / "run", to="checkpoint", start_config=BASE)
    convert.convert(tmp_path / "run", tmp_path / "again")
    for path in exported.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name
    assert len(list((tmp_path / "again").iterdir())) == len(list(exported.iterdir()))


def test_a_run_can_start_from_the_checkpoint(exported, tmp_path):
    convert.convert(exported, tmp_path / "run", to="checkpoint", start_config=BASE)
    model = dataclasses.replace(RUN.model, init_from=str(tmp_path / "run"))
    start = dataclasses.replace(RUN, model=model)
    start = initial.with_sizes(start, initial.tokenizer(start))
    graphdef, state = initial.state(start, sharding.make_mesh(1, 2, 2), optax.sgd(0.1))
    started = nnx.merge(graphdef, state.params)
    tiny.assert_equal(params(started), params(models.from_pretrained(exported)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_is_reported(exported, tmp_path, dtype):
    check = convert.convert(exported, tmp_path / "half", dtype=dtype, max_shard_bytes=10_000)
    assert 0 < check.difference < check.tolerance
    assert len(list((tmp_path / "half").glob("*.safetensors"))) > 1
    again = convert.convert(tmp_path / "half", tmp_path / "again", dtype=dtype)
    assert again.difference == 0  # rounded before
    back = convert.convert(tmp_path / "half", tmp_path / "float32")
    assert back == convert.Check(0.0, 0.0)


def test_a_gguf_file(tmp_path):
    sizes = dict(vocab_size=48, num_layers=2, hidden_size=16, mlp_size=24, num_heads=4)
    sizes |= dict(num_kv_heads=2, head_dim=4, qkv_bias=False, norm_eps=1e-5, max_positions=512)
    model = tiny.random_model(models.ModelConfig(**sizes))
    words = ["<|im_start|>", "<|im_end|>", "10", *"0123456789+-=abcdefghijklmnopqrstuvwxyz"]
    vocab = {word: id for id, word in enumerate(words)}
    added = [{"id": id, "content": words[id], "special": True} for id in (0, 1)]
    tokenizer = {"model": {"vocab": vocab, "merges": ["1 0"]}, "added_tokens": added}
    fields = gguf_files.tokenizer_fields(tokenizer, "gpt-2", eos=1)
    fields |= gguf_files.metadata(model.config)
    source = gguf_files.write(tmp_path / "m.gguf", fields, gguf_files.tensors(model))
    assert convert.convert(source, tmp_path / "out") == convert.Check(0.0, 0.0)
    out = models.from_pretrained(tmp_path / "out")
    assert out.config == model.config
    tiny.assert_equal(params(out), params(model))
    assert tokenizer_lib.load(tmp_path / "out").encode("10+1<|im_end|>") == [2, 13, 4, 1]
    convert.convert(source, tmp_path / "run", to="checkpoint", start_config=BASE)
    convert.convert(tmp_path / "run", tmp_path / "back")
    for path in (tmp_path / "out").iterdir():
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes(), path.name


@contextlib.contextmanager
def fails(tmp_path, words):
    """The conversion in the block is refused in one line, and nothing appears in tmp_path."""
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(UserError, match=words) as caught:
        yield
    assert "\n" not in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_the_check_finds_a_damaged_write(exported, tmp_path, monkeypatch):
    cast = safetensors_file.cast

    def damage(part):
        def damaged(name, array, dtype):
            array = np.array(cast(name, array, dtype))
            if part in name:
                array.reshape(-1)[-1] += 0.125
            return array

        return damaged

    for part, words in (
        ("mlp.down_proj", "logits of the written model differ by up to .*, tolerance 0"),
        ("embed_tokens", "the check failed"),
    ):
        with monkeypatch.context() as patch, fails(tmp_path, words):
            patch.setattr(safetensors_file, "cast", damage(part))
            convert.convert(exported, tmp_path / "new")


def test_the_check_finds_a_row_that_no_token_reaches(tmp_path, monkeypatch):
    """Untied, the last row of the embedding is met by none of the fixed tokens."""
    model = tiny.random_model(models.ModelConfig(512, 1, 8, 8, 1, 1, 8, tie_embeddings=False))
    tokenizer = tokenizer_lib.load()
    models.save_pretrained(model, tmp_path / "m", tokenizer=tokenizer)
    cast = safetensors_file.cast

    def damaged(name, array, dtype):
        array = np.array(cast(name, array, dtype))
        array[-1] += "embed_tokens" in name
        return array

    monkeypatch.setattr(safetensors_file, "cast", damaged)
    with fails(tmp_path, "the check failed: embed is damaged"):
        convert.convert(tmp_path / "m", tmp_path / "new")


def test_the_check_finds_a_wrong_config_and_tokenizer(exported, tmp_path, monkeypatch):
    to_dict, save = hf_config.to_dict, tokenizer_lib.Tokenizer.save_pretrained
    wrong = {"rope_theta": 2e4, "rope_parameters": {"rope_type": "default", "rope_theta": 2e4}}
    with monkeypatch.context() as patch, fails(tmp_path, "logits of the written"):
        patch.setattr(hf_config, "to_dict", lambda c: to_dict(c) | wrong)
        convert.convert(exported, tmp_path / "new")

    def without_template(self, folder):
        save(self, folder)
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")

    with monkeypatch.context() as patch, fails(tmp_path, "the written tokenizer differs"):
        patch.setattr(tokenizer_lib.Tokenizer, "save_pretrained", without_template)
        convert.convert(exported, tmp_path / "new", to="checkpoint", start_config=BASE)


def test_a_source_that_is_not_finite(exported, tmp_path):
    model, tokenizer = models.from_pretrained(exported), tokenizer_lib.load(exported)
    model.final_norm[...] = model.final_norm[...].at[0].set(np.nan)
    models.save_pretrained(model, tmp_path / "nan", tokenizer=tokenizer)
    with fails(tmp_path, "logits are not finite"):
        convert.convert(tmp_path / "nan", tmp_path / "new")
    assert convert.convert(tmp_path / "nan", tmp_path / "new", check=False) is None


@pytest.mark.parametrize("to", convert.TARGETS)
def test_no_room(exported, tmp_path, to):
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, old[1]))
    try:
        with fails(tmp_path, "new can't be written: File too large"):
            convert.convert(exported, tmp_path / "new", to=to, start_config=BASE)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_wrong_sources_and_targets(run, exported, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/x").write_text("")
    new = tmp_path / "new"
    for source, target, options, words in (
        (tmp_path / "none", new, {}, "none' does not exist"),
        (tmp_path / "empty", new, {}, "no model: give a Hugging Face folder"),
        (exported / "config.json", new, {}, "config.json' is no model"),
        (exported, tmp_path / "full", {}, "exists and is not empty"),
        (exported, tmp_path / "full/x", {}, "exists and is not empty"),
        (exported, exported / "below", {}, "inside --source"),
        (exported, exported, {}, "inside --source"),
        (exported, new, {"dtype": "int4"}, "give one of float32, bfloat16"),
        (exported, new, {"to": "gguf"}, "give one of huggingface, checkpoint"),
        (exported, new, {"to": "checkpoint", "dtype": "bfloat16"}, "parameters .* are float32"),
        (exported, new, {"step": 1}, "is no workdir of a run"),
    ):
        with fails(tmp_path, words):
            convert.convert(source, target, **options)
    convert.convert(exported, tmp_path / "empty", check=False)  # an empty folder may be filled
    assert (tmp_path / "empty/config.json").exists()


def test_workdirs_that_hold_no_such_model(run, tmp_path):
    shutil.copytree(run, tmp_path / "a")
    values = json.loads((run / "config.json").read_text())
    values["model"]["mlp_size"] = 48
    (tmp_path / "a/config.json").write_text(json.dumps(values))
    with fails(tmp_path, r"another model .*: blocks.mlp.down is \(1, 64, 32\), not \(1, 48, 32\)"):
        convert.convert(tmp_path / "a", tmp_path / "new")
    shutil.rmtree(tmp_path / "a/checkpoints")
    with fails(tmp_path, "holds no checkpoints"):
        convert.convert(tmp_path / "a", tmp_path / "new")


def test_a_folder_without_tokenizer(exported, tmp_path):
    shutil.copytree(exported, tmp_path / "m")
    (tmp_path / "m/tokenizer.json").unlink()
    with fails(tmp_path, "m' not found: give a folder with tokenizer.json"):
        convert.convert(tmp_path / "m", tmp_path / "new")


def test_the_main(repo, exported, tmp_path):
    command = [sys.executable, "-m", "experiments.convert", f"--source={exported}"]
    command += [f"--target={tmp_path / 'new'}", "--dtype=bfloat16"]
    done = subprocess.run(command, cwd=repo, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert first.startswith("logits: max difference ") and ", tolerance " in first
    assert last == f"wrote {tmp_path / 'new'}"
