"""Named sizes give the published models: parameter counts, transformers' own shapes, overrides."""

import dataclasses
import json
import math

import jax
import pytest
import tiny
from flax import nnx

from cpgd_jax import checkpoint, config, initial, models
from cpgd_jax.data import tokenizer
from cpgd_jax.errors import UserError
from cpgd_jax.models import hf_config
from cpgd_jax.sizes import SIZES, Size

COUNTS = {  # of the models as published, embeddings included, a tied head counted once
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-14b-instruct": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-32b-instruct": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-72b-instruct": 72_706_203_648,
    "qwen2.5-math-1.5b": 1_543_714_304,
    "qwen2.5-math-7b": 7_615_616_512,
    "qwen2.5-math-72b": 72_706_203_648,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen2.5-vl-32b": 33_452_718_336,
    "qwen2.5-vl-72b": 73_410_777_344,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
}
OPEN = {f"model__{field.name}": None for field in dataclasses.fields(Size)}


def sized(**changes):
    """A tiny run whose model's sizes are left open but for the changes."""
    return tiny.config(**{**OPEN, **changes})


def test_every_size_has_its_count():
    assert SIZES.keys() == COUNTS.keys()


@pytest.mark.parametrize("name", SIZES)
def test_parameter_counts(name):
    sizes = checkpoint.model_config(sized(model__size=name).model)
    shapes = nnx.state(nnx.eval_shape(lambda: models.make(sizes, nnx.Rngs(0))))
    assert sum(math.prod(x.shape) for x in jax.tree.leaves(shapes)) == COUNTS[name]


@pytest.mark.parity
@pytest.mark.parametrize("name", SIZES)
def test_transformers_builds_the_same_counts(name):
    torch = pytest.importorskip("torch")
    import transformers

    values = hf_config.to_dict(checkpoint.model_config(sized(model__size=name).model))
    theirs = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        kind = "AutoModelForImageTextToText" if "-vl-" in name else "AutoModelForCausalLM"
        model = getattr(transformers, kind).from_config(theirs)
    assert sum(p.numel() for p in model.parameters()) == COUNTS[name]


def test_a_field_overrides_its_size():
    c = sized(model__size="qwen2.5-0.5b", model__num_layers=2)
    assert (c.model.num_layers, c.model.hidden_size, c.model.vocab_size) == (2, 896, 151_936)


def test_an_unknown_size_names_the_nearest():
    with pytest.raises(UserError, match=r"config\.model\.size is 'qwen2\.5-7'.*'qwen2\.5-7b'"):
        tiny.config(model__size="qwen2.5-7")


def test_prompt_and_response_fit_the_model():
    with pytest.raises(UserError, match=r"max_prompt_len 13 \+ max_response_len 4090 is over the"):
        tiny.config(model__size="qwen2.5-math-7b", **OPEN, rollout__max_response_len=4090)


OWN = tokenizer.load()


def test_without_a_size_the_vocabulary_is_the_tokenizers():
    assert initial.with_sizes(tiny.config(), OWN).model.vocab_size == OWN.vocab_size


def test_open_sizes_need_a_name_or_a_checkpoint():
    with pytest.raises(UserError, match=r"config\.model\.num_layers is None: give it, or name"):
        initial.with_sizes(sized(), OWN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Hugging Face folder's config.json with sizes unlike any default."""
    sizes = models.ModelConfig(99, 3, 48, 80, 6, 2, 10, 2e4, 1e-5, False, True, max_positions=77)
    path = tmp_path_factory.mktemp("model")
    (path / "config.json").write_text(json.dumps(hf_config.to_dict(sizes)))
    return path


def test_open_sizes_are_read_from_init_from(folder):
    c = initial.with_sizes(sized(model__init_from=str(folder), model__dtype="bfloat16"), OWN)
    sizes = checkpoint.model_config(c.model)
    assert sizes == dataclasses.replace(hf_config.read(folder), dtype="bfloat16", lora=sizes.lora)
    assert sizes.num_layers == 3 and sizes.max_positions == 77 and not sizes.qkv_bias
    again = config.from_config_dict(config.to_dict(c))
    assert initial.with_sizes(again, OWN) == again == c  # nothing is left open in config.json


def test_a_given_size_must_fit_init_from(folder):
    with pytest.raises(UserError, match=r"num_layers 2 is 3 there, head_dim 8 is 10 there; what"):
        c = sized(model__init_from=str(folder), model__num_layers=2, model__head_dim=8)
        initial.with_sizes(c, OWN)
    with pytest.raises(UserError, match=r"does not fit .*vocab_size 49152 is 99 there"):
        initial.with_sizes(sized(model__init_from=str(folder), model__size="smollm2-135m"), OWN)


def test_the_lengths_must_fit_what_is_read(folder):
    c = sized(model__init_from=str(folder), rollout__max_response_len=65)
    with pytest.raises(UserError, match=r"max_response_len 65 is over the 77 tokens"):
        initial.with_sizes(c, OWN)


def test_a_tokenizer_larger_than_the_model_is_refused():
    with pytest.raises(UserError, match=f"the tokenizer has {OWN.vocab_size} ids, the model"):
        initial.with_sizes(tiny.config(model__vocab_size=7), OWN)
