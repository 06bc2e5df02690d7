"""Hugging Face folders out, without torch: what the files hold, and what a failure leaves."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
import tiny
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import load_file

from cpgd_jax import models, sharding
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.errors import UserError
from cpgd_jax.models import safetensors_file
from cpgd_jax.models.qwen2 import ModelConfig

CONFIG = ModelConfig(
    vocab_size=128,  # more than the tokenizer has
    num_layers=3,
    hidden_size=16,
    mlp_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=4,
)


@pytest.fixture(scope="module")
def model():
    return tiny.random_model(CONFIG)


ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parent), "JAX_PLATFORMS": "cpu"}


def params(model):
    return jax.device_get(jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_the_file_is_a_safetensors_file(model, tmp_path):
    models.save_pretrained(model, tmp_path / "m")
    path = tmp_path / "m/model.safetensors"
    with safe_open(path, framework="numpy") as file:
        assert file.metadata() == {"format": "pt"}
        np.testing.assert_array_equal(file.get_tensor("model.embed_tokens.weight"), model.embed)
    data_starts = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert data_starts % 8 == 0
    assert path.stat().st_size == data_starts + sum(x.nbytes for x in params(model))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounded_to_nearest(model, tmp_path, dtype):
    models.save_pretrained(model, tmp_path / "m", dtype=dtype, max_shard_bytes=4000)
    assert json.loads((tmp_path / "m/config.json").read_text())["torch_dtype"] == dtype
    index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in params(model)) // 2
    kind = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[dtype]
    for file in set(index["weight_map"].values()):
        assert {t.dtype for t in load_file(tmp_path / "m" / file).values()} == {np.dtype(kind)}
    expected = [x.astype(kind).astype(np.float32) for x in params(model)]
    tiny.assert_equal(params(models.from_pretrained(tmp_path / "m")), expected)


def test_a_value_beyond_the_dtype_is_named(tmp_path):
    model = tiny.random_model(CONFIG)
    model.blocks.mlp.up[...] = model.blocks.mlp.up[...].at[1, 2, 3].set(1e5)
    models.save_pretrained(model, tmp_path / "m", dtype="bfloat16")
    with pytest.raises(UserError, match=r"layers.1.mlp.up_proj.weight holds 1e\+05, which float16"):
        models.save_pretrained(model, tmp_path / "n", dtype="float16")
    with pytest.raises(UserError, match="dtype 'int8': the files are one of float32"):
        models.save_pretrained(model, tmp_path / "n", dtype="int8")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


def test_from_a_mesh_layer_by_layer(model, tmp_path, monkeypatch):
    """The files are the same; no parameter that is split is gathered whole; few programs."""
    models.save_pretrained(model, tmp_path / "one")
    mesh = sharding.make_mesh(1, 2, 2)
    graphdef, state = nnx.split(model)
    state = jax.device_put(state, sharding.param_shardings(mesh, state))
    cast, gathered = safetensors_file.cast, []

    def watch(name, array, dtype):
        gathered.append(array.size)
        return cast(name, array, dtype)

    monkeypatch.setattr(safetensors_file, "cast", watch)
    with tiny.compilations() as compiled:
        models.save_pretrained(nnx.merge(graphdef, state), tmp_path / "four")
    assert max(gathered) == CONFIG.vocab_size * CONFIG.hidden_size  # the table; no stack of layers
    assert len(compiled) <= 12  # one a parameter of a layer, however many layers
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "four" / name).read_bytes()


def test_tokenizer_and_ids(model, tmp_path):
    own = tokenizer_lib.load()
    for _ in range(2):  # the second time over the first
        models.save_pretrained(model, tmp_path / "m", tokenizer=own)
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
    read = lambda name: json.loads((tmp_path / "m" / name).read_text())  # noqa: E731
    first, *_ = own.stop_ids
    assert read("config.json")["eos_token_id"] == first
    assert read("generation_config.json") == {
        "eos_token_id": list(own.stop_ids),
        "pad_token_id": own.pad_id,
    }
    # a class that transformers 4 knows
    assert read("tokenizer_config.json")["tokenizer_class"] == "PreTrainedTokenizerFast"
    again = tokenizer_lib.load(tmp_path / "m")
    assert (again.stop_ids, again.pad_id) == (own.stop_ids, own.pad_id)
    assert again.encode_prompt("7+8=?") == own.encode_prompt("7+8=?")
    assert models.from_pretrained(tmp_path / "m").config.vocab_size == 128 > own.vocab_size


def test_ids_of_a_tokenizer_of_transformers(model, tmp_path):
    special = {"bos_token": "<|im_start|>", "additional_special_tokens": ["<think>", "</think>"]}
    theirs = tokenizer_lib.load().fast
    theirs.add_special_tokens(special)
    models.save_pretrained(model, tmp_path / "m", tokenizer=theirs)
    config = json.loads((tmp_path / "m/config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    names = json.loads((tmp_path / "m/tokenizer_config.json").read_text())
    assert names["additional_special_tokens"] == ["<think>", "</think>"]
    assert "extra_special_tokens" not in names  # transformers 4 wants a dict there
    again = tokenizer_lib.load(tmp_path / "m").fast
    assert again.all_special_ids == theirs.all_special_ids
    models.save_pretrained(model, tmp_path / "m", tokenizer=theirs, stop_ids=np.array([5, 2]))
    generation = json.loads((tmp_path / "m/generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [5, 2], "pad_token_id": 0}


def test_a_folder_that_holds_other_things_is_not_replaced(model, tmp_path):
    models.save_pretrained(model, tmp_path / "m")
    (tmp_path / "m/thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="thesis.tex"):
        models.save_pretrained(model, tmp_path / "m")
    with pytest.raises(UserError, match="is a file"):
        models.save_pretrained(model, tmp_path / "m/thesis.tex")
    with pytest.raises(UserError, match="can't be written"):
        models.save_pretrained(model, tmp_path / "m/thesis.tex/below")


def contents(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


def test_no_room_leaves_the_old_folder(model, tmp_path):
    """The system itself refuses: files may not grow beyond a limit."""
    models.save_pretrained(model, tmp_path / "m", max_shard_bytes=8_000)
    before = contents(tmp_path / "m")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, old[1]))
    try:
        with pytest.raises(UserError, match="m can't be written: File too large") as caught:
            models.save_pretrained(model, tmp_path / "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert "\n" not in str(caught.value)
    assert contents(tmp_path / "m") == before and [p.name for p in tmp_path.iterdir()] == ["m"]


KILLED = """
import os, signal, sys
from cpgd_jax import models
from cpgd_jax.models import safetensors_file
cast = safetensors_file.cast
def die_in_the_third_layer(name, array, dtype):
    if "layers.2" in name:
        os.kill(os.getpid(), signal.SIGKILL)
    return cast(name, array, dtype)
safetensors_file.cast = die_in_the_third_layer
models.save_pretrained(models.from_pretrained(sys.argv[1]), sys.argv[1], max_shard_bytes=8_000)
"""


def test_killed_while_saving(model, tmp_path):
    """The old folder is as it was; what is left beside it is no model, and goes with the next."""
    models.save_pretrained(model, tmp_path / "m")
    before = contents(tmp_path / "m")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "m")]
    done = subprocess.run(command, env=ENVIRONMENT)
    assert done.returncode == -signal.SIGKILL
    assert contents(tmp_path / "m") == before
    (left,) = tmp_path.glob(".m.making-*/new")
    assert list(left.glob("*.safetensors")) and not (left / "config.json").exists()
    with pytest.raises(UserError):
        models.from_pretrained(left)
    models.save_pretrained(model, tmp_path / "m")
    assert [p.name for p in tmp_path.iterdir()] == ["m"]


MEMORY = """
import sys, threading
import jax, tiny
from cpgd_jax import models
from cpgd_jax.models.qwen2 import ModelConfig
def anonymous():
    status = open("/proc/self/status").read()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024
model = tiny.random_model(ModelConfig(4096, 16, 512, 2048, 8, 2, 64))
jax.block_until_ready(jax.lax.dynamic_index_in_dim(model.blocks.mlp.up[...], 0))
start, peak, done = anonymous(), [0], threading.Event()
def watch():
    while not done.wait(0.002):
        peak[0] = max(peak[0], anonymous())
thread = threading.Thread(target=watch)
thread.start()
models.save_pretrained(model, sys.argv[1])
done.set(); thread.join()
print(peak[0] - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_saving_takes_the_memory_of_a_tensor(tmp_path):
    """A model of 250 MB whose largest tensor has 8 MB."""
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "m")]
    done = subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True, text=True)
    assert int(done.stdout) < 40 * 2**20
