"""The tokenizer in a GGUF file's metadata: byte-level BPE, special tokens, chat template, stops."""

from pathlib import Path

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from cpgd_jax import gguf_file
from cpgd_jax.errors import UserError

QWEN2 = Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
STOPS = ("eos", "eot", "eom")  # tokens that end a text, a turn, a message


def _byte_level(use_regex: bool):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


# tokenizer.ggml.pre -> (normaliser, how a text is split before the merges)
SPLITS = {
    "gpt-2": (None, [_byte_level(True)]),
    "smollm": (None, [pre_tokenizers.Digits(individual_digits=True), _byte_level(True)]),
    "qwen2": (
        normalizers.NFC(),
        [pre_tokenizers.Split(QWEN2, "isolated"), _byte_level(False)],
    ),
}


def load(path: Path):
    """(`transformers` fast tokenizer, ids that stop). Its chat template is None if it has none.

    Ids equal those of the model's tokenizer.json. Places in the vocabulary that the file marks as
    unused have no token. UserError: broken, or a kind of tokenizer that is not supported.
    """
    from transformers import PreTrainedTokenizerFast

    fields = gguf_file.read(path).fields
    raw = _raw(path, fields)
    names = {
        f"{short}_token": raw.id_to_token(fields[key])
        for short, key in (("bos", _id("bos")), ("eos", _id("eos")), ("pad", _id("padding")))
        if isinstance(fields.get(key), int)
    }
    fast = PreTrainedTokenizerFast(
        tokenizer_object=raw, **names, clean_up_tokenization_spaces=False
    )
    fast.chat_template = fields.get("tokenizer.chat_template")
    stops = (fields.get(_id(name)) for name in STOPS)
    return fast, [stop for stop in stops if isinstance(stop, int) and raw.id_to_token(stop)]


def _id(name: str) -> str:
    return f"tokenizer.ggml.{name}_token_id"


def _raw(path: Path, fields: dict) -> Tokenizer:
    kind, pre = (fields.get(f"tokenizer.ggml.{key}") for key in ("model", "pre"))
    if kind != "gpt2" or pre not in SPLITS:
        known = ", ".join(f"gpt2/{name}" for name in SPLITS)
        raise UserError(f"{path}: tokenizer {kind}/{pre} is not supported, only {known}")
    tokens, merges = (_list(path, fields, key, str) for key in ("tokens", "merges"))
    types = _list(path, fields, "token_type", int)
    if len(types) != len(tokens):
        raise UserError(f"{path}: {len(tokens)} tokens with {len(types)} types")
    kept = {id: token for id, token in enumerate(tokens) if types[id] != TokenType.UNUSED}
    try:
        pairs = [tuple(merge.split(" ")) for merge in merges]
        raw = Tokenizer(models.BPE({token: id for id, token in kept.items()}, pairs))
    except Exception as error:  # of the Rust library, which has no type of its own
        line = str(error).splitlines()[0]
        raise UserError(f"{path}: its vocabulary and merges don't fit: {line}") from None
    normaliser, splits = SPLITS[pre]
    if normaliser is not None:
        raw.normalizer = normaliser
    raw.pre_tokenizer = pre_tokenizers.Sequence(splits)
    raw.decoder = decoders.ByteLevel()
    raw.add_tokens(
        [
            AddedToken(token, special=types[id] == TokenType.CONTROL, normalized=False)
            for id, token in kept.items()
            if types[id] in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ]
    )
    return raw


def _list(path: Path, fields: dict, key: str, kind: type) -> list:
    value = fields.get(f"tokenizer.ggml.{key}")
    if value is None:
        raise UserError(f"{path}: tokenizer.ggml.{key} is missing, so it has no tokenizer")
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise UserError(f"{path}: tokenizer.ggml.{key} is no list of {kind.__name__}")
    return value
