"""Tokenizers: every stop id stops, masks never come from ids, text and ids go back and forth."""

import json

import pytest

from cpgd_jax.data import prompts, tokenizer
from cpgd_jax.errors import UserError

OWN = tokenizer.load()


@pytest.fixture
def folder(tmp_path):
    """A saved copy of the arithmetic tokenizer, to be altered."""
    OWN.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    return tmp_path


def config(folder, **values):
    (folder / "generation_config.json").write_text(json.dumps(values))
    return tokenizer.load(folder)


def test_the_own_tokenizer_stops_at_the_end_of_a_turn_and_of_a_text():
    ids = OWN.fast.get_vocab()
    assert OWN.stop_ids == (ids["<|im_end|>"], ids["<|endoftext|>"])
    assert OWN.pad_id == ids["<|endoftext|>"]  # pad may be a stop: masks come from lengths
    assert OWN.forbidden_ids == ()
    assert 50 < OWN.vocab_size < 130


@pytest.mark.parametrize(
    ("eos", "first"), [(7, [7]), ([9, 8], [9, 8]), (None, []), ("absent", []), ([], [])]
)
def test_stop_ids_of_the_generation_config_come_first(folder, eos, first):
    values = {} if eos == "absent" else {"eos_token_id": eos}
    assert config(folder, **values).stop_ids == (*first, *OWN.stop_ids)


def test_a_stop_id_named_twice_counts_once(folder):
    assert config(folder, eos_token_id=list(OWN.stop_ids)).stop_ids == OWN.stop_ids


def test_a_damaged_generation_config_is_refused(folder):
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(UserError, match=r"generation_config\.json.* cannot be read"):
        tokenizer.load(folder)


@pytest.mark.parametrize("eos", [-1, 10**6, "2", [1, None], 1.5])
def test_a_stop_id_that_is_none_is_refused(folder, eos):
    with pytest.raises(UserError, match=r"eos_token_id .* is no id of the tokenizer: 0 to \d+"):
        config(folder, eos_token_id=eos)


def test_save_and_load_keep_all_of_it(folder, tmp_path_factory):
    given = config(folder, eos_token_id=[9])
    target = tmp_path_factory.mktemp("again")
    given.save_pretrained(target)
    again = tokenizer.load(target)
    assert (again.stop_ids, again.pad_id) == (given.stop_ids, given.pad_id)
    assert again.vocab_size == given.vocab_size
    assert again.encode_prompt("1+2=?", "reasoning") == given.encode_prompt("1+2=?", "reasoning")


def test_decode_ends_at_the_first_stop():
    im_end, end = OWN.stop_ids
    three, four = OWN.encode("34")
    for stop in (im_end, end):
        assert OWN.decode([three, stop, four, im_end]) == "3"
    assert OWN.decode([three, four]) == "34"
    assert OWN.decode([end]) == OWN.decode([]) == ""


def test_decode_keeps_spaces_and_tags():
    text = "<think>1 + 2 = 3 , the final result</think> <answer>\\boxed{3}</answer>"
    assert OWN.decode(OWN.encode(text)) == text


@pytest.mark.parametrize(("system_prompt", "turns"), [("none", 0), ("reasoning", 1)])
def test_at_most_one_system_turn(system_prompt, turns):
    text = OWN.fast.decode(OWN.encode_prompt("1+2=?", system_prompt))
    assert text.count("<|im_start|>system") == turns
    assert text.endswith("<|im_start|>user\n1+2=?<|im_end|>\n<|im_start|>assistant\n")


def test_the_reasoning_prompt_has_no_unknown_word():
    assert OWN.fast.unk_token_id not in OWN.encode_prompt("1+2=?", "reasoning")
    for word in ("<think>", "</think>", "<answer>", "</answer>", "\\boxed{}"):
        assert word in prompts.REASONING


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(UserError, match="not found: give a folder with tokenizer.json"):
        tokenizer.load(tmp_path / "nothing")
    with pytest.raises(UserError, match="not found"):
        tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read") as error:
        tokenizer.load(tmp_path)
    assert "\n" not in str(error.value)


def test_qwen2_5(shared):
    qwen = tokenizer.load(shared / "data/qwen2_5_tokenizer")
    assert set(qwen.stop_ids) >= {151645, 151643}
    vision = {151652, 151653, 151655, 151656}  # vision_start, vision_end, image_pad, video_pad
    assert set(qwen.forbidden_ids) == vision
    ids = qwen.encode_prompt("What is 1+2?", "reasoning")
    assert ids.count(151644) == 3  # <|im_start|>: system, user, assistant
    assert ids[0] == 151644
    text = "Let's see: \\frac{1}{2} , 世界 \n\n<think>x</think>"
    assert qwen.decode(qwen.encode(text) + [151645, 11]) == text
    assert qwen.decode(qwen.encode(text) + [151643, 11]) == text


def test_qwen2_5_with_its_chat_template(shared):
    """The published template writes a system turn of its own where none is given: still one."""
    qwen = tokenizer.load(shared / "data/qwen2_5_tokenizer")
    file = shared / "data/qwen2_5_tokenizer/chat_template_qwen2_5_text.jinja"
    qwen.fast.chat_template = file.read_text()
    for system_prompt in ("none", "reasoning"):
        text = qwen.fast.decode(qwen.encode_prompt("1+2=?", system_prompt))
        assert text.count("<|im_start|>system") == 1
        assert text.count("You are Qwen") == (system_prompt == "none")
        assert text.endswith("<|im_start|>assistant\n")


def test_smollm2(shared):
    small = tokenizer.load(shared / "data/smollm2_tokenizer")
    known = small.fast.get_vocab()
    assert set(small.stop_ids) >= {known["<|im_end|>"], known["<|endoftext|>"]}
    text = "The answer is 3 ."
    assert small.decode([*small.encode(text), small.stop_ids[0]]) == text
