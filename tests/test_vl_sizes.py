"""What a config may say of a vision tower, and how a file names it."""

import dataclasses
import json

import pytest
import tiny
import vl

from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_config

CHANGES = dict(model__head_dim=16, model__vocab_size=96)


def sections(**changes):
    """A section of a ConfigDict."""
    return dataclasses.asdict(dataclasses.replace(vl.SIZES, **changes))


def test_a_section_becomes_the_sizes():
    c = tiny.config(**CHANGES, model__vision=sections(), optim__train_vision=True)
    assert c.model.vision == vl.SIZES
    assert tiny.config(**CHANGES).model.vision is None


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("hidden_size", 36, "hidden_size is 36: give 2 heads multiples of 4"),
        ("window_size", 120, "window_size is 120: give a multiple of 28"),
        ("full_attention", (3,), r"full_attention is \(3,\): layers are 0..2"),
        ("rope_sections", (2, 2, 2), r"rope_sections is \(2, 2, 2\): .* half of head_dim, 8"),
        ("num_heads", 0, "num_heads is 0: give 1 or more"),
        ("other_ids", (1,), "give the ids of video, start, end"),
    ],
)
def test_sizes_that_do_not_fit(field, value, told):
    with pytest.raises(UserError, match=rf"config\.model\.vision: the vision tower's .*{told}"):
        tiny.config(**CHANGES, model__vision=sections(**{field: value}))


def test_full_attention_holds_whole_numbers():
    with pytest.raises(UserError, match=r"full_attention is \['a'\]: it must be a tuple of whole"):
        tiny.config(**CHANGES, model__vision=sections() | {"full_attention": ["a"]})


def written(folder, **changes):
    (folder / "config.json").write_text(json.dumps(hf_config.to_dict(vl.CONFIG) | changes))
    return folder


def test_config_json_there_and_back(tmp_path):
    assert hf_config.read(written(tmp_path)) == vl.CONFIG


def test_config_json_with_a_part_for_the_decoder(tmp_path):
    whole = hf_config.to_dict(vl.CONFIG)
    outside = ("architectures", "model_type", "vision_config", "image_token_id", "video_token_id")
    outside += ("vision_start_token_id", "vision_end_token_id")
    nested = {k: whole.pop(k) for k in list(whole) if k not in outside}
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": nested}))
    assert hf_config.read(tmp_path) == vl.CONFIG


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"vision_config": None}, "depth = None of the vision tower must be a positive"),
        ({"image_token_id": "x"}, "image_token_id = x"),
        ({"rope_scaling": None, "rope_parameters": None}, "mrope_section is missing"),
        ({"rope_scaling": {"type": "yarn", "mrope_section": [2, 3, 3]}}, "rope_scaling = .*yarn"),
    ],
)
def test_config_json_that_is_refused(tmp_path, changes, told):
    with pytest.raises(UserError, match=told):
        hf_config.read(written(tmp_path, **changes))
