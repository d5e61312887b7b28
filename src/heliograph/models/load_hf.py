"""A Llama, Qwen2 or Qwen3 from a Hugging Face folder: config.json, safetensors in one file or in shards, tokenizer.

Only JSON, Jinja text and safetensors files are opened, never a pickle. Index, files and model are compared both
ways: a shard or tensor that is missing, stands twice or belongs to nothing stops the load and is named.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from heliograph.errors import ModelFileError
from heliograph.models.hf_config import read_config, read_settings
from heliograph.models.hf_text import read_text
from heliograph.models.llama import Llama
from heliograph.models.model_text import ModelText
from heliograph.models.safetensors_file import SafetensorsFile, TensorInfo, open_safetensors
from heliograph.models.source_file import Source, SourceFile
from heliograph.models.weights import StoredTensor, Weights

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
LAYOUTS: Mapping[str, str] = {"F32": "f32", "BF16": "bf16", "F16": "f16"}
NAMES: Mapping[str, str] = {  # of the model -> of the files
    "embedding": "model.embed_tokens", "norm": "model.norm", "output": "lm_head",
    "attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj", "attention.key": "self_attn.k_proj", "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj", "attention.query_norm": "self_attn.q_norm",
    "attention.key_norm": "self_attn.k_norm",
    "feed_forward.gate": "mlp.gate_proj", "feed_forward.up": "mlp.up_proj", "feed_forward.down": "mlp.down_proj",
}  # fmt: skip


def load_hf(folder: Path) -> tuple[Llama, ModelText, tuple[Source, ...]]:
    """The model, what the folder says about text, and the digests of the files that were read."""
    config = read_config(read_settings(folder / "config.json"))
    text, text_files = read_text(folder, config.vocabulary)
    names = _weight_files(folder)
    with ExitStack() as stack:
        files: dict[str, SafetensorsFile] = {}
        for name in names:
            files[name] = open_safetensors(folder / name)
            stack.callback(files[name].file.close)
        stored = _stored(folder, files)
        model = Llama(config, Weights(folder.name or "the model", stored, _name_in_file))
        sources = [Source(name, file.file.digest()) for name, file in files.items()]
    sources += [_source(folder / name) for name in ("config.json", *text_files)]
    return model, text, tuple(sorted(sources, key=lambda source: source.name))


def _name_in_file(name: str) -> str | None:
    """``layers.3.attention.query.weight`` -> ``model.layers.3.self_attn.q_proj.weight``"""
    stem, _, leaf = name.rpartition(".")
    if not stem.startswith("layers."):
        return f"{NAMES[stem]}.{leaf}"
    _, index, part = stem.split(".", 2)
    return f"model.layers.{index}.{NAMES[part]}.{leaf}"


def _weight_files(folder: Path) -> list[str]:
    """The safetensors files of the folder, which must be exactly those that the model names."""
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    named = [SINGLE]
    if (folder / INDEX).exists():
        if SINGLE in found:
            raise _malformed(folder, f"both {SINGLE} and {INDEX}", "one of them", "remove the one that is not meant")
        named = sorted(set(_index(folder).values()))
    if found == named:
        return named
    missing, extra = sorted(set(named) - set(found)), sorted(set(found) - set(named))
    if missing:
        raise _malformed(folder, f"no {missing[0]}", "every weight file", "fetch the missing file (no pickle is read)")
    raise _malformed(folder, f"{extra[0]}, which nothing names", f"only {', '.join(named)}", "remove the extra file")


def _index(folder: Path) -> dict[str, str]:
    """Tensor -> file, from the index."""
    settings = read_settings(folder / INDEX)
    stated = settings.value("weight_map")
    if not isinstance(stated, dict) or not stated:
        raise settings.malformed("weight_map", "an object of tensor names and file names")
    for name, file in stated.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise _malformed(
                folder, f"tensor {name!r} in {file!r:.60}", "a .safetensors file of the same folder",
                "the index is damaged: fetch it again",
            )  # fmt: skip
    return stated


def _stored(folder: Path, files: Mapping[str, SafetensorsFile]) -> dict[str, StoredTensor]:
    """All tensors of all files. The index, if there is one, must say the same."""
    stored: dict[str, StoredTensor] = {}
    places: dict[str, str] = {}
    for name, file in files.items():
        for tensor in file.tensors.values():
            if tensor.name in stored:
                raise _malformed(
                    folder, f"tensor {tensor.name!r} in {places[tensor.name]} and in {name}", "each tensor once",
                    "fetch the files again",
                )  # fmt: skip
            stored[tensor.name] = _tensor(file, tensor)
            places[tensor.name] = name
    index = _index(folder) if (folder / INDEX).exists() else places
    for name in sorted(index.keys() | places.keys()):
        if index.get(name) != places.get(name):
            found, required = places.get(name, "no file"), index.get(name, "none")
            raise _malformed(
                folder, f"tensor {name!r} in {found}", f"in {required}, as the index says",
                "index and files belong to different versions of the model: fetch them again",
            )  # fmt: skip
    return stored


def _tensor(file: SafetensorsFile, tensor: TensorInfo) -> StoredTensor:
    return StoredTensor(tensor.shape, LAYOUTS[tensor.dtype], lambda: file.read(tensor))


def _source(path: Path) -> Source:
    with SourceFile(path) as file:
        return Source(path.name, file.digest())


def _malformed(folder: Path, found: str, required: str, hint: str) -> ModelFileError:
    return ModelFileError(f"reading the folder {folder.name}", found=found, required=required, hint=hint)
