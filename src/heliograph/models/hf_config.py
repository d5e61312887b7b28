"""Typed access to a JSON file of a Hugging Face folder, and the model's shape from its ``config.json``."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from heliograph.errors import ModelFileError, UnsupportedModelError
from heliograph.models.llama import LlamaConfig
from heliograph.models.rope import LinearScaling, Llama3Scaling, Rope
from heliograph.models.source_file import SourceFile

MAX_JSON = 64 << 20  # bytes; tokenizer_config.json of large vocabularies takes a few
ARCHITECTURES: Mapping[str, str] = {  # class -> model_type
    "LlamaForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
# Settings of these three classes that change the result and are not built: what each must be, if it is there.
UNBUILT: Mapping[str, tuple[object, ...]] = {
    "quantization_config": (None,),
    "use_sliding_window": (None, False),
    "mlp_bias": (None, False),
    "num_local_experts": (None, 0),
    "num_experts": (None, 0),
    "partial_rotary_factor": (None, 1, 1.0),
    "hidden_act": ("silu",),
    "is_causal": (None, True),
}


class Settings:
    """The values of one JSON object, checked for their type when they are read."""

    def __init__(self, file: str, values: Mapping[str, object]) -> None:
        self.file = file
        self._values = values

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def value(self, key: str) -> object:
        return self._values.get(key)

    def whole(self, key: str, default: int | None = None) -> int:
        found = self._values.get(key)
        if found is None and default is not None:
            return default
        if type(found) is not int:
            raise self.malformed(key, "a whole number")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        found = self._values.get(key)
        if found is None and default is not None:
            return default
        if type(found) not in (int, float) or not math.isfinite(found):  # type: ignore[arg-type]
            raise self.malformed(key, "a finite number")
        return float(found)  # type: ignore[arg-type]

    def truth(self, key: str, default: bool) -> bool:
        found = self._values.get(key)
        if found is not None and type(found) is not bool:
            raise self.malformed(key, "true or false")
        return default if found is None else bool(found)

    def text(self, key: str) -> str:
        found = self._values.get(key)
        if not isinstance(found, str):
            raise self.malformed(key, "a string")
        return found

    def inner(self, key: str) -> Settings:
        """An object inside; an empty one if it is not there."""
        found = self._values.get(key)
        if found is not None and not isinstance(found, dict):
            raise self.malformed(key, "an object")
        return Settings(f"{self.file}, {key}", found or {})

    def malformed(self, key: str, required: str) -> ModelFileError:
        return ModelFileError(
            f"reading {self.file}", found=f"{key} = {self._values.get(key)!r:.60}", required=required,
            hint="the file is damaged: fetch it again",
        )  # fmt: skip

    def unsupported(self, found: str, required: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"reading {self.file}", found=found, required=required, hint="a model with this feature is not built"
        )


def read_settings(path: Path) -> Settings:
    """A JSON object from a file, its size bounded."""
    with SourceFile(path) as file:
        if file.size > MAX_JSON:
            raise file.malformed(f"{file.size} bytes", f"{MAX_JSON} bytes at most")
        data = bytes(file.read(0, file.size))
        try:
            values = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise file.malformed("no JSON", "a JSON object", "the file is truncated or damaged") from error
        if not isinstance(values, dict):
            raise file.malformed(f"a JSON {type(values).__name__}", "a JSON object")
    return Settings(path.name, values)


def read_config(settings: Settings) -> LlamaConfig:
    """The model's shape; what this version cannot compute is refused by its name."""
    named = settings.value("architectures")
    if not isinstance(named, list) or len(named) != 1 or named[0] not in ARCHITECTURES:
        raise settings.unsupported(f"architectures {named!r:.80}", f"one of {', '.join(ARCHITECTURES)}")
    architecture = ARCHITECTURES[named[0]]
    _refuse_unbuilt(settings, architecture)
    heads, width = settings.whole("num_attention_heads"), settings.whole("hidden_size")
    return LlamaConfig(
        architecture=architecture,
        vocabulary=settings.whole("vocab_size"),
        width=width,
        layers=settings.whole("num_hidden_layers"),
        heads=heads,
        kv_heads=settings.whole("num_key_value_heads", heads),
        head_width=settings.whole("head_dim", 128 if architecture == "qwen3" else width // max(1, heads)),
        feed_forward=settings.whole("intermediate_size"),
        context=settings.whole("max_position_embeddings"),
        epsilon=settings.number("rms_norm_eps", 1e-6),
        rope=_rope(settings),
        tied=settings.truth("tie_word_embeddings", False),
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )


def _refuse_unbuilt(settings: Settings, architecture: str) -> None:
    kind = settings.value("model_type")
    if kind not in (None, architecture):
        raise settings.unsupported(f"model_type {kind!r:.60}", f"{architecture!r}, as architectures says")
    for key, allowed in UNBUILT.items():
        if settings.value(key) not in allowed:
            raise settings.unsupported(f"{key} = {settings.value(key)!r:.60}", f"{key} = {allowed[-1]!r}")
    if architecture != "qwen2" and settings.truth("attention_bias", False):
        raise settings.unsupported("attention_bias = true", "attention_bias = false")
    kinds = settings.value("layer_types") or []
    other = [kind for kind in kinds if kind != "full_attention"] if isinstance(kinds, list) else [kinds]
    if other:
        raise settings.unsupported(f"layer type {other[0]!r}", "'full_attention'")
    if architecture == "llama" and settings.value("sliding_window") is not None:
        raise settings.unsupported(f"sliding_window = {settings.value('sliding_window')!r:.60}", "no sliding window")


def _rope(settings: Settings) -> Rope:
    """From ``rope_scaling`` and ``rope_theta`` (before transformers 5) or ``rope_parameters`` (since). If there are
    both, transformers takes ``rope_scaling`` too."""
    stated = settings.inner("rope_scaling" if settings.value("rope_scaling") else "rope_parameters")
    base = (stated if "rope_theta" in stated else settings).number("rope_theta", 10000.0)
    kind = next((stated.text(key) for key in ("rope_type", "type") if key in stated), "default")
    if base < 1 or stated.number("partial_rotary_factor", 1.0) != 1.0:
        raise stated.unsupported(f"rope base {base} or a partial rotary factor", "a base of 1 or more, whole heads")
    if kind == "default":
        return Rope(base, interleaved=False)
    if kind == "linear":
        return Rope(base, interleaved=False, scaling=LinearScaling(_factor(stated, "factor")))
    if kind == "llama3":
        scaling = Llama3Scaling(
            factor=_factor(stated, "factor"),
            low=_factor(stated, "low_freq_factor"),
            high=_factor(stated, "high_freq_factor"),
            original_context=stated.whole("original_max_position_embeddings"),
        )
        if scaling.high <= scaling.low or scaling.original_context < 1:
            raise stated.malformed("high_freq_factor", "a number above low_freq_factor")
        return Rope(base, interleaved=False, scaling=scaling)
    raise stated.unsupported(f"rope scaling {kind!r}", "default, linear or llama3")


def _factor(stated: Settings, key: str) -> float:
    found = stated.number(key)
    if found <= 0:
        raise stated.malformed(key, "a positive number")
    return found
