"""Chat messages in the tokenizer's own template, in which what a question spells stays text."""

from cpgd_jax.errors import UserError

# ChatML, for a tokenizer that has its tokens but no template.
DEFAULT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def pieces(fast, messages: list[dict[str, str]], images: int = 0) -> list[str | None]:
    """The prompt up to where the answer starts, as texts to encode one by one and to join.

    fast: a `transformers` tokenizer; messages: {role, content}. It is one text, unless a content
    spells a control token such as "<|im_end|>": the text is cut inside it, so that it is read as
    plain characters and no question can end its own turn. So many images stand before the last
    content, as in Qwen2.5-VL's template; each is a None among the texts. A system turn that the
    template adds where none is given stays. UserError: the template fails, or leaves out a message.
    """
    if fast.chat_template is None:
        raise UserError(
            "the tokenizer has no chat template: add chat_template to its tokenizer_config.json"
        )
    contents = "".join(m["content"] for m in messages)
    cut, image = _unused(contents, "\ue000"), _unused(contents, "\ue001")
    control = [token for token in fast.get_added_vocab() if len(token) > 1]
    marked = [m | {"content": _cut_inside(m["content"], control, cut)} for m in messages]
    marked[-1]["content"] = image * images + marked[-1]["content"]
    try:
        text = fast.apply_chat_template(marked, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # whatever Jinja or the template's own raise_exception give
        reason = " ".join(str(error).split())
        raise UserError(f"the tokenizer's chat template fails: {reason:.200}") from error
    for message in marked:
        if message["content"].strip() not in text:
            raise UserError(f"the tokenizer's chat template leaves out the {message['role']} turn")
    first, *others = (part.split(cut) for part in text.split(image, images))
    return [*first, *(piece for part in others for piece in (None, *part))]


def _unused(text: str, char: str) -> str:
    """A private-use character so often that it does not occur in the text."""
    cut = char
    while cut in text:
        cut += char
    return cut


def _cut_inside(text: str, control: list[str], cut: str) -> str:
    """`cut` after the first character of each control token, overlapping ones too."""
    spelled = tuple(token for token in control if token in text)
    if not spelled:
        return text
    starts = {at for at in range(len(text)) if text.startswith(spelled, at)}
    return "".join(char + cut * (at in starts) for at, char in enumerate(text))
