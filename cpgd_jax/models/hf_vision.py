"""The vision half of a Qwen2.5-VL's config.json, to and from `sizes.Vision`."""

from cpgd_jax.errors import UserError
from cpgd_jax.sizes import Vision, check_vision

MODEL_TYPE = "qwen2_5_vl"
NUMBERS = {  # ours: theirs
    "num_layers": "depth",
    "hidden_size": "hidden_size",
    "mlp_size": "intermediate_size",
    "num_heads": "num_heads",
    "window_size": "window_size",
    "patch_size": "patch_size",
    "temporal_patch_size": "temporal_patch_size",
    "merge_size": "spatial_merge_size",
}
OTHER_IDS = ("video_token_id", "vision_start_token_id", "vision_end_token_id")
ROPE = ("rope_scaling", "rope_parameters")


def read(config: dict, text: dict, width: int, head_dim: int) -> Vision:
    """config: the whole file; text: the decoder's part, of `width` and `head_dim`.

    UserError names the field that is missing or does not fit.
    """
    theirs = config.get("vision_config") or {}
    sizes = {ours: _number(theirs, name) for ours, name in NUMBERS.items()}
    full, sections = theirs.get("fullatt_block_indexes"), _sections(text)
    if not _whole_numbers(full):
        raise _fault("fullatt_block_indexes", full, "must be indices of its layers")
    if theirs.get("hidden_act", "silu") != "silu":
        raise _fault("hidden_act", theirs["hidden_act"], "is not supported, only silu")
    if theirs.get("out_hidden_size", width) != width:
        raise _fault("out_hidden_size", theirs["out_hidden_size"], f"must be hidden_size, {width}")
    vision = Vision(
        full_attention=tuple(full),
        rope_sections=tuple(sections),
        image_id=_number(config, "image_token_id"),
        other_ids=tuple(_number(config, name) for name in OTHER_IDS),
        **sizes,
    )
    check_vision(vision, head_dim, "config.json")
    return vision


def to_dict(v: Vision, width: int, theta: float) -> dict:
    """What config.json of a text model lacks, as published, and as transformers 5 spells it."""
    sections = {"mrope_section": list(v.rope_sections)}
    return {
        "rope_scaling": {"type": "mrope", "rope_type": "default", **sections},
        "rope_parameters": {"rope_type": "default", "rope_theta": theta, **sections},
        "image_token_id": v.image_id,
        **dict(zip(OTHER_IDS, v.other_ids, strict=True)),
        "vision_config": {
            "model_type": MODEL_TYPE,
            "hidden_act": "silu",
            "in_chans": 3,
            "in_channels": 3,
            "spatial_patch_size": v.patch_size,
            "tokens_per_second": 2,
            "out_hidden_size": width,
            "fullatt_block_indexes": list(v.full_attention),
            **{theirs: getattr(v, ours) for ours, theirs in NUMBERS.items()},
        },
    }


def _sections(text: dict) -> list:
    for field in ROPE:
        sections = (text.get(field) or {}).get("mrope_section")
        if _whole_numbers(sections):
            return sections
    raise UserError("config.json: mrope_section is missing or no list of numbers")


def _whole_numbers(value) -> bool:
    return isinstance(value, list) and all(type(i) is int and i >= 0 for i in value)


def _number(config: dict, name: str) -> int:
    value = config.get(name)
    if type(value) is not int or value <= 0:
        raise _fault(name, value, "must be a positive whole number")
    return value


def _fault(name: str, value, demand: str) -> UserError:
    return UserError(f"config.json: {name} = {str(value)[:80]} of the vision tower {demand}")
