"""Small GGUF files, written by the `gguf` package in the way llama.cpp's converter writes them."""

import gguf
import numpy as np
from flax import nnx
from gguf import GGMLQuantizationType as Quantisation
from gguf import TokenType

from cpgd_jax.models.hf_layout import by_path, slots

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def own_name(hf_name: str) -> str:
    stem, kind = hf_name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{NAMES[stem]}.{kind}"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[rest]}.{kind}"


def permute(array_RD, num_heads):
    """Halves to pairs: of each head, row i and row i + H/2 become rows 2i and 2i+1."""
    heads_NHD = array_RD.reshape(num_heads, -1, array_RD.shape[1])
    order = np.arange(heads_NHD.shape[1]).reshape(2, -1).T.reshape(-1)
    return heads_NHD[:, order].reshape(array_RD.shape)


def tensors(model) -> dict[str, np.ndarray]:
    """By GGUF's names; q and k of a model without biases are a Llama's, permuted."""
    state, c = nnx.state(model), model.config
    params, found = by_path(state), {}
    for name, slot in slots(state).items():
        value = np.asarray(params[slot.path].get_raw_value())
        array = slot.to_hf(value if slot.layer is None else value[slot.layer])
        if not c.qkv_bias and name.endswith(("q_proj.weight", "k_proj.weight")):
            array = permute(array, c.num_heads if "q_proj" in name else c.num_kv_heads)
        found[own_name(name)] = array
    return found


def metadata(config) -> dict:
    c = config
    sizes = {
        "vocab_size": c.vocab_size,
        "block_count": c.num_layers,
        "context_length": c.max_positions,
        "embedding_length": c.hidden_size,
        "feed_forward_length": c.mlp_size,
        "attention.head_count": c.num_heads,
        "attention.head_count_kv": c.num_kv_heads,
        "attention.key_length": c.head_dim,
        "attention.layer_norm_rms_epsilon": float(c.norm_eps),
        "rope.freq_base": float(c.rope_theta),
    }
    arch = "qwen2" if c.qkv_bias else "llama"
    return {"general.architecture": arch} | {f"{arch}.{key}": v for key, v in sizes.items()}


def write(path, fields: dict, arrays: dict, kind: str = "F32"):
    """kind: of the matrices; vectors are float32. An array of bytes is written as it is."""
    writer = gguf.GGUFWriter(path, fields["general.architecture"])
    for key, value in fields.items():
        if key != "general.architecture":
            _add(writer, key, value)
    for name, array in arrays.items():
        stored = Quantisation[kind if array.ndim > 1 else "F32"]
        data = array if array.dtype == np.uint8 else gguf.quantize(array, stored)
        writer.add_tensor(name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer, key, value):
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
    kinds |= {str: writer.add_string, list: writer.add_array}
    kinds[type(value)](key, value)


def tokenizer_fields(tokenizer: dict, pre: str, **ids: int) -> dict:
    """The metadata of a tokenizer.json; ids: bos, eos, padding, ..."""
    added = {token["id"]: token for token in tokenizer["added_tokens"]}
    names = {id: token for token, id in tokenizer["model"]["vocab"].items()}
    names |= {id: token["content"] for id, token in added.items()}
    kinds = {
        id: TokenType.CONTROL if t["special"] else TokenType.USER_DEFINED for id, t in added.items()
    }
    count = max(names) + 3  # models have places that no token uses
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    kind_of = lambda id: kinds.get(id, TokenType.NORMAL if id in names else TokenType.UNUSED)  # noqa: E731
    return {
        "general.architecture": "qwen2",
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [names.get(id, f"[PAD{id}]") for id in range(count)],
        "tokenizer.ggml.token_type": [int(kind_of(id)) for id in range(count)],
        "tokenizer.ggml.merges": merges,
    } | {f"tokenizer.ggml.{name}_token_id": id for name, id in ids.items()}


def in_transformers(path):
    """The model as transformers reads it, float32; by parts, as the whole wants accelerate too."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = AutoConfig.for_model(**load_gguf_checkpoint(path)["config"])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    assert not unexpected and missing == ["lm_head.weight"] * config.tie_word_embeddings
    model.tie_weights()
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # no tensor of the file
    return model.eval()
