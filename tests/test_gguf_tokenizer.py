"""Tokenizers of GGUF files: the ids, stops and template of the tokenizer.json they were made of."""

import json

import gguf_files
import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from cpgd_jax.data import tokenizer
from cpgd_jax.errors import UserError

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "Natalia sold 48/2 = 24 clips in May, didn't she? It's 1,234.50$!",
    "def f(x):\n    return x  # \\frac{1}{2}\n\n\n\tyes  \r\n",
    "世界 🙂 café cafe\u0301 ﬁ ½ ² ٣٤ 한국어 русский \u00a0\u200b",
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><tool> a<|im_start",
    "   \n  \n x   y ",
    "",
]
PIECES = [
    *"ab12é 世\n",
    "  ",
    "\t",
    "'s",
    "'LL",
    "<|im_end|>",
    "the",
    "e\u0301",
    "🙂",
    "\r\n",
    "...",
]


def split(pre):
    """As the published tokenizer.json files have it."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "qwen2")
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), level])
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    first = [pre_tokenizers.Split(Regex(pattern), "isolated")] if pre == "qwen2" else []
    return pre_tokenizers.Sequence([*first, level])


def trained(pre) -> Tokenizer:
    """A small BPE of the texts above; its added tokens stand at the end, or first as in SmolLM2."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = split(pre)
    raw.normalizer = normalizers.NFC() if pre == "qwen2" else None
    first = [] if pre == "qwen2" else SPECIAL
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=first, show_progress=False
    )
    raw.train_from_iterator(TEXTS * 3, trainer)
    raw.add_special_tokens(SPECIAL)
    raw.add_tokens([AddedToken("<tool>", normalized=False)])
    return raw


def write(path, raw: Tokenizer, pre, **changes):
    ids = {"eos": raw.token_to_id("<|im_end|>"), "padding": raw.token_to_id("<|endoftext|>")}
    fields = gguf_files.tokenizer_fields(json.loads(raw.to_str()), pre, **ids) | changes
    fields = {key: value for key, value in fields.items() if value is not None}
    return gguf_files.write(path, fields, {"x": np.ones(2, np.float32)})


def mixed_texts(count):
    rng = np.random.default_rng(0)
    return ["".join(rng.choice(PIECES, 20)) for _ in range(count)]


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "gpt-2"])
def test_ids_and_text_are_those_of_the_tokenizer_it_was_made_of(tmp_path, pre):
    raw = trained(pre)
    ours = tokenizer.load(write(tmp_path / "m.gguf", raw, pre))
    for text in TEXTS + mixed_texts(200):
        ids = raw.encode(text, add_special_tokens=False).ids
        assert ours.encode(text) == ids
        if pre != "qwen2":  # NFC composes
            assert ours.fast.decode(ids) == text
    assert ours.vocab_size == raw.get_vocab_size()


def test_stops_template_and_pad(tmp_path):
    raw = trained("smollm")
    at = raw.token_to_id
    template = "{{ messages[0].content }}<|im_end|>"
    stops = {"tokenizer.ggml.eot_token_id": at("<tool>")}
    changes = {"tokenizer.chat_template": template} | stops
    ours = tokenizer.load(write(tmp_path / "m.gguf", raw, "smollm", **changes))
    assert ours.stop_ids == (at("<|im_end|>"), at("<tool>"), at("<|endoftext|>"))
    assert ours.pad_id == at("<|endoftext|>")
    assert ours.encode_prompt("hi") == ours.encode("hi<|im_end|>")
    ours.save_pretrained(tmp_path / "saved")
    again = tokenizer.load(tmp_path / "saved")
    assert (again.stop_ids, again.pad_id) == (ours.stop_ids, ours.pad_id)
    for text in TEXTS:
        assert again.encode(text) == ours.encode(text)
    assert again.encode_prompt("hi") == ours.encode_prompt("hi")


def test_without_a_template_it_gets_ours(tmp_path):
    ours = tokenizer.load(write(tmp_path / "m.gguf", trained("smollm"), "smollm"))
    assert ours.fast.chat_template == tokenizer.load().fast.chat_template


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "llama"}, "tokenizer llama/smollm is not supported, only gpt2/gpt-2, gpt2/smo"),
        ({"pre": "llama-bpe"}, "tokenizer gpt2/llama-bpe is not supported"),
        ({"pre": None}, "tokenizer gpt2/None is not supported"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing, so it has no tokenizer"),
        ({"merges": None}, "tokenizer.ggml.merges is missing"),
        ({"merges": ["a"]}, "merges don't fit"),
        ({"merges": ["qq qq"]}, "merges don't fit"),
        ({"token_type": [1, 1]}, "tokens with 2 types"),
        ({"tokens": [1, 2], "token_type": [1, 1]}, "tokens is no list of str"),
        ({"eos_token_id": 99_999, "token_type": None}, "token_type is missing"),
    ],
)
def test_metadata_that_do_not_fit_are_one_clear_line(tmp_path, changes, words):
    changes = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    path = write(tmp_path / "m.gguf", trained("smollm"), "smollm", **changes)
    with pytest.raises(UserError, match=words) as caught:
        tokenizer.load(path)
    assert "\n" not in str(caught.value)


def test_ids_outside_the_vocabulary_are_no_tokens(tmp_path):
    changes = {f"tokenizer.ggml.{name}_token_id": 99_999 for name in ("eos", "bos", "padding")}
    ours = tokenizer.load(write(tmp_path / "m.gguf", trained("smollm"), "smollm", **changes))
    assert set(ours.stop_ids) == {ours.fast.get_vocab()[t] for t in ("<|im_end|>", "<|endoftext|>")}
    assert ours.pad_id in ours.stop_ids


@pytest.mark.parametrize(
    ("name", "pre"),
    [("smollm2", "smollm"), pytest.param("qwen2_5", "qwen2", marks=pytest.mark.slow)],
)
def test_published_tokenizers(shared, tmp_path, name, pre):
    folder = shared / f"data/{name}_tokenizer"
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ours = tokenizer.load(write(tmp_path / "m.gguf", raw, pre))
    questions = (shared / "data/gsm8k/test.jsonl").read_text().splitlines()[:200]
    for text in [*TEXTS, *mixed_texts(200), *questions]:
        assert ours.encode(text) == raw.encode(text, add_special_tokens=False).ids
    theirs = tokenizer.load(folder)
    assert (ours.vocab_size, ours.forbidden_ids) == (theirs.vocab_size, theirs.forbidden_ids)
    assert set(ours.stop_ids) == set(theirs.stop_ids)
