"""What is saved or converted loads in transformers (torch, float32) with our logits and ids."""

import dataclasses

import numpy as np
import pytest
import tiny
from flax import nnx

from cpgd_jax import checkpoint, convert, models, supervised
from cpgd_jax.data import tokenizer as tokenizer_lib
from cpgd_jax.models.qwen2 import ModelConfig

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

CONFIG = ModelConfig(
    vocab_size=128,  # more than the arithmetic task's tokenizer has
    num_layers=3,
    hidden_size=16,
    mlp_size=24,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope_theta=1e4,
)
KINDS = {
    "tied-bias": {},
    "untied-bias": {"tie_embeddings": False},
    "tied-no-bias": {"qkv_bias": False},
    "untied-no-bias": {"tie_embeddings": False, "qkv_bias": False},
}


def assert_equal_in_transformers(model, folder, tolerance=1e-4, **options):
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", **options
    )
    assert not any(info.values()), info
    token_BT = np.random.default_rng(0).integers(0, model.config.vocab_size, (2, 9))
    with torch.no_grad():
        theirs_BTV = theirs(torch.tensor(token_BT)).logits.float().numpy()
    ours_BTV = models.logits(model, token_BT)
    scale = np.abs(theirs_BTV).max()
    np.testing.assert_allclose(ours_BTV, theirs_BTV, rtol=0, atol=tolerance * scale)
    tied = theirs.lm_head.weight is theirs.model.embed_tokens.weight
    assert tied == model.config.tie_embeddings
    return theirs


@pytest.mark.parametrize("change", KINDS.values(), ids=KINDS)
def test_every_kind(tmp_path, change):
    model = tiny.random_model(dataclasses.replace(CONFIG, **change))
    own = tokenizer_lib.load()
    models.save_pretrained(model, tmp_path, tokenizer=own, max_shard_bytes=9_000)
    theirs = assert_equal_in_transformers(model, tmp_path)
    assert theirs.generation_config.eos_token_id == list(own.stop_ids)
    assert theirs.config.eos_token_id == own.stop_ids[0]
    assert theirs.config.vocab_size == 128 > own.vocab_size


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_what_transformers_loads(tmp_path, dtype):
    models.save_pretrained(tiny.random_model(CONFIG), tmp_path, dtype=dtype)
    rounded = models.from_pretrained(tmp_path)
    assert_equal_in_transformers(rounded, tmp_path, dtype="float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert theirs.dtype == getattr(torch, dtype)


def test_a_run_of_one_step(tmp_path, one_device):
    """Trained, converted, loaded by transformers: equal logits, and not those before the step."""
    values = {"stage": "supervised", "supervised__steps": 1, "rollout__max_response_len": 16}
    values |= {"supervised__batch_size": 4, "eval__problems": 1, "eval__samples": 1}
    supervised.train(tiny.config(**values, optim__lr=0.1), str(tmp_path / "run"))
    convert.convert(tmp_path / "run", tmp_path / "out")
    model, _ = checkpoint.load_model(tmp_path / "run")
    assert_equal_in_transformers(model, tmp_path / "out")
    untrained = models.Qwen2(model.config, nnx.Rngs(tiny.config().seed))
    assert np.abs(model.embed[...] - untrained.embed[...]).max() > 0.01


def test_tokenizers_of_a_folder(tmp_path, shared):
    """By what transformers itself picks for the folder."""
    text = "<|im_start|>user\n12 × 3.5 = \\boxed{42}?\n\n  naïve 数学<|im_end|>"
    for name, qkv_bias in (("qwen2_5_tokenizer", True), ("smollm2_tokenizer", False)):
        own = tokenizer_lib.load(shared / "data" / name)
        model = tiny.random_model(dataclasses.replace(CONFIG, qkv_bias=qkv_bias))
        models.save_pretrained(model, tmp_path / name, tokenizer=own)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / name)
        again = tokenizer_lib.load(tmp_path / name)
        assert theirs.encode(text) == own.encode(text) == again.encode(text)
        assert theirs.chat_template == own.fast.chat_template
        assert again.stop_ids == own.stop_ids
