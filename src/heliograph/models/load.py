"""From a path to a model that can be captured: a GGUF file or a Hugging Face folder, told apart by content."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from heliograph.capture.spec import CaptureSpec
from heliograph.errors import StorageError, UnsupportedModelError, UsageError
from heliograph.models.gguf_file import MAGIC
from heliograph.models.llama import Llama
from heliograph.models.llama_spec import llama_spec, step_numbers
from heliograph.models.load_gguf import load_gguf
from heliograph.models.load_hf import load_hf
from heliograph.models.serving import Serving
from heliograph.models.source_file import Source, SourceFile

LARGEST_CONTEXT = 8192  # tokens, unless the caller asks for more


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model with the spec that serving captures, and the files that it came from."""

    model: Llama
    spec: CaptureSpec
    sources: tuple[Source, ...]


def load_model(path: str | os.PathLike[str], *, serving: Serving | None = None) -> LoadedModel:
    """Reads a model. ``serving`` defaults to the model's context, at most 8,192 tokens; above the model's context it
    is refused."""
    path = Path(path)
    if not path.exists():
        raise StorageError(
            "reading a model", found=f"nothing at {path.name!r}", required="a GGUF file or a Hugging Face folder",
            hint="check the path",
        )  # fmt: skip
    model, text, sources = load_hf(path) if _is_folder(path) else load_gguf(path)
    serving = serving or Serving(context=min(model.config.context, LARGEST_CONTEXT))
    if serving.context > model.config.context:
        raise UsageError(
            "planning how to serve the model", found=f"a context of {serving.context} tokens",
            required=f"{model.config.context} or less, the model's own", hint="ask for less context",
        )  # fmt: skip
    model.register_buffer("numbers", step_numbers(serving))
    return LoadedModel(model.eval(), llama_spec(model.config, text, serving), sources)


def _is_folder(path: Path) -> bool:
    """True: a Hugging Face folder. False: a GGUF file."""
    if path.is_dir():
        if (path / "config.json").exists():
            return True
        inside = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"give the file: {inside[0]}" if inside else "give a folder with config.json, or a GGUF file"
        raise _unknown(path, "a folder without config.json", hint)
    with SourceFile(path) as file:
        magic = bytes(file.read(0, min(4, file.size)))
    if magic == MAGIC:
        return False
    hint = "give the folder that holds it" if path.suffix == ".safetensors" else "give a GGUF file, no pickle is read"
    raise _unknown(path, f"a file that begins with {magic!r}", hint)


def _unknown(path: Path, found: str, hint: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"reading {path.name}", found=found, required="a GGUF file or a Hugging Face folder", hint=hint
    )
