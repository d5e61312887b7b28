"""What a Hugging Face folder says about text: tokenizer.json as it is, chat template, special tokens."""

from __future__ import annotations

from pathlib import Path

from heliograph.models.hf_config import MAX_JSON, Settings, read_settings
from heliograph.models.model_text import ModelText, check_text
from heliograph.models.source_file import SourceFile
from heliograph.runtime.text import read_tokenizer

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"
TEMPLATE = "chat_template.jinja"


def read_text(folder: Path, vocabulary: int) -> tuple[ModelText, tuple[str, ...]]:
    """The text of a folder, checked, and the names of the files it came from."""
    names = [TOKENIZER, *(name for name in (TOKENIZER_CONFIG, GENERATION_CONFIG, TEMPLATE) if (folder / name).exists())]
    tokenizer = _read(folder / TOKENIZER)
    settings = read_settings(folder / TOKENIZER_CONFIG) if TOKENIZER_CONFIG in names else Settings(TOKENIZER_CONFIG, {})
    config = read_settings(folder / "config.json")
    generation = read_settings(folder / GENERATION_CONFIG) if GENERATION_CONFIG in names else Settings("", {})
    template = _read(folder / TEMPLATE).decode("utf-8") if TEMPLATE in names else _template(settings)
    bos = config.whole("bos_token_id", -1)
    ends = sorted({*_ids(config, "eos_token_id"), *_ids(generation, "eos_token_id")})
    library = read_tokenizer(tokenizer)
    text = ModelText(
        tokenizer=tokenizer,
        chat_template=template,
        bos=bos,
        eos=tuple(ends),
        bos_text=_token(settings, "bos_token") or (library.id_to_token(bos) if bos >= 0 else None) or "",
        eos_text=_token(settings, "eos_token") or (library.id_to_token(ends[0]) if ends else None) or "",
        vocabulary=vocabulary,
    )
    return check_text(text), tuple(names)


def _template(settings: Settings) -> str:
    """The template in the tokenizer's configuration: one string, or the one named default of several."""
    stated = settings.value("chat_template")
    if isinstance(stated, list):
        named = {str(entry.get("name")): entry.get("template") for entry in stated if isinstance(entry, dict)}
        stated = named.get("default")
    if stated is not None and not isinstance(stated, str):
        raise settings.malformed("chat_template", "a string, or a list of named ones")
    return stated or ""


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
