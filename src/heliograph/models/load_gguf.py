"""A Llama, Qwen2 or Qwen3 from a GGUF file, weights kept as the file packs them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from heliograph.models.gguf_file import GgufFile, TensorInfo, open_gguf
from heliograph.models.gguf_metadata import Metadata
from heliograph.models.gguf_tokenizer import read_tokenizer
from heliograph.models.llama import Llama, LlamaConfig
from heliograph.models.model_text import ModelText
from heliograph.models.rope import LinearScaling, Rope
from heliograph.models.source_file import Source
from heliograph.models.weights import PLAIN, StoredTensor, Weights

ARCHITECTURES = ("llama", "qwen2", "qwen3")
ROPE_FACTORS = "rope_freqs.weight"
NAMES: Mapping[str, str] = {  # of the model -> of the file
    "embedding": "token_embd", "norm": "output_norm", "output": "output",
    "attention_norm": "attn_norm", "feed_forward_norm": "ffn_norm",
    "attention.query": "attn_q", "attention.key": "attn_k", "attention.value": "attn_v",
    "attention.output": "attn_output", "attention.query_norm": "attn_q_norm", "attention.key_norm": "attn_k_norm",
    "feed_forward.gate": "ffn_gate", "feed_forward.up": "ffn_up", "feed_forward.down": "ffn_down",
}  # fmt: skip


def load_gguf(path: Path) -> tuple[Llama, ModelText, tuple[Source, ...]]:
    """The model, what the file says about text, and the digest of the file."""
    gguf = open_gguf(path)
    with gguf.file:
        metadata = Metadata(gguf)
        architecture = metadata.text("general.architecture")
        if architecture not in ARCHITECTURES:
            raise metadata.unsupported(
                f"architecture {architecture!r}", f"one of {', '.join(ARCHITECTURES)}", "this architecture is not built"
            )
        stored = {name: _stored(gguf, tensor) for name, tensor in gguf.tensors.items()}
        factors = _rope_factors(stored, metadata)
        config = _config(metadata, architecture, tied="output.weight" not in stored, factors=factors)
        text = read_tokenizer(metadata)
        model = Llama(config, Weights(path.name, stored, _name_in_file))
        return model, text, (Source(path.name, gguf.file.digest()),)


def _stored(gguf: GgufFile, tensor: TensorInfo) -> StoredTensor:
    return StoredTensor(tensor.shape, tensor.layout.name, lambda: gguf.read(tensor))


def _name_in_file(name: str) -> str | None:
    """``layers.3.attention.query.weight`` -> ``blk.3.attn_q.weight``"""
    stem, _, leaf = name.rpartition(".")
    if not stem.startswith("layers."):
        return f"{NAMES[stem]}.{leaf}"
    _, index, part = stem.split(".", 2)
    return f"blk.{index}.{NAMES[part]}.{leaf}"


def _config(metadata: Metadata, architecture: str, *, tied: bool, factors: tuple[float, ...]) -> LlamaConfig:
    def whole(key: str, default: int | None = None) -> int:
        return metadata.whole(f"{architecture}.{key}", default)

    if whole("expert_count", 0):
        raise metadata.unsupported(f"{whole('expert_count')} experts", "a dense model", "experts are not built")
    heads = whole("attention.head_count")
    width = whole("embedding_length")
    head_width = whole("attention.key_length", width // max(1, heads))
    for key in ("attention.value_length", "rope.dimension_count"):
        if whole(key, head_width) != head_width:
            raise metadata.unsupported(f"{key} {whole(key)}", f"{head_width}, the head width", "this is not built")
    if len(factors) not in (0, head_width // 2):
        raise metadata.malformed(f"{ROPE_FACTORS} with {len(factors)} factors", f"{head_width // 2}")
    config = LlamaConfig(
        architecture=architecture,
        vocabulary=len(metadata.texts("tokenizer.ggml.tokens")),
        width=width,
        layers=whole("block_count"),
        heads=heads,
        kv_heads=whole("attention.head_count_kv", heads),
        head_width=head_width,
        feed_forward=whole("feed_forward_length"),
        context=whole("context_length"),
        epsilon=metadata.number(f"{architecture}.attention.layer_norm_rms_epsilon"),
        rope=_rope(metadata, architecture, factors),
        tied=tied,
        qkv_bias=architecture == "qwen2",
        qk_norm=architecture == "qwen3",
    )
    if whole("vocab_size", config.vocabulary) != config.vocabulary:
        raise metadata.malformed(f"vocab_size {whole('vocab_size')}", f"{config.vocabulary}, the number of tokens")
    metadata.refuse_unread(f"{architecture}.")
    return config


def _rope(metadata: Metadata, architecture: str, factors: tuple[float, ...]) -> Rope:
    prefix = f"{architecture}.rope."
    kind = metadata.text(prefix + "scaling.type", "none")
    if kind not in ("none", "linear"):
        raise metadata.unsupported(f"rope scaling {kind!r}", "none or linear", "this scaling is not built")
    scaling = LinearScaling(metadata.number(prefix + "scaling.factor")) if kind == "linear" else None
    base = metadata.number(prefix + "freq_base", 10000.0)
    if not 1 <= base < math.inf or (scaling and not 1 <= scaling.factor < math.inf):
        raise metadata.malformed(f"rope base {base} and scaling {scaling}", "finite numbers of 1 or more")
    return Rope(base, interleaved=architecture == "llama", scaling=scaling, factors=factors)


def _rope_factors(stored: dict[str, StoredTensor], metadata: Metadata) -> tuple[float, ...]:
    """Takes Llama 3's table of frequency factors out of the tensors; the model itself has no such weight."""
    table = stored.pop(ROPE_FACTORS, None)
    if table is None:
        return ()
    if table.layout not in PLAIN or len(table.shape) != 1:
        raise metadata.malformed(f"{ROPE_FACTORS} of shape {table.shape} as {table.layout}", "a plain vector")
    weights = Weights(ROPE_FACTORS, {ROPE_FACTORS: table}, lambda name: name)
    factors = tuple(weights.vector(ROPE_FACTORS, table.shape[0]).tolist())
    if not all(0 < factor < math.inf for factor in factors):
        raise metadata.malformed(f"{ROPE_FACTORS} with a factor that is not positive", "positive factors")
    return factors
