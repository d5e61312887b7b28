"""Tiny random models for tests: Hugging Face folders written by transformers, GGUF files by the gguf package."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import tiny_tokenizer
from heliograph.capture import capture
from heliograph.models.load import load_model
from heliograph.models.serving import Serving
from tiny_tokenizer import CONTROLS

torch.set_num_threads(1)  # PyTorch's threads spin while they wait, which costs more than they give on tiny models
SMALL = Serving(context=96, decode_rows=(1, 2, 4), prefill_tokens=(16, 64), masks=4)
MERGES = (("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("o", "r"), ("l", "d"))
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
KINDS: Mapping[str, tuple[type, type]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def tokens() -> list[str]:
    return tiny_tokenizer.tokens(MERGES)


def tokenizer_json() -> str:
    return tiny_tokenizer.byte_level(MERGES).to_str()


def random_model(kind: str, seed: int = 0, **settings: object) -> PreTrainedModel:
    """A model in which every parameter counts: biases are not zero, norms not one."""
    config_class, model_class = KINDS[kind]
    given = {**SIZES, "vocab_size": len(tokens()), "tie_word_embeddings": False, **settings}
    if kind == "qwen3":
        given.setdefault("head_dim", 32)
    generator = torch.Generator().manual_seed(seed)
    model = model_class(config_class(**given)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + 0.2 * noise if "norm" in name else 0.15 * noise)
    return model


def write_hf(
    folder: Path, model: PreTrainedModel, *, dtype: torch.dtype = torch.float32, shard: str | None = None
) -> PreTrainedModel:  # fmt: skip
    """Writes the model in ``dtype``; returns one in f32 with the values that were written."""
    with torch.no_grad():  # not model.to(dtype): that rounds the rope's frequencies too, which no file holds
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype).float())
    copy.deepcopy(model).to(dtype).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
    (folder / "tokenizer.json").write_text(tokenizer_json())
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    return model


def edit_json(path: Path, **changes: object) -> None:
    """Sets keys of a JSON file; a value of ... removes the key."""
    values = json.loads(path.read_text())
    for key, value in changes.items():
        if value is ...:
            values.pop(key, None)
        else:
            values[key] = value
    path.write_text(json.dumps(values))


def interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in the order that llama.cpp's converter gives them, for interleaved rope."""
    half = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, half, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def gguf_name(name: str) -> str:
    stem, _, leaf = name.rpartition(".")
    if stem.startswith("model.layers."):
        _, _, index, part = stem.split(".", 3)
        return f"blk.{index}.{GGUF_NAMES[part]}.{leaf}"
    return f"{GGUF_NAMES[stem]}.{leaf}"


def write_gguf(
    path: Path, model: PreTrainedModel, *, matrices: str = "F32", embedding: str | None = None,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None, skip: Sequence[str] = (),
    extra: Mapping[str, np.ndarray] | None = None, values: Mapping[str, object] | None = None,
) -> None:  # fmt: skip
    """A GGUF file of a model. ``values`` replaces metadata (None leaves a key out)."""
    config = model.config
    architecture = next(kind for kind, (_, cls) in KINDS.items() if isinstance(model, cls))
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata(architecture, config) | dict(values or {})).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        elif value is not None:
            writer.add_array(key, value)
    change(writer)
    for name, value in model.state_dict().items():
        if name in skip or (name == "lm_head.weight" and config.tie_word_embeddings):
            continue
        data = value.float().numpy()
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            data = interleave(data, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
        kind = gguf.GGMLQuantizationType[(embedding or matrices) if "embed" in name or "lm_head" in name else matrices]
        if data.ndim == 1 or kind is gguf.GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), np.ascontiguousarray(data))
        else:
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(data, kind), raw_dtype=kind)
    for name, data in (extra or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def metadata(architecture: str, config: object) -> dict[str, object]:
    sizes = {
        "block_count": config.num_hidden_layers, "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size, "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads, "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "attention.key_length": config.head_dim if architecture == "qwen3" else None,
    }  # fmt: skip
    names = tokens()
    return {f"{architecture}.{key}": value for key, value in sizes.items()} | {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [3 if name in CONTROLS else 1 for name in names],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in MERGES],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


def dequantised(model: PreTrainedModel, matrices: str) -> PreTrainedModel:
    """The model with the values that its matrices have once quantised, by the gguf package."""
    kind = gguf.GGMLQuantizationType[matrices]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                packed = gguf.quants.quantize(parameter.numpy(), kind)
                parameter.copy_(torch.from_numpy(gguf.quants.dequantize(packed, kind)))
    return model


def capture_small(path: Path, cores: Path, serving: Serving = SMALL) -> Path:
    """The signed core of a model's files, with few and small buckets."""
    loaded = load_model(path, serving=serving)
    return capture(loaded.model, loaded.spec, cores=cores, name="tiny", consume=True)
