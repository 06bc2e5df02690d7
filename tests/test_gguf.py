"""GGUF files in: every type and layout against the package that wrote them, and wrong input."""

import dataclasses

import gguf
import gguf_files
import jax
import numpy as np
import pytest
import tiny
from flax import nnx
from gguf import GGMLQuantizationType as Quantisation

from cpgd_jax import gguf_file, models, sharding
from cpgd_jax.errors import UserError
from cpgd_jax.models.qwen2 import ModelConfig

CONFIG = ModelConfig(
    vocab_size=40,
    num_layers=2,
    hidden_size=64,
    mlp_size=96,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=5000.0,
    norm_eps=1e-5,
    max_positions=512,
)


def make(**change):
    return tiny.random_model(dataclasses.replace(CONFIG, **change))


def write(path, model, kind="F32", drop=(), **fields):
    """A GGUF file of a model; `fields` are further metadata, `drop` names that are left out."""
    arch = "qwen2" if model.config.qkv_bias else "llama"
    named = gguf_files.metadata(model.config) | {
        key if "." in key else f"{arch}.{key.replace('__', '.')}": v for key, v in fields.items()
    }
    arrays = {k: v for k, v in gguf_files.tensors(model).items() if k not in drop}
    return gguf_files.write(path, named, arrays, kind)


def same(ours, theirs):
    for a, b in zip(*(jax.tree.leaves(nnx.state(m)) for m in (ours, theirs)), strict=True):
        np.testing.assert_array_equal(a, b)
    return True


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "m.gguf", make())


@pytest.mark.parametrize("bias", [True, False], ids=["qwen2", "llama"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_round_trip(tmp_path, bias, tied):
    """Llama's q and k come back from pairs; the config is that of the metadata."""
    model = make(qkv_bias=bias, tie_embeddings=tied)
    loaded = models.from_pretrained(write(tmp_path / "m.gguf", model), dtype="bfloat16")
    assert same(model, loaded)
    assert loaded.config == dataclasses.replace(model.config, dtype="bfloat16")


def test_rows_in_pairs_by_hand():
    """A head of 4 rows stands as 0 2 1 3 in the file."""
    assert gguf_files.permute(np.arange(8.0)[:, None], 2)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_types_that_can_be_written(tmp_path, kind):
    model = make()
    loaded = models.from_pretrained(write(tmp_path / "m.gguf", model, kind))
    expected = {
        name: gguf.dequantize(gguf.quantize(array, Quantisation[kind]), Quantisation[kind])
        for name, array in gguf_files.tensors(model).items()
        if array.ndim > 1
    }
    for name, array in gguf_files.tensors(loaded).items():
        if array.ndim > 1:
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("kind", ["Q4_K", "Q5_K", "Q6_K"])
def test_types_that_can_only_be_read(tmp_path, kind):
    """Any bytes are a block of these; whole or by rows, they mean what the package says."""
    block, size = gguf.GGML_QUANT_SIZES[Quantisation[kind]]
    data = np.random.default_rng(0).integers(0, 256, (6, 2 * size), np.uint8)
    fields = {"general.architecture": "qwen2"}
    path = gguf_files.write(tmp_path / "m.gguf", fields, {"x.weight": data}, kind)
    tensor = gguf_file.read(path).tensors["x.weight"]
    expected = gguf.dequantize(data, Quantisation[kind])
    assert tensor.shape == expected.shape == (6, 2 * block)
    np.testing.assert_array_equal(tensor.read(slice(None)), expected)
    np.testing.assert_array_equal(tensor.read(slice(2, 5)), expected[2:5])


@pytest.mark.parametrize("bias", [True, False], ids=["qwen2", "llama"])
def test_read_straight_to_a_mesh(tmp_path, bias, monkeypatch):
    monkeypatch.setattr("cpgd_jax.models.weights.CHUNK_BYTES", 2048)  # several chunks a tensor
    model = make(qkv_bias=bias, tie_embeddings=False)
    mesh = sharding.make_mesh(1, 2, 2)
    loaded = models.from_pretrained(write(tmp_path / "m.gguf", model), mesh=mesh)
    assert same(model, loaded)
    assert loaded.blocks.attention.q[...].addressable_shards[0].data.shape == (2, 32, 2, 8)


def test_head_dim_and_groups_may_be_implied(tmp_path):
    model = make(head_dim=16, num_kv_heads=4)
    fields = gguf_files.metadata(model.config)
    for key in ("attention.key_length", "attention.head_count_kv"):
        del fields[f"qwen2.{key}"]
    path = gguf_files.write(tmp_path / "m.gguf", fields, gguf_files.tensors(model))
    assert models.from_pretrained(path).config == model.config


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"general.architecture": "gemma3"}, "'gemma3' is not supported, only llama, qwen2"),
        ({"rope__scaling__type": "yarn"}, "rope.scaling.type = yarn is not supported, only none"),
        ({"attention__value_length": 16}, "attention.value_length = 16"),
        ({"rope__dimension_count": 4}, "rope.dimension_count = 4 is not supported, only 8"),
        ({"block_count": 0}, "block_count = 0 must be a positive whole number"),
        ({"block_count": 3}, "lack tensor blk.2.attn_norm.weight"),
        ({"block_count": 1}, "unexpected tensor blk.1"),
        ({"block_count": [2, 2]}, r"block_count = \[2, 2\] must be"),
        ({"rope__freq_base": -1.0}, "rope.freq_base = -1.0 must be"),
        ({"embedding_length": 32}, r"token_embd.weight has shape \(40, 64\), .*\(40, 32\)"),
        ({"attention__head_count_kv": 3}, "whole groups"),
    ],
)
def test_metadata_that_do_not_fit_are_one_clear_line(tmp_path, fields, words):
    path = write(tmp_path / "m.gguf", make(), **fields)
    with pytest.raises(UserError, match=words) as caught:
        models.from_pretrained(path)
    assert "\n" not in str(caught.value)


def test_missing_and_foreign_tensors_are_named(tmp_path):
    path = write(tmp_path / "a.gguf", make(), drop=("blk.1.ffn_up.weight",))
    with pytest.raises(UserError, match="lack tensor blk.1.ffn_up.weight"):
        models.from_pretrained(path)
    path = write(tmp_path / "b.gguf", make(), drop=("token_embd.weight",))
    with pytest.raises(UserError, match="lacks tensor token_embd.weight"):
        models.from_pretrained(path)
    model = make(qkv_bias=False)
    arrays = gguf_files.tensors(model) | {"rope_freqs.weight": np.ones(4, np.float32)}
    path = gguf_files.write(tmp_path / "c.gguf", gguf_files.metadata(model.config), arrays)
    with pytest.raises(UserError, match="unexpected tensor rope_freqs.weight"):
        models.from_pretrained(path)


def test_a_type_that_is_not_supported_is_named(tmp_path):
    data = np.zeros((2, 84), np.uint8)
    fields = {"general.architecture": "qwen2"}
    path = gguf_files.write(tmp_path / "m.gguf", fields, {"token_embd.weight": data}, "Q2_K")
    with pytest.raises(UserError, match="token_embd.weight is stored as Q2_K.* Q4_K, Q5_K"):
        models.from_pretrained(path)


def test_no_file_and_no_gguf(tmp_path):
    with pytest.raises(UserError, match="none.gguf does not exist"):
        models.from_pretrained(tmp_path / "none.gguf")
    for text in (b"", b"GG", b"{}" * 100, b"GGUF\x01\0\0\0", b"GGUF\0\0\0\x03" + bytes(50)):
        (tmp_path / "m.gguf").write_bytes(text)
        with pytest.raises(UserError, match="truncated or no GGUF file"):
            models.from_pretrained(tmp_path / "m.gguf")


def test_wherever_it_is_cut_it_is_one_clear_line(file):
    whole = file.read_bytes()
    for size in [*range(0, 4000, 37), len(whole) // 2, len(whole) - 1]:
        file.write_bytes(whole[:size])
        with pytest.raises(UserError, match="m.gguf is truncated or no GGUF") as caught:
            models.from_pretrained(file)
        assert "\n" not in str(caught.value)


def test_any_byte_of_the_header_may_be_wrong(file):
    """It loads as something, or it is a UserError; never another error, and never without end."""
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    data_start = gguf.GGUFReader(file).data_offset
    refused = 0
    for _ in range(250):
        damaged = bytearray(whole)
        damaged[rng.integers(data_start)] = rng.integers(256)
        file.write_bytes(damaged)
        try:
            models.weights.read_config(file)
        except UserError as error:
            refused += 1
            assert "\n" not in str(error)
    assert 80 < refused < 250


def test_a_length_beyond_every_file_ends_at_once(tmp_path):
    """A list of 2**60 numbers, and one of 2**60 texts."""
    fields = {"general.architecture": "qwen2", "qwen2.list": [7] * 5, "qwen2.texts": ["a", "b"]}
    path = gguf_files.write(tmp_path / "m.gguf", fields, {"x": np.ones(4, np.float32)})
    whole = path.read_bytes()
    for key, count in (("qwen2.list", 5), ("qwen2.texts", 2)):
        at = whole.index(key.encode()) + len(key) + 8
        assert whole[at : at + 8] == count.to_bytes(8, "little")
        path.write_bytes(whole[:at] + (2**60).to_bytes(8, "little") + whole[at + 8 :])
        with pytest.raises(UserError, match="truncated"):
            gguf_file.read(path)
