"""Published models by name: one row each, chosen by `config.model.size`.

A field of `config.model` that is None takes its row's value, so that any cell can be overridden.
Source: the config.json of each model's repository. Base and Instruct share a row unless both are
listed; Coder is listed where it differs from the plain model of its size.
"""

import dataclasses
from dataclasses import dataclass

from cpgd_jax.errors import UserError, nearest


@dataclass(frozen=True)
class Vision:
    """The vision tower of a Qwen2.5-VL (arXiv 2502.13923), and how the decoder takes images in."""

    num_layers: int
    hidden_size: int
    mlp_size: int
    num_heads: int
    full_attention: tuple[int, ...]  # layers that see the whole image; the others see windows
    window_size: int  # pixels a side
    patch_size: int  # pixels a side
    temporal_patch_size: int  # frames; an image is so many equal ones
    merge_size: int  # patches a side that become one token of the prompt
    rope_sections: tuple[int, ...]  # of a head's pairs: turned by time, by row, by column
    image_id: int  # stands in a prompt for each token of an image
    other_ids: tuple[int, ...]  # further ids that are never sampled: video, start, end of vision


@dataclass(frozen=True)
class Size:
    """The shape of a Qwen2-shaped decoder; the fields are those of `config.model`."""

    num_layers: int
    hidden_size: int
    mlp_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tie_embeddings: bool
    rope_theta: float
    norm_eps: float
    qkv_bias: bool
    max_positions: int
    vision: Vision | None = None  # None = a text model


def named(name: str) -> "Size":
    """The row of a `config.model.size`. UserError if there is none."""
    if name in SIZES:
        return SIZES[name]
    raise UserError(
        f"config.model.size is {name!r}{nearest(name, SIZES)}: choose one of {', '.join(SIZES)}"
    )


def check_vision(v: Vision, head_dim: int, where: str) -> None:
    """UserError: what does not divide what it cuts up, or indices that are none."""
    for name, value in vars(v).items():
        if isinstance(value, int) and value < 1:
            raise UserError(f"{where}: the vision tower's {name} is {value}: give 1 or more")
    unit, width = v.patch_size * v.merge_size, v.hidden_size / v.num_heads
    for name, value, fits, demand in (
        ("hidden_size", v.hidden_size, width % 4 == 0, f"give {v.num_heads} heads multiples of 4"),
        ("window_size", v.window_size, v.window_size % unit == 0, f"give a multiple of {unit}"),
        (
            "full_attention",
            v.full_attention,
            all(0 <= i < v.num_layers for i in v.full_attention),
            f"layers are 0..{v.num_layers - 1}",
        ),
        (
            "rope_sections",
            v.rope_sections,
            len(v.rope_sections) == 3 and sum(v.rope_sections) == head_dim // 2,
            f"give three numbers that sum up to half of head_dim, {head_dim // 2}",
        ),
        ("other_ids", v.other_ids, len(v.other_ids) == 3, "give the ids of video, start, end"),
    ):
        if not fits:
            raise UserError(f"{where}: the vision tower's {name} is {value}: {demand}")


def fill(model, known):
    """A `config.Model` whose sizes that are None are those of `known`, a Size or ModelConfig."""
    names = [f.name for f in dataclasses.fields(Size) if getattr(model, f.name) is None]
    return dataclasses.replace(model, **{name: getattr(known, name) for name in names})


def _qwen(layers, width, mlp, heads, kv_heads, vocab_size, tied, theta=1e6, eps=1e-6, **other):
    """Qwen2.5: q/k/v have biases, and a head is width / heads wide."""
    return Size(
        num_layers=layers,
        hidden_size=width,
        mlp_size=mlp,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=width // heads,
        vocab_size=vocab_size,
        tie_embeddings=tied,
        rope_theta=theta,
        norm_eps=eps,
        qkv_bias=True,
        max_positions=other.get("max_positions", 32_768),
        vision=other.get("vision"),
    )


def _smollm2(layers, width, mlp, heads, kv_heads, theta=1e5):
    """SmolLM2: Llama-shaped, so no biases."""
    return Size(
        num_layers=layers,
        hidden_size=width,
        mlp_size=mlp,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=64,
        vocab_size=49_152,
        tie_embeddings=True,
        rope_theta=theta,
        norm_eps=1e-5,
        qkv_bias=False,
        max_positions=8192,
    )


def _tower(mlp_size):
    """That of every published Qwen2.5-VL, but for the width of its MLPs."""
    return Vision(
        num_layers=32,
        hidden_size=1280,
        mlp_size=mlp_size,
        num_heads=16,
        full_attention=(7, 15, 23, 31),
        window_size=112,
        patch_size=14,
        temporal_patch_size=2,
        merge_size=2,
        rope_sections=(16, 24, 24),
        image_id=151_655,
        other_ids=(151_656, 151_652, 151_653),
    )


_VL, _VL_LARGE = (
    {"vision": _tower(mlp_size), "max_positions": 128_000} for mlp_size in (3420, 3456)
)
_MATH = {"theta": 1e4, "max_positions": 4096}

SIZES = {
    "qwen2.5-0.5b": _qwen(24, 896, 4864, 14, 2, 151_936, tied=True),
    "qwen2.5-1.5b": _qwen(28, 1536, 8960, 12, 2, 151_936, tied=True),
    "qwen2.5-3b": _qwen(36, 2048, 11_008, 16, 2, 151_936, tied=True),
    "qwen2.5-7b": _qwen(28, 3584, 18_944, 28, 4, 152_064, tied=False),
    "qwen2.5-14b": _qwen(48, 5120, 13_824, 40, 8, 152_064, tied=False, eps=1e-5),
    "qwen2.5-14b-instruct": _qwen(48, 5120, 13_824, 40, 8, 152_064, tied=False),
    "qwen2.5-32b": _qwen(64, 5120, 27_648, 40, 8, 152_064, tied=False, eps=1e-5),
    "qwen2.5-32b-instruct": _qwen(64, 5120, 27_648, 40, 8, 152_064, tied=False),
    "qwen2.5-72b": _qwen(80, 8192, 29_568, 64, 8, 152_064, tied=False, eps=1e-5),
    "qwen2.5-72b-instruct": _qwen(80, 8192, 29_568, 64, 8, 152_064, tied=False),
    "qwen2.5-math-1.5b": _qwen(28, 1536, 8960, 12, 2, 151_936, tied=True, **_MATH),
    "qwen2.5-math-7b": _qwen(28, 3584, 18_944, 28, 4, 152_064, tied=False, **_MATH),
    "qwen2.5-math-72b": _qwen(80, 8192, 29_568, 64, 8, 152_064, tied=False, **_MATH),
    "qwen2.5-vl-3b": _qwen(36, 2048, 11_008, 16, 2, 151_936, tied=True, **_VL),
    "qwen2.5-vl-7b": _qwen(28, 3584, 18_944, 28, 4, 152_064, tied=False, **_VL),
    "qwen2.5-vl-32b": _qwen(64, 5120, 27_648, 40, 8, 152_064, tied=False, **_VL_LARGE),
    "qwen2.5-vl-72b": _qwen(80, 8192, 29_568, 64, 8, 152_064, tied=False, **_VL_LARGE),
    "smollm2-135m": _smollm2(30, 576, 1536, 9, 3),
    "smollm2-360m": _smollm2(32, 960, 2560, 15, 5),
    "smollm2-1.7b": _smollm2(24, 2048, 8192, 32, 32, theta=1.3e5),
}
