"""The reference: a Llama in plain PyTorch, f32, on the dequantised weights of a GGUF file.

It shares nothing with the package: the gguf package reads and dequantises, keys and values are never rounded unless
a control asks for it, and attention is a softmax over all positions at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

PROMPTS = Path(__file__).with_name("prompts.json")


class Reference:
    """Controls are set on the attributes: ``rounded``, the type to which keys and values are rounded."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)

        def value(key: str) -> float:
            return reader.fields[f"llama.{key}"].contents()

        self.rounded: torch.dtype | None = None
        self.layers, self.heads = int(value("block_count")), int(value("attention.head_count"))
        self.kv_heads, self.width = int(value("attention.head_count_kv")), int(value("embedding_length"))
        self.head_width = self.width // self.heads
        self.epsilon, self.base = value("attention.layer_norm_rms_epsilon"), value("rope.freq_base")
        self.weights = {tensor.name: dequantised(tensor) for tensor in reader.tensors}
        self.minima = {
            tensor.name: minima(tensor)
            for tensor in reader.tensors
            if tensor.tensor_type is gguf.GGMLQuantizationType.Q4_1
        }
        self.head = self.weights.get("output.weight", self.weights["token_embd.weight"])

    def without_minima(self) -> None:
        """A control: every Q4_1 weight is d q instead of d q + m."""
        for name, least in self.minima.items():
            self.weights[name] = (self.weights[name].view(-1, 32) - least[:, None]).view(self.weights[name].shape)

    @torch.no_grad()
    def logits(self, ids: Sequence[int]) -> Tensor:
        """f32[T, V] after each of T tokens."""
        tokens = len(ids)
        future = torch.full((tokens, tokens), -torch.inf).triu(1)
        x = self.weights["token_embd.weight"][torch.tensor(ids)]
        for layer in range(self.layers):
            x = x + self.attention(self.norm(x, f"blk.{layer}.attn_norm"), layer, future)
            y = self.norm(x, f"blk.{layer}.ffn_norm")
            gate, up = self.linear(y, f"blk.{layer}.ffn_gate"), self.linear(y, f"blk.{layer}.ffn_up")
            x = x + self.linear(silu(gate) * up, f"blk.{layer}.ffn_down")
        return self.projected(self.norm(x, "output_norm"))

    def attention(self, x: Tensor, layer: int, future: Tensor) -> Tensor:
        tokens = len(x)
        query = self.rotated(self.linear(x, f"blk.{layer}.attn_q").view(tokens, self.heads, -1))
        key = self.rotated(self.linear(x, f"blk.{layer}.attn_k").view(tokens, self.kv_heads, -1))
        value = self.linear(x, f"blk.{layer}.attn_v").view(tokens, self.kv_heads, -1)
        if self.rounded is not None:
            key, value = key.to(self.rounded).float(), value.to(self.rounded).float()
        group = self.heads // self.kv_heads
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        scores = torch.einsum("thd,shd->hts", query, key) / self.head_width**0.5 + future
        mixed = torch.einsum("hts,shd->thd", scores.softmax(-1), value)
        return self.linear(mixed.reshape(tokens, -1), f"blk.{layer}.attn_output")

    def rotated(self, x: Tensor) -> Tensor:
        """Pairs of neighbours turned by position times frequency."""
        frequencies = 1.0 / (self.base ** (torch.arange(0, self.head_width, 2).float() / self.head_width))
        angles = torch.outer(torch.arange(len(x)).float(), frequencies)[:, None]
        turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2)

    def projected(self, x: Tensor) -> Tensor:
        return x @ self.head.T

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, (self.width,), self.weights[f"{name}.weight"], self.epsilon)


def dequantised(tensor: gguf.ReaderTensor) -> Tensor:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return torch.from_numpy(np.array(values, dtype=np.float32)).reshape(*map(int, tensor.shape[::-1]))


def minima(tensor: gguf.ReaderTensor) -> Tensor:
    """The minimum of each block of 32: f16 d, f16 m, 16 bytes of nibbles."""
    blocks = np.array(tensor.data).reshape(-1, 20)
    return torch.from_numpy(np.ascontiguousarray(blocks[:, 2:4]).view(np.float16)[:, 0].astype(np.float32))


def prompts() -> tuple[dict[str, str], int]:
    """Name and text of each prompt, and how many of its first tokens count."""
    read = json.loads(PROMPTS.read_text())
    return {prompt["name"]: prompt["text"] for prompt in read["prompts"]}, read["positions"]
