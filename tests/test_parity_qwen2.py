"""Tiny random transformers models (torch, float32), built in memory, against ours."""

import gguf_files
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from cpgd_jax import models
from cpgd_jax.models import attention, rope
from cpgd_jax.rollout import generate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.parity

VOCAB, STOP = 96, 95
GRID = {  # type, layers, heads, kv heads, head_dim, width, tied, theta
    "qwen-grouped-tied": ("qwen2", 2, 4, 2, 8, 32, True, 1e6),
    "qwen-one-kv-untied": ("qwen2", 3, 4, 1, 16, 48, False, 1e4),
    "qwen-no-groups-wide-heads": ("qwen2", 2, 3, 3, 20, 36, True, 5e5),
    "qwen-deep-narrow-heads": ("qwen2", 5, 6, 2, 4, 40, False, 1e6),
    "llama-grouped-tied": ("llama", 4, 9, 3, 8, 72, True, 1e5),
    "llama-untied-wide-heads": ("llama", 2, 4, 4, 12, 40, False, 1e4),
}


def build(model_type, num_layers, num_heads, num_kv_heads, head_dim, width, tied, theta):
    """A transformers model with every parameter random (its own init leaves biases 0, norms 1)."""
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=2 * width + 32,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        tie_word_embeddings=tied,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        eos_token_id=STOP,
        pad_token_id=0,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    theirs = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return theirs.eval()


def load(shape, folder):
    """(their model, ours read from the folder that it saved)."""
    theirs = build(*shape)
    theirs.save_pretrained(folder)
    return theirs, models.from_pretrained(folder)


@pytest.fixture(scope="module", params=GRID.values(), ids=GRID.keys())
def pair(request, tmp_path_factory):
    return load(request.param, tmp_path_factory.mktemp("theirs"))


def ids(*shape):
    return np.random.default_rng(0).integers(1, STOP, shape)


def torch_logits(theirs, token_BT, mask_BT=None):
    """With the positions that their `generate` derives from a mask."""
    arguments = {}
    if mask_BT is not None:
        position_BT = np.maximum(np.cumsum(mask_BT, axis=1) - 1, 0)
        arguments["attention_mask"] = torch.tensor(mask_BT.astype(np.int64))
        arguments["position_ids"] = torch.tensor(position_BT)
    with torch.no_grad():
        return theirs(torch.tensor(token_BT), **arguments).logits.numpy()


def from_folder(folder, **settings):
    loaded, info = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager", **settings
    )
    assert not any(info.values()), info
    return loaded.eval()


def test_logits(pair):
    theirs, ours = pair
    token_BT = ids(3, 17)
    expected = torch_logits(theirs, token_BT)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(models.logits(ours, token_BT), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side(pair, side):
    theirs, ours = pair
    token_BT, length_B = ids(4, 12), np.array([[12], [11], [9], [4]])
    column_T = np.arange(12)
    mask_BT = column_T < length_B if side == "right" else column_T >= 12 - length_B
    ours_BTV = np.asarray(models.logits(ours, token_BT, mask_BT))
    theirs_BTV = torch_logits(theirs, token_BT, mask_BT)
    np.testing.assert_allclose(ours_BTV[mask_BT], theirs_BTV[mask_BT], rtol=0, atol=1e-4)


def test_every_block(pair):
    """Each block alone, given what their block was given."""
    theirs, ours = pair
    token_BT, c = ids(2, 9), ours.config
    seen = []
    hooks = [
        layer.register_forward_hook(lambda _, args, out: seen.append((args[0], out)))
        for layer in theirs.model.layers
    ]
    torch_logits(theirs, token_BT)
    for hook in hooks:
        hook.remove()
    cos, sin = rope.angles(jnp.arange(9)[None], c.head_dim, c.rope_theta)
    causal_TT = jnp.tril(jnp.ones((1, 9, 9), bool))
    graphdef, state = nnx.split(ours.blocks)
    for layer, (before, after) in enumerate(seen):
        block = nnx.merge(graphdef, jax.tree.map(lambda x, i=layer: x[i], state))
        attend = lambda q, k, v: attention.attend(q, k, v, causal_TT)  # noqa: E731
        got = block(jnp.asarray(before.numpy()), cos, sin, attend)
        after = (after[0] if isinstance(after, tuple) else after).numpy()
        np.testing.assert_allclose(got, after, rtol=1e-5, atol=1e-5)
    assert len(seen) == c.num_layers


def test_saved_by_us_it_loads_in_transformers_with_equal_logits(pair, tmp_path):
    theirs, ours = pair
    models.save_pretrained(ours, tmp_path / "ours", stop_ids=(STOP, 7), max_shard_bytes=60_000)
    loaded = from_folder(tmp_path / "ours")
    np.testing.assert_array_equal(torch_logits(loaded, ids(2, 9)), torch_logits(theirs, ids(2, 9)))
    assert loaded.generation_config.eos_token_id == [STOP, 7]
    for field in ("model_type", "head_dim", "rms_norm_eps", "rope_parameters"):
        assert getattr(loaded.config, field) == getattr(theirs.config, field), field
    head, embedding = loaded.lm_head.weight, loaded.model.embed_tokens.weight
    assert (head is embedding) == theirs.config.tie_word_embeddings


@pytest.mark.parametrize("name", ["qwen-grouped-tied", "llama-untied-wide-heads"])
def test_saved_after_an_update_it_loads_with_our_logits(name, tmp_path):
    _, model = load(GRID[name], tmp_path / "theirs")
    token_BT = jnp.asarray(ids(2, 9), jnp.int32)
    before_BTV = np.asarray(models.logits(model, token_BT))

    def loss(model):
        logits_BTV = model.head(model.hidden(token_BT, jnp.ones(token_BT.shape, bool)))
        logp_BTV = jax.nn.log_softmax(logits_BTV[:, :-1])
        return -jnp.take_along_axis(logp_BTV, token_BT[:, 1:, None], axis=-1).mean()

    optimiser = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
    optimiser.update(model, nnx.jit(nnx.grad(loss))(model))  # in place
    after_BTV = np.asarray(models.logits(model, token_BT))
    assert np.abs(after_BTV - before_BTV).max() > 0.1
    models.save_pretrained(model, tmp_path / "updated")
    loaded = from_folder(tmp_path / "updated")
    theirs_BTV = torch_logits(loaded, ids(2, 9))
    np.testing.assert_allclose(after_BTV, theirs_BTV, rtol=0, atol=1e-4)
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == ("untied" not in name)


def test_greedy_text_equals_theirs(pair):
    theirs, ours = pair
    prompts = [row[:n].tolist() for row, n in zip(ids(3, 11), (11, 8, 3), strict=True)]
    groups = generate(
        ours, prompts, samples_per_prompt=1, max_new_tokens=16, temperature=0, stop_ids=(STOP,)
    )
    for prompt, (completion,) in zip(prompts, groups, strict=True):
        out = theirs.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)
        assert completion.tokens == out[0, len(prompt) :].tolist()


def test_greedy_text_of_a_hundred_prompts_in_one_batch(tmp_path):
    """More prompts than slots, so that slots refill in between."""
    theirs, ours = load(GRID["qwen-grouped-tied"], tmp_path)
    lengths = np.random.default_rng(3).integers(1, 60, 100)
    prompts = [row[:n].tolist() for row, n in zip(ids(100, 60), lengths, strict=True)]
    groups = generate(
        ours, prompts, samples_per_prompt=1, max_new_tokens=16, temperature=0, stop_ids=(STOP,),
        slots=24,
    )  # fmt: skip
    for prompt, (completion,) in zip(prompts, groups, strict=True):
        out = theirs.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)
        assert completion.tokens == out[0, len(prompt) :].tolist()


def test_log_probs_of_cached_decoding_are_those_of_their_whole_forward(pair):
    theirs, ours = pair
    prompts = [row[:n].tolist() for row, n in zip(ids(3, 11), (11, 8, 3), strict=True)]
    groups = generate(ours, prompts, samples_per_prompt=1, max_new_tokens=16, stop_ids=(STOP,))
    for prompt, group in zip(prompts, groups, strict=True):
        for completion in group:
            sequence = prompt + completion.tokens
            logits_TV = torch_logits(theirs, np.array([sequence]))[0, len(prompt) - 1 : -1]
            logp_TV = jax.nn.log_softmax(logits_TV, axis=-1)
            expected = [float(logp[i]) for logp, i in zip(logp_TV, completion.tokens, strict=True)]
            np.testing.assert_allclose(completion.logp, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["qwen-one-kv-untied", "llama-grouped-tied"])
def test_files_of_theirs_in_half_precision_and_several_parts(name, stored, tmp_path):
    build(*GRID[name]).to(getattr(torch, stored)).save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 3
    expected = torch_logits(from_folder(tmp_path, dtype=torch.float32), ids(2, 9))
    ours = models.from_pretrained(tmp_path)
    np.testing.assert_allclose(models.logits(ours, ids(2, 9)), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0"])
@pytest.mark.parametrize(
    "shape",
    [("qwen2", 3, 4, 2, 16, 64, False, 1e6), ("llama", 2, 8, 2, 8, 64, True, 1e5)],
    ids=["qwen2", "llama"],
)
def test_gguf_files_as_they_read_them(shape, kind, tmp_path):
    """A file in llama.cpp's layout, read by them and by us."""
    _, model = load(shape, tmp_path / "folder")
    fields = gguf_files.metadata(model.config)
    file = gguf_files.write(tmp_path / "m.gguf", fields, gguf_files.tensors(model), kind)
    ours = models.from_pretrained(file)
    expected = torch_logits(gguf_files.in_transformers(file), ids(2, 9))
    np.testing.assert_allclose(models.logits(ours, ids(2, 9)), expected, rtol=0, atol=1e-4)
