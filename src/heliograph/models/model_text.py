"""What a model's files say about text, and the check that it works before it goes into a core."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.errors import ModelFileError, UnsupportedModelError, UsageError
from heliograph.runtime.text import Text, read_tokenizer

PROBE = "Hello, world! 123 grüße 世界 🙂"


@dataclass(frozen=True, slots=True)
class ModelText:
    """``tokenizer`` is a tokenizer.json; ``chat_template`` may be empty; ``bos`` -1 means none."""

    tokenizer: bytes
    chat_template: str
    bos: int
    eos: tuple[int, ...]
    bos_text: str
    eos_text: str
    vocabulary: int  # rows of the output head; may exceed the tokenizer's ids


def check_text(text: ModelText) -> ModelText:
    """Refuses a tokenizer that does not give text back, ids outside the vocabulary, a template that cannot render.
    Raises whatever decoding any one id does.

    The files are hostile until shown otherwise; the template runs in its bounded process only.
    """
    tokenizer = read_tokenizer(text.tokenizer)
    ids = sorted(tokenizer.get_vocab(with_added_tokens=True).values())
    ends = [("eos token", token) for token in text.eos]
    for what, token in (("id", max(ids, default=-1)), ("bos token", text.bos), *ends):
        if token >= text.vocabulary or token < -1:
            raise ModelFileError(
                "reading the tokenizer", found=f"{what} {token}", required=f"ids below {text.vocabulary}",
                hint="tokenizer and weights belong to different models",
            )  # fmt: skip
    face = Text(text, text.tokenizer, text.chat_template)
    try:
        face.decode(ids, controls=True)  # a capture should fail of it, and no server
        back = face.decode(face.encode(PROBE))
        if back.strip() != PROBE:
            raise UnsupportedModelError(
                "reading the tokenizer", found=f"{PROBE!r} decoded as {back!r}", required="the same text",
                hint="this kind of tokenizer is not built",
            )  # fmt: skip
        if text.chat_template:
            _try_template(face)
    finally:
        face.close()
    return text


def _try_template(face: Text) -> None:
    """One short conversation. A template that refuses it on purpose is no fault."""
    try:
        face.encode_chat([{"role": "user", "content": PROBE}])
    except UsageError:
        return
