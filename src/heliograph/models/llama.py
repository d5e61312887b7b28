"""Llama in plain PyTorch on the heliograph ops: Llama, Qwen2 (biases on q, k, v), Qwen3 (norms on q and k).

One token is one row. A row says where it stands by its position and by the row of the block table that holds its
sequence, so decode rows, chunks of a prompt and padding go through the same code; the only state is the paged
key/value memory. Everything is computed in f32; weights keep the type in which their files hold them.

Shapes: T tokens, C width, F feed-forward width, H heads, G key/value heads, D head width, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

import heliograph.ops.references  # noqa: F401  registers the ops
from heliograph.errors import ModelFileError
from heliograph.models.rope import Rope
from heliograph.models.weights import PLAIN, Weights

ops = torch.ops.heliograph


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a model."""

    architecture: str  # llama | qwen2 | qwen3
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    feed_forward: int
    context: int  # tokens that the model was trained for
    epsilon: float
    rope: Rope
    tied: bool  # the output head is the embedding
    qkv_bias: bool = False
    qk_norm: bool = False

    def __post_init__(self) -> None:
        extents = (
            self.vocabulary, self.width, self.layers, self.heads, self.kv_heads, self.head_width, self.feed_forward,
            self.context,
        )  # fmt: skip
        if min(extents) < 1 or self.heads % self.kv_heads or self.head_width % 2 or not 0 < self.epsilon < 1:
            raise ModelFileError(
                "reading the model's configuration", found=repr(self),
                required="positive sizes, a multiple of kv_heads heads, an even head width, an epsilon below 1",
                hint="the configuration is damaged: fetch it again",
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Places:
    """Where each token of a step stands: its position (-1: padding), its row of the block tables, the tables."""

    positions: Tensor  # i32[T]
    rows: Tensor  # i32[T]
    tables: Tensor  # i32[S, blocks of a sequence]
    real: Tensor | None = None  # i32[1]: how many tokens are no padding, all if left out; they come first


class Linear(nn.Module):
    """x @ weight.T + bias, with the weight plain or packed."""

    def __init__(self, weight: nn.Parameter, out_features: int, bias: nn.Parameter | None = None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.out_features = out_features
        self.layout = layout(weight)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        y: Tensor = ops.linear(x, self.weight, self.bias, self.layout, self.out_features, real)
        return y


class Embedding(nn.Module):
    """Rows of a table. ``project`` multiplies by the same table: a tied output head."""

    def __init__(self, weight: nn.Parameter, vocabulary: int, width: int) -> None:
        super().__init__()
        self.weight = weight
        self.vocabulary = vocabulary
        self.width = width
        self.layout = layout(weight)

    def forward(self, ids: Tensor, real: Tensor | None) -> Tensor:
        y: Tensor = ops.embedding(ids, self.weight, self.layout, self.width, real)
        return y

    def project(self, x: Tensor, real: Tensor | None) -> Tensor:
        y: Tensor = ops.linear(x, self.weight, None, self.layout, self.vocabulary, real)
        return y


class RmsNorm(nn.Module):
    """Root-mean-square norm over the last dimension."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        super().__init__()
        self.weight = weight
        self.epsilon = epsilon

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        y: Tensor = ops.rms_norm(x, self.weight, self.epsilon, real)
        return y


class Attention(nn.Module):
    """Grouped-query attention over the paged key/value memory. ``layer`` is its place in that memory."""

    def __init__(self, config: LlamaConfig, weights: Weights, name: str, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.heads, self.kv_heads, self.head_width = config.heads, config.kv_heads, config.head_width
        self.interleaved = config.rope.interleaved

        def projection(part: str, heads: int) -> Linear:
            size = heads * config.head_width
            bias = weights.vector(f"{name}.{part}.bias", size) if config.qkv_bias else None
            return Linear(weights.matrix(f"{name}.{part}.weight", size, config.width), size, bias)

        def norm(part: str) -> RmsNorm | None:
            if not config.qk_norm:
                return None
            return RmsNorm(weights.vector(f"{name}.{part}.weight", config.head_width), config.epsilon)

        self.query = projection("query", config.heads)
        self.key = projection("key", config.kv_heads)
        self.value = projection("value", config.kv_heads)
        self.query_norm = norm("query_norm")
        self.key_norm = norm("key_norm")
        size = config.heads * config.head_width
        self.output = Linear(weights.matrix(f"{name}.output.weight", config.width, size), config.width)

    def forward(self, x: Tensor, places: Places, frequencies: Tensor, kv: Tensor) -> Tensor:
        tokens, real = x.shape[0], places.real
        query = self.query(x, real).view(tokens, self.heads, self.head_width)
        key = self.key(x, real).view(tokens, self.kv_heads, self.head_width)
        value = self.value(x, real).view(tokens, self.kv_heads, self.head_width)
        if self.query_norm is not None and self.key_norm is not None:
            query, key = self.query_norm(query, real), self.key_norm(key, real)
        query = ops.rope(query, places.positions, frequencies, self.interleaved, real)
        key = ops.rope(key, places.positions, frequencies, self.interleaved, real)
        ops.kv_store(key, value, kv, self.layer, places.tables, places.rows, places.positions)
        mixed = ops.paged_attention(
            query, kv, self.layer, places.tables, places.rows, places.positions, self.head_width**-0.5, real
        )
        y: Tensor = self.output(mixed.view(tokens, self.heads * self.head_width), real)
        return y


class FeedForward(nn.Module):
    """down(silu(gate(x)) * up(x))"""

    def __init__(self, config: LlamaConfig, weights: Weights, name: str) -> None:
        super().__init__()
        width, inner = config.width, config.feed_forward
        self.gate = Linear(weights.matrix(f"{name}.gate.weight", inner, width), inner)
        self.up = Linear(weights.matrix(f"{name}.up.weight", inner, width), inner)
        self.down = Linear(weights.matrix(f"{name}.down.weight", width, inner), width)

    def forward(self, x: Tensor, real: Tensor | None) -> Tensor:
        y: Tensor = self.down(ops.silu_mul(self.gate(x, real), self.up(x, real), real), real)
        return y


class Layer(nn.Module):
    """Attention and feed-forward, each behind a norm and added to what came in."""

    def __init__(self, config: LlamaConfig, weights: Weights, index: int) -> None:
        super().__init__()
        name = f"layers.{index}"
        self.attention_norm = RmsNorm(weights.vector(f"{name}.attention_norm.weight", config.width), config.epsilon)
        self.attention = Attention(config, weights, f"{name}.attention", index)
        self.feed_forward_norm = RmsNorm(
            weights.vector(f"{name}.feed_forward_norm.weight", config.width), config.epsilon
        )
        self.feed_forward = FeedForward(config, weights, f"{name}.feed_forward")

    def forward(self, x: Tensor, places: Places, frequencies: Tensor, kv: Tensor) -> Tensor:
        real = places.real
        x = ops.add(x, self.attention(self.attention_norm(x, real), places, frequencies, kv), real)
        y: Tensor = ops.add(x, self.feed_forward(self.feed_forward_norm(x, real), real), real)
        return y


class Llama(nn.Module):
    """The whole model. Takes each of its tensors from ``weights``, which afterwards refuses what is left."""

    frequencies: Tensor
    numbers: Tensor  # that serving's steps need beside the weights: llama_spec.step_numbers

    def __init__(self, config: LlamaConfig, weights: Weights) -> None:
        super().__init__()
        self.config = config
        vocabulary, width = config.vocabulary, config.width
        self.embedding = Embedding(weights.matrix("embedding.weight", vocabulary, width), vocabulary, width)
        self.layers = nn.ModuleList(Layer(config, weights, index) for index in range(config.layers))
        self.norm = RmsNorm(weights.vector("norm.weight", width), config.epsilon)
        self.output = None if config.tied else Linear(weights.matrix("output.weight", vocabulary, width), vocabulary)
        if config.tied and weights.holds("output.weight"):
            weights.same("output.weight", "embedding.weight")
        self.register_buffer("frequencies", config.rope.frequencies(config.head_width))
        weights.finish()

    def forward(self, ids: Tensor, places: Places, kv: Tensor) -> Tensor:
        """Final hidden states f32[T, C] of tokens i32[T]; their keys and values are added to ``kv``."""
        x: Tensor = self.embedding(ids, places.real)
        for layer in self.layers:
            x = layer(x, places, self.frequencies, kv)
        return x

    def logits(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """f32[R, V] for the hidden states of R rows, of which ``real`` are no padding."""
        x = self.norm(x, real)
        y: Tensor = self.embedding.project(x, real) if self.output is None else self.output(x, real)
        return y


def layout(weight: nn.Parameter) -> str:
    """A weight's layout: that of its packed form, or its type."""
    packed: str | None = getattr(weight, "heliograph_layout", None)
    return packed or {dtype: name for name, dtype in PLAIN.items()}[weight.dtype]
