"""config.json of a Hugging Face folder to and from `ModelConfig`; what is not supported is refused.

Both spellings of the rotation's base are read: `rope_theta` and transformers 5's `rope_parameters`.
"""

import json
from pathlib import Path

from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_vision
from cpgd_jax.models.qwen2 import ModelConfig

ARCHITECTURES = {  # by model_type
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
    hf_vision.MODEL_TYPE: "Qwen2_5_VLForConditionalGeneration",
}
QWEN = ("qwen2", hf_vision.MODEL_TYPE)  # q, k and v have biases


def read(folder: Path, dtype: str = "float32") -> ModelConfig:
    """The sizes in folder/config.json. UserError names the field that is missing or unsupported."""
    config = _read_json(folder / "config.json")
    try:
        sizes = _sizes(config, dtype)
    except (TypeError, ValueError, AttributeError, IndexError) as error:  # a field of a wrong type
        raise UserError(f"{folder / 'config.json'} is no model's config: {error!r}") from None
    check_heads(sizes, "config.json")
    return sizes


def _sizes(whole: dict, dtype: str) -> ModelConfig:
    """Of a Qwen2.5-VL the decoder's sizes lie in text_config, or, as published, at the top."""
    sees = whole.get("model_type") == hf_vision.MODEL_TYPE
    inner = whole.get("text_config") or {} if sees else {}
    config = whole | {k: v for k, v in inner.items() if k not in ("model_type", "architectures")}
    _refuse_unsupported(config)
    hidden_size, num_heads = (_size(config, k) for k in ("hidden_size", "num_attention_heads"))
    head_dim = _size(config, "head_dim", hidden_size // num_heads)
    return ModelConfig(
        vocab_size=_size(config, "vocab_size"),
        num_layers=_size(config, "num_hidden_layers"),
        hidden_size=hidden_size,
        mlp_size=_size(config, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=_size(config, "num_key_value_heads", num_heads),
        head_dim=head_dim,
        rope_theta=_rope_theta(config),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        qkv_bias=config["model_type"] in QWEN,
        tie_embeddings=bool(
            whole.get("tie_word_embeddings") or inner.get("tie_word_embeddings", False)
        ),
        max_positions=_size(config, "max_position_embeddings", 32_768),
        dtype=dtype,
        vision=hf_vision.read(whole, config, hidden_size, head_dim) if sees else None,
    )


def check_heads(config: ModelConfig, where) -> None:
    """UserError: query heads that are no whole groups a key/value head, or an odd head_dim."""
    heads, kv_heads, head_dim = config.num_heads, config.num_kv_heads, config.head_dim
    if heads % kv_heads or head_dim % 2:
        sizes = f"{heads} heads, {kv_heads} key/value heads, head_dim {head_dim}"
        raise UserError(f"{where}: {sizes}: needs whole groups of heads and an even head_dim")


def to_dict(config: ModelConfig) -> dict:
    """config.json of a model, for transformers 4 and 5 and vLLM; a Llama if without q/k/v bias."""
    model_type = "qwen2" if config.qkv_bias else "llama"
    only_this_type = (
        {"use_sliding_window": False, "sliding_window": None}
        if model_type == "qwen2"
        else {"attention_bias": False, "mlp_bias": False}
    )
    if config.vision:
        model_type = hf_vision.MODEL_TYPE
        only_this_type |= hf_vision.to_dict(config.vision, config.hidden_size, config.rope_theta)
    return {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.num_layers,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.mlp_size,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
        "initializer_range": config.init_std,
        "torch_dtype": "float32",
        **only_this_type,
    }


def _read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        raise UserError(f"{path} does not exist: a model folder holds config.json") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} can't be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object, it holds a {type(value).__name__}")
    return value


def _refuse_unsupported(config):
    model_type = config.get("model_type")
    names = config.get("architectures") or [ARCHITECTURES.get(model_type)]
    if names[0] is None or ARCHITECTURES.get(model_type) != names[0]:
        known = ", ".join(f"{name} ({key})" for key, name in ARCHITECTURES.items())
        raise UserError(f"config.json: {names[0]} ({model_type}) is not supported, only {known}")
    for field, supported in (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("quantization_config", None),
        ("partial_rotary_factor", 1.0),
    ):
        if config.get(field) not in (None, supported):
            value = json.dumps(config[field])[:80]
            raise UserError(f"config.json: {field} = {value} is not supported, only {supported}")
    if _slides(config):
        raise UserError("config.json: sliding-window attention is in use, which is not supported")


def _slides(config) -> bool:
    is_qwen = config["model_type"] in QWEN
    if is_qwen and not config.get("use_sliding_window", False):
        return False
    kinds = config.get("layer_types")
    if kinds is not None:
        return any(kind != "full_attention" for kind in kinds)
    sliding_layers = config.get("max_window_layers", 28) < _size(config, "num_hidden_layers")
    return is_qwen and config.get("sliding_window", 4096) is not None and sliding_layers


def _rope_theta(config) -> float:
    for field in ("rope_scaling", "rope_parameters"):
        rope = config.get(field) or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if config["model_type"] == hf_vision.MODEL_TYPE and kind == "mrope":
            kind = "default"
        by_layer_type = any(isinstance(value, dict) for value in rope.values())
        if kind != "default" or by_layer_type or rope.get("partial_rotary_factor", 1.0) != 1.0:
            value = json.dumps(rope)[:120]
            raise UserError(f"config.json: {field} = {value} is not supported, only default")
    theta = rope.get("rope_theta", config.get("rope_theta", 10_000.0))
    if not isinstance(theta, int | float) or theta <= 0:
        raise UserError(f"config.json: rope_theta = {theta!r} must be a positive number")
    return float(theta)


def _size(config, field: str, default: int | None = None) -> int:
    value = config.get(field)
    value = default if value is None else value
    if not isinstance(value, int) or value < 1:
        raise UserError(f"config.json: {field} = {value!r} must be a positive whole number")
    return value
