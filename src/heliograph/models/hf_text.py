"""What a Hugging Face folder says about text: tokenizer.json as it is, chat template, special tokens."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer

from heliograph.errors import ModelFileError
from heliograph.models.hf_config import MAX_JSON, Settings, read_settings
from heliograph.models.model_text import ModelText, check_text
from heliograph.models.source_file import SourceFile
from heliograph.runtime.text import read_tokenizer

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
TEMPLATE = "chat_template.jinja"
NAMED = ("bos_token", "eos_token")
LISTED = ("additional_special_tokens", "extra_special_tokens")


def read_text(folder: Path, vocabulary: int) -> tuple[ModelText, tuple[str, ...]]:
    """The text of a folder, checked, and the names of the files it came from."""
    names = [TOKENIZER, *(name for name in (TOKENIZER_CONFIG, GENERATION_CONFIG, TEMPLATE) if (folder / name).exists())]
    tokenizer = _read(folder / TOKENIZER)
    library = read_tokenizer(tokenizer)
    settings = read_settings(folder / TOKENIZER_CONFIG) if TOKENIZER_CONFIG in names else Settings(TOKENIZER_CONFIG, {})
    _refuse_unheld(settings, library)
    config = read_settings(folder / "config.json")
    generation = read_settings(folder / GENERATION_CONFIG) if GENERATION_CONFIG in names else Settings("", {})
    template = _template_file(folder / TEMPLATE) if TEMPLATE in names else _template(settings)
    bos = config.whole("bos_token_id", -1)
    ends = {*_ids(config, "eos_token_id"), *_ids(generation, "eos_token_id")}
    if TOKENIZER_CONFIG in names:  # then a token that it does not name is none
        bos_text, eos_text = (_token(settings, key) for key in NAMED)
        ends |= {token for token, added in library.get_added_tokens_decoder().items() if added.content == eos_text}
    else:
        bos_text, eos_text = (_spelled(library, token, vocabulary) for token in (bos, min(ends, default=-1)))
    text = ModelText(
        tokenizer=tokenizer,
        chat_template=template,
        bos=bos,
        eos=tuple(sorted(ends)),
        bos_text=bos_text,
        eos_text=eos_text,
        vocabulary=vocabulary,
    )
    return check_text(text), tuple(names)


def _template_file(path: Path) -> str:
    try:
        return _read(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ModelFileError(
            f"reading {path.name}", found=f"byte {error.start}, which is no text", required="a template in UTF-8",
            hint="save it as UTF-8, or fetch the model's files again",
        ) from error  # fmt: skip


def _template(settings: Settings) -> str:
    """The template in the tokenizer's configuration: one string, or the one named default of several."""
    stated = settings.value("chat_template")
    if isinstance(stated, list):
        named = {str(entry.get("name")): entry.get("template") for entry in stated if isinstance(entry, dict)}
        stated = named.get("default")
    if stated is not None and not isinstance(stated, str):
        raise settings.malformed("chat_template", "a string, or a list of named ones")
    return stated or ""


def _refuse_unheld(settings: Settings, library: Tokenizer) -> None:
    """Refuses a token that the tokenizer's configuration names and tokenizer.json does not hold as a token of its own.
    transformers adds it; left out, it would be plain text."""
    held = {str(token): added.content for token, added in library.get_added_tokens_decoder().items()}
    texts = {*held.values()}
    numbered = _tokens(settings, "added_tokens_decoder")
    named = [text for key in LISTED for text in _tokens(settings, key).values()]
    named += [text for key in NAMED if (text := _token(settings, key))]
    unheld = [f"{text!r:.60} as token {token:.20}" for token, text in numbered.items() if held.get(token) != text]
    unheld += [f"{text!r:.60}" for text in named if text not in texts]
    if unheld:
        raise ModelFileError(
            f"reading {settings.file}", found=unheld[0], required=f"an added token of {TOKENIZER}",
            hint="load the tokenizer with transformers and save it again: that adds it",
        )  # fmt: skip


def _tokens(settings: Settings, key: str) -> dict[str, str]:
    """The texts of tokens in a list or an object, each by its place there."""
    stated = settings.value(key) or {}
    if isinstance(stated, list):
        stated = {str(place): token for place, token in enumerate(stated)}
    if not isinstance(stated, dict):
        raise settings.malformed(key, "a list or an object of tokens")
    inner = Settings(f"{settings.file}, {key}", stated)
    return {place: _token(inner, place) for place in stated}


def _spelled(library: Tokenizer, token: int, vocabulary: int) -> str:
    return (library.id_to_token(token) if 0 <= token < vocabulary else None) or ""


def _token(settings: Settings, key: str) -> str:
    """A special token's text: a string, or an object with its content."""
    stated = settings.value(key)
    if isinstance(stated, dict):
        stated = stated.get("content")
    if stated is not None and not isinstance(stated, str):
        raise settings.malformed(key, "a string")
    return stated or ""


def _ids(settings: Settings, key: str) -> list[int]:
    """One id, a list of them, or none."""
    stated = settings.value(key)
    listed = stated if isinstance(stated, list) else [stated] if stated is not None else []
    ids = [token for token in listed if type(token) is int]
    if len(ids) != len(listed):
        raise settings.malformed(key, "an id or a list of ids")
    return ids


def _read(path: Path) -> bytes:
    with SourceFile(path) as file:
        if file.size > MAX_JSON:
            raise file.malformed(f"{file.size} bytes", f"{MAX_JSON} bytes at most")
        return bytes(file.read(0, file.size))
