"""Text to ids and back, with the chat template and every stop id."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

from cpgd_jax import gguf_file, progress
from cpgd_jax.data import chat, gguf_tokenizer, prompts
from cpgd_jax.data.pictures import NAMES
from cpgd_jax.errors import UserError

# Ids that a policy must never emit: they stand for image content.
BEGIN, IMAGE, END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
VISION_TOKENS = (IMAGE, "<|video_pad|>", BEGIN, END)


@dataclass(frozen=True)
class Tokenizer:
    """A `transformers` fast tokenizer and what the trainer needs to know of it."""

    fast: Any  # transformers.PreTrainedTokenizerFast
    stop_ids: tuple[int, ...]  # every id that ends a response; the first one ends a demonstration
    pad_id: int  # fills rows; may equal a stop id, since masks come from lengths
    forbidden_ids: tuple[int, ...]  # never sampled

    @property
    def vocab_size(self) -> int:
        return len(self.fast)

    def encode(self, text: str) -> list[int]:
        """Ids of a text, no special token added; those that it spells out become control tokens.

        UserError: the tokenizer has no token for a part of it.
        """
        ids = self.fast.encode(text, add_special_tokens=False)
        if self.fast.unk_token_id in ids and self.fast.unk_token not in text:
            raise UserError(
                f"the tokenizer has no token for {_unknown(self.fast, text)!r} in {text[:60]!r}:"
                " ask in its words, or give another config.data.tokenizer"
            )
        return ids

    def encode_prompt(
        self, question: str, system_prompt: str = "none", image_tokens: tuple[int, ...] = ()
    ) -> list[int]:
        """Ids of one question in the chat template, up to where the answer starts.

        Nothing in the question becomes a control token. image_tokens: how many each of its images
        takes; they stand before the question, each between a start and an end.
        """
        messages, ids, left = prompts.messages(question, system_prompt), [], list(image_tokens)
        for piece in chat.pieces(self.fast, messages, len(image_tokens)):
            ids += self._image(left.pop(0)) if piece is None else self.encode(piece)
        return ids

    @property
    def image_id(self) -> int | None:
        """Stands for each token of an image; None: a tokenizer of texts alone."""
        return self.fast.get_added_vocab().get(IMAGE)

    def _image(self, count: int) -> list[int]:
        known = self.fast.get_added_vocab()
        if missing := [token for token in (BEGIN, IMAGE, END) if token not in known]:
            raise UserError(
                f"the tokenizer has no {missing[0]}, and a prompt has an image: give that of a"
                " Qwen2.5-VL"
            )
        return [known[BEGIN], *[known[IMAGE]] * count, known[END]]

    def decode(self, ids) -> str:
        """Text up to, and without, the first stop id: what the reward sees."""
        ids = [int(i) for i in ids]
        end = next((n for n, i in enumerate(ids) if i in self.stop_ids), len(ids))
        return self.fast.decode(
            ids[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False
        )

    def save_pretrained(self, folder) -> None:
        """Files that `load` reads back to the same tokenizer, stop ids and all."""
        self.fast.save_pretrained(str(folder))
        text = json.dumps({"eos_token_id": list(self.stop_ids)})
        (Path(folder) / "generation_config.json").write_text(text + "\n")


def pictures() -> Tokenizer:
    """The picture task's: the arithmetic task's, with vision tokens and the names of shapes."""
    return _wrap(_tiny(VISION_TOKENS, tuple(NAMES.values())))


def load(path: str | Path = "") -> Tokenizer:
    """From a Hugging Face folder, a tokenizer.json or a GGUF file; "": the arithmetic task's."""
    # transformers advises to install torch, which is not needed here
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    from transformers import PreTrainedTokenizerFast

    if not path:
        return _wrap(_tiny())
    path = Path(path)
    if gguf_file.is_gguf(path):
        return _wrap(*gguf_tokenizer.load(path))
    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"tokenizer {str(path)!r} not found: give a folder with tokenizer.json")
    try:
        if path.is_dir():
            fast = PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True)
        else:
            fast = PreTrainedTokenizerFast(tokenizer_file=str(file))
    except Exception as error:
        raise UserError(f"tokenizer {str(file)!r} cannot be read: {error}") from error
    generation_config = path / "generation_config.json"  # beside a tokenizer.json it is not read
    return _wrap(fast, _listed(generation_config) if generation_config.is_file() else [])


def _wrap(fast, listed_stops=()) -> Tokenizer:
    known = fast.get_added_vocab()
    if fast.chat_template is None and "<|im_start|>" in known:
        progress.warn("the tokenizer has no chat template: ChatML is used")
        fast.chat_template = chat.DEFAULT_TEMPLATE
    stop = _stop_ids(fast, listed_stops)
    forbidden = tuple(known[t] for t in VISION_TOKENS if t in known)
    pad = fast.pad_token_id if fast.pad_token_id is not None else stop[0]
    return Tokenizer(fast, stop, pad, forbidden)


def _stop_ids(fast, listed) -> tuple[int, ...]:
    ids = list(listed)
    known = fast.get_added_vocab()
    ids += [known[t] for t in ("<|im_end|>", "<|endoftext|>") if t in known]
    if fast.eos_token_id is not None:
        ids.append(fast.eos_token_id)
    if not ids:
        raise UserError("the tokenizer names no end-of-sequence token: add generation_config.json")
    for id in ids:
        if id not in range(len(fast)):
            raise UserError(f"eos_token_id {id!r} is no id of the tokenizer: 0 to {len(fast) - 1}")
    return tuple(dict.fromkeys(ids))


def _unknown(fast, text: str) -> str:
    """The first part of the text that has no token."""
    encoded = fast(text, add_special_tokens=False, return_offsets_mapping=True)
    start, end = encoded["offset_mapping"][encoded["input_ids"].index(fast.unk_token_id)]
    return text[start:end]


def _listed(generation_config: Path) -> list[int]:
    """Its eos_token_id: one id, a list, or none."""
    try:
        listed = json.loads(generation_config.read_text())["eos_token_id"]
    except KeyError:
        return []
    except (ValueError, TypeError) as error:
        raise UserError(f"{str(generation_config)!r} cannot be read: {error}") from error
    if listed is None:
        return []
    return listed if isinstance(listed, list) else [listed]


def _tiny(vision=(), names=()):
    """One token a digit, sign, tag and word: about a hundred tokens."""
    from transformers import PreTrainedTokenizerFast

    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<unk>", *vision]
    tags = ["<think>", "</think>", "<answer>", "</answer>", "\\boxed"]
    words = ["system", "user", "assistant", *prompts.REASONING.replace("\\", " ").split()]
    words = [w for w in (w.strip(".,{}<>/") for w in words) if w.isalpha()]
    words += names
    symbols = [*"0123456789+-*/=?.,:{}() \n"]
    vocab = list(dict.fromkeys([*special, *tags, *symbols, *words]))
    raw = RawTokenizer(models.WordLevel({t: i for i, t in enumerate(vocab)}, unk_token="<unk>"))
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    raw.pre_tokenizer = pre_tokenizers.Split(
        Regex(r"</?(think|answer)>|\\boxed|[A-Za-z]+|[\s\S]"), "isolated"
    )
    raw.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token="<|im_end|>", pad_token="<|endoftext|>", unk_token="<unk>"
    )
    fast.chat_template = chat.DEFAULT_TEMPLATE
    return fast
