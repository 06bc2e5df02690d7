"""Hugging Face folders in and out, without torch: layouts by hand, stored types, wrong input."""

import dataclasses
import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from cpgd_jax import models, sharding
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig, Qwen2

CONFIG = ModelConfig(
    vocab_size=32,
    num_layers=2,
    hidden_size=12,
    mlp_size=20,
    num_heads=4,
    num_kv_heads=2,
    head_dim=6,
    rope_theta=5000.0,
)
Q0, K1 = "model.layers.0.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"


def make(**change):
    config = dataclasses.replace(CONFIG, **change)
    graphdef, abstract = nnx.split(nnx.eval_shape(lambda: Qwen2(config, nnx.Rngs(0))))
    rng = np.random.default_rng(0)
    # values that bfloat16 and float16 hold exactly
    draw = lambda x: jnp.asarray(rng.integers(-64, 64, x.shape) / 128, jnp.float32)  # noqa: E731
    return nnx.merge(graphdef, jax.tree.map(draw, abstract))


def same(ours, theirs):
    for a, b in zip(*(jax.tree.leaves(nnx.state(m)) for m in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(a, b)
    return True


@pytest.fixture
def folder(tmp_path):
    models.save_pretrained(make(), tmp_path / "model")
    return tmp_path / "model"


def change_config(folder, **fields):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "drop"}))


def change_tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize("change", [{}, {"tie_embeddings": False}, {"qkv_bias": False}])
def test_round_trip(tmp_path, change):
    model = make(**change)
    models.save_pretrained(model, tmp_path / "m")
    loaded = models.from_pretrained(tmp_path / "m")
    assert same(model, loaded) and loaded.config == model.config
    assert ("lm_head.weight" in load_file(tmp_path / "m/model.safetensors")) == bool(
        change.get("tie_embeddings") is False
    )


def test_the_layout_of_every_kind_of_tensor(folder):
    """A linear map is [out, in] in the file and head n is rows n*H to (n+1)*H."""
    tensors, attention = load_file(folder / "model.safetensors"), make().blocks.attention
    H, layer = CONFIG.head_dim, "model.layers.1."
    for n in range(CONFIG.num_heads):
        rows = slice(n * H, (n + 1) * H)
        q_HD = tensors[layer + "self_attn.q_proj.weight"][rows]
        np.testing.assert_array_equal(q_HD, attention.q[1][:, n].T)
        np.testing.assert_array_equal(
            tensors[layer + "self_attn.q_proj.bias"][rows], attention.q_bias[1][n]
        )
        o_DH = tensors[layer + "self_attn.o_proj.weight"][:, rows]
        np.testing.assert_array_equal(o_DH, attention.o[1][n].T)
    down_DF = tensors[layer + "mlp.down_proj.weight"]
    np.testing.assert_array_equal(down_DF, make().blocks.mlp.down[1].T)
    assert len(tensors) == 2 + 12 * CONFIG.num_layers


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_stored_in_half_precision(folder, dtype):
    change_tensors(folder, lambda t: t.update({k: v.astype(dtype) for k, v in t.items()}))
    model = models.from_pretrained(folder, dtype="bfloat16")
    assert same(model, make()) and model.config.dtype == "bfloat16"
    assert {x.dtype for x in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}


def test_stored_in_several_precisions(folder):
    kinds = [np.float16, ml_dtypes.bfloat16, np.float32]
    change_tensors(
        folder, lambda t: t.update({k: v.astype(kinds[len(k) % 3]) for k, v in t.items()})
    )
    assert {str(v.dtype) for v in load_file(folder / "model.safetensors").values()} == {
        "float16",
        "bfloat16",
        "float32",
    }
    assert same(models.from_pretrained(folder), make())


@pytest.mark.parametrize("mesh", [None, (1, 2, 2)])
def test_parameters_in_half_precision(folder, mesh):
    mesh = None if mesh is None else sharding.make_mesh(*mesh)
    model = models.from_pretrained(folder, mesh=mesh, param_dtype="bfloat16")
    assert {x.dtype for x in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("bfloat16")}
    assert same(model, make())
    with pytest.raises(UserError, match="param_dtype 'int8' is not one of float32, bfloat16"):
        models.from_pretrained(folder, param_dtype="int8")


def test_several_files_by_index(tmp_path):
    models.save_pretrained(make(), tmp_path / "m", max_shard_bytes=4000)
    files = sorted(p.name for p in (tmp_path / "m").glob("*.safetensors"))
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors" and len(files) > 3
    sizes = [sum(t.nbytes for t in load_file(tmp_path / "m" / f).values()) for f in files]
    index = json.loads((tmp_path / "m/model.safetensors.index.json").read_text())
    assert max(sizes) <= 4000 and index["metadata"]["total_size"] == sum(sizes)
    assert same(models.from_pretrained(tmp_path / "m"), make())
    (tmp_path / "m" / files[1]).unlink()
    with pytest.raises(UserError, match=f"{files[1]} does not exist, but .*index.json names it"):
        models.from_pretrained(tmp_path / "m")
    for name in ("../outside.safetensors", "/etc/passwd", "below/x.safetensors", "..", "", "x.bin"):
        index["weight_map"][Q0] = name
        (tmp_path / "m/model.safetensors.index.json").write_text(json.dumps(index))
        with pytest.raises(
            UserError, match=f"names '{name}': it may only name safetensors files beside"
        ):
            models.from_pretrained(tmp_path / "m")


@pytest.mark.parametrize("chunk_bytes", [64, 2**20])
def test_read_straight_to_a_mesh_and_saved_from_it(folder, tmp_path, monkeypatch, chunk_bytes):
    monkeypatch.setattr("cpgd_jax.models.weights.CHUNK_BYTES", chunk_bytes)
    mesh = sharding.make_mesh(1, 2, 2)
    model = models.from_pretrained(folder, mesh=mesh)
    assert same(model, make())
    placed = nnx.to_flat_state(nnx.state(model))
    wanted = nnx.to_flat_state(sharding.param_shardings(mesh, nnx.state(model)))
    for (path, array), (_, place) in zip(placed, wanted, strict=True):
        assert array.get_raw_value().sharding == place.get_raw_value(), path
    q = model.blocks.attention.q[...]
    assert q.addressable_shards[0].data.shape == (2, 6, 2, 6)
    models.save_pretrained(model, tmp_path / "again")
    assert same(models.from_pretrained(tmp_path / "again"), make())


def test_both_spellings_of_the_rotation_base(folder):
    change_config(folder, rope_parameters="drop", rope_theta=777)
    assert models.from_pretrained(folder).config.rope_theta == 777.0
    change_config(
        folder, rope_theta="drop", rope_parameters={"rope_type": "default", "rope_theta": 9e4}
    )
    assert models.from_pretrained(folder).config.rope_theta == 9e4
    change_config(folder, rope_parameters="drop", rope_scaling=None)
    assert models.from_pretrained(folder).config.rope_theta == 1e4  # transformers' own default


def test_head_dim_may_be_implied(tmp_path):
    models.save_pretrained(make(head_dim=3 * 2, hidden_size=24), tmp_path / "m")
    change_config(tmp_path / "m", head_dim="drop")
    assert models.from_pretrained(tmp_path / "m").config.head_dim == 6


def test_what_files_carry_along_is_let_through(folder):
    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)

    change_tensors(folder, add)
    assert same(models.from_pretrained(folder), make())
    change_tensors(folder, lambda t: t.update({"lm_head.weight": t["lm_head.weight"] + 1}))
    with pytest.raises(UserError, match="unexpected tensor lm_head.weight"):
        models.from_pretrained(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}, "GPT2LM.*Qwen2ForCausalLM"),
        ({"architectures": ["Qwen2ForSequenceClassification"]}, "Qwen2ForSequenceClassification"),
        ({"model_type": "drop", "architectures": "drop"}, "not supported"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "llama3"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention"),
        ({"rope_theta": "1e6", "rope_parameters": "drop"}, "rope_theta = '1e6'"),
        ({"use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1}, "sliding"),
        (
            {"use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
            "slid",
        ),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_size": "drop"}, "hidden_size = None"),
        ({"rms_norm_eps": "small"}, "no model's config"),
        ({"architectures": 7}, "no model's config"),
        ({"rope_scaling": "linear"}, "no model's config"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"num_key_value_heads": 3}, "whole groups"),
        ({"head_dim": 5}, "even head_dim"),
        ({"hidden_size": 16}, r"embed_tokens.weight has shape \(32, 12\)"),
        ({"num_hidden_layers": 3}, "lack tensor model.layers.2"),
        ({"num_hidden_layers": 1}, "unexpected tensor model.layers.1"),
        ({"tie_word_embeddings": False}, "lack tensor lm_head.weight"),
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, "unexpected .*bias"),
    ],
)
def test_a_config_that_does_not_fit_is_one_clear_line(folder, fields, words):
    change_config(folder, **fields)
    with pytest.raises(UserError, match=words) as caught:
        models.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_a_sliding_window_that_is_not_used_is_no_matter(folder):
    change_config(folder, use_sliding_window=False, sliding_window=32, max_window_layers=1)
    assert same(models.from_pretrained(folder), make())
    change_config(folder, use_sliding_window=True, max_window_layers=28)
    assert same(models.from_pretrained(folder), make())


def test_a_deep_llama_has_no_sliding_window(tmp_path):
    model = make(num_layers=30, qkv_bias=False)
    models.save_pretrained(model, tmp_path / "m")
    assert same(models.from_pretrained(tmp_path / "m"), model)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.pop(K1), f"lack tensor {K1}"),
        (lambda t: t.update(extra=np.ones(2, np.float32)), "unexpected tensor extra"),
        (lambda t: t.update({Q0: t[Q0].T.copy()}), rf"{Q0} has shape \(12, 24\)"),
        (lambda t: t.update({Q0: t[Q0].astype(np.int8)}), f"{Q0} is stored as I8"),
    ],
)
def test_tensors_that_do_not_fit_are_named(folder, change, words):
    change_tensors(folder, change)
    with pytest.raises(UserError, match=words):
        models.from_pretrained(folder)


def test_broken_files_are_one_clear_line(folder, tmp_path):
    whole = (folder / "model.safetensors").read_bytes()
    for data in (whole[:-100], whole[:50], b"", b"{}" * 100):
        (folder / "model.safetensors").write_bytes(data)
        with pytest.raises(UserError, match="model.safetensors is truncated") as caught:
            models.from_pretrained(folder)
        assert "\n" not in str(caught.value)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="holds neither"):
        models.from_pretrained(folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(UserError, match="pickle checkpoint only .pytorch_model.bin"):
        models.from_pretrained(folder)
    with pytest.raises(UserError, match="pytorch_model.bin is a file.* a pickle runs code"):
        models.from_pretrained(folder / "pytorch_model.bin")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')
    with pytest.raises(UserError, match="no index"):
        models.from_pretrained(folder)
    for text in ("{", "[" * 100_000, "\udcff"):
        (folder / "config.json").write_text(text, errors="surrogateescape")
        with pytest.raises(UserError, match="config.json can't be read"):
            models.from_pretrained(folder)
    (folder / "config.json").unlink()
    with pytest.raises(UserError, match="config.json does not exist"):
        models.from_pretrained(folder)
    with pytest.raises(UserError, match="nowhere does not exist"):
        models.from_pretrained(tmp_path / "nowhere")


def test_an_unknown_dtype_is_refused(folder):
    with pytest.raises(UserError, match="int4"):
        models.from_pretrained(folder, dtype="int4")


MEMORY = """
import sys, threading, time
import jax
def anonymous():
    status = open("/proc/self/status").read()
    return int(status.split("RssAnon:")[1].split()[0]) * 1024
from cpgd_jax import models, sharding
mesh = sharding.make_mesh(1, 2, 2) if sys.argv[2] == "mesh" else None
jax.device_put(0).block_until_ready()
start, peak, done = anonymous(), [0], threading.Event()
def watch():
    while not done.is_set():
        peak[0] = max(peak[0], anonymous())
        time.sleep(0.002)
thread = threading.Thread(target=watch)
thread.start()
model = models.from_pretrained(sys.argv[1], mesh=mesh)
done.set(); thread.join()
print(peak[0] - start)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("where", ["mesh", "device"])
def test_a_model_is_never_in_memory_twice(tmp_path, where):
    """Nor is a stacked parameter: beside the model the host holds a tensor and some slack."""
    change = {"num_layers": 16, "hidden_size": 512, "mlp_size": 4096, "vocab_size": 4096}
    model = make(**change, head_dim=64, num_heads=8)
    arrays = [x.nbytes for x in jax.tree.leaves(nnx.state(model))]
    models.save_pretrained(model, tmp_path / "m")
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "m"), where]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    slack = 90 * 2**20  # of which compiling takes a third
    assert peak < sum(arrays) + slack and slack < 0.75 * max(arrays) < sum(arrays) / 4
