"""Ordinary PyTorch models with random weights, and what each is called with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Case:
    """A model in eval mode, its inputs, and how to get one tensor out of a call."""

    model: nn.Module
    inputs: tuple[Tensor, ...]
    output: Callable[[object], Tensor] = lambda result: result  # type: ignore[assignment,return-value]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(17, 40), nn.ReLU(), nn.LayerNorm(40), nn.Linear(40, 33), nn.GELU(), nn.Dropout(0.5),
            nn.Linear(33, 20, bias=False), nn.Tanh(), nn.Linear(20, 5), nn.Softmax(dim=-1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layers(x)
        return result


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=2, dilation=2, groups=channels)
        self.groups = nn.GroupNorm(4, channels)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.norm(self.first(x)))
        return x + F.hardswish(self.groups(self.depthwise(y)))


class Cnn(nn.Module):
    """Convolutions with and without groups, strides and dilation; three normalisations; four ways to pool."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.BatchNorm2d(16), nn.ReLU6())
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = nn.Sequential(
            Residual(16), nn.AvgPool2d(2, ceil_mode=True), Residual(16), nn.InstanceNorm2d(16, affine=True)
        )
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.smooth = nn.Upsample(size=(9, 11), mode="bilinear", align_corners=False)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(), nn.Linear(96, 10), nn.LogSoftmax(dim=1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.smooth(self.up(self.blocks(self.pool(self.stem(x)))))
        result: Tensor = self.head(F.pad(y, (1, 2, 0, 1)))
        return result


class Sequence(nn.Module):
    """One-dimensional convolutions over a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            nn.Conv1d(4, 12, 5, stride=2, padding=2), nn.BatchNorm1d(12), nn.LeakyReLU(0.1), nn.MaxPool1d(2),
            nn.Conv1d(12, 8, 3, groups=4), nn.ELU(), nn.AvgPool1d(2), nn.AdaptiveAvgPool1d(3),
        )  # fmt: skip
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.convs(x).flatten(1)
        y = F.normalize(y, dim=-1)
        values, positions = torch.topk(self.head(y), 2, dim=-1)
        return values + positions.to(values.dtype) * 0.25


class Attention(nn.Module):
    """Embedding, rotary positions, causal attention with a mask built in place, SwiGLU, tied head."""

    def __init__(self, width: int = 32, heads: int = 4, vocabulary: int = 50) -> None:
        super().__init__()
        self.heads = heads
        self.embedding = nn.Embedding(vocabulary, width)
        self.norm, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up, self.down = nn.Linear(width, 48), nn.Linear(width, 48), nn.Linear(48, width)

    def rotate(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        positions = torch.arange(x.shape[-2], device=x.device)
        inverse = 1.0 / 10000 ** (torch.arange(half, device=x.device).float() / half)
        angles = torch.outer(positions.float(), inverse)
        cos, sin = angles.cos(), angles.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        x = self.embedding(ids)
        batch, tokens, width = x.shape
        mask = torch.full((tokens, tokens), float("-inf")).triu_(diagonal=1)
        absent = torch.arange(tokens)[None, :] >= lengths[:, None]
        mask = mask.expand(batch, 1, tokens, tokens).masked_fill(absent[:, None, None, :], -1e9)
        q, k, v = (
            self.qkv(self.norm(x))
            .view(batch, tokens, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind(0)
        )
        attended = F.scaled_dot_product_attention(self.rotate(q), self.rotate(k), v, attn_mask=mask)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, tokens, width))
        y = self.norm2(x)
        x = x + self.down(F.silu(self.gate(y)) * self.up(y))
        last = x[torch.arange(batch), lengths - 1]
        return F.log_softmax(last @ self.embedding.weight.t(), dim=-1)


def mlp() -> Case:
    return Case(Mlp(), (torch.randn(6, 17),))


def cnn() -> Case:
    return Case(Cnn(), (torch.randn(2, 3, 33, 40),))


def cnn_channels_last() -> Case:
    return Case(
        Cnn().to(memory_format=torch.channels_last), (torch.randn(2, 3, 33, 40).to(memory_format=torch.channels_last),)
    )


def sequence() -> Case:
    return Case(Sequence(), (torch.randn(3, 4, 50),))


def attention() -> Case:
    return Case(Attention(), (torch.randint(0, 50, (3, 9)), torch.tensor([9, 4, 6])))


def encoder() -> Case:
    layer = nn.TransformerEncoderLayer(24, 3, 40, batch_first=True, norm_first=True, activation="gelu")
    return Case(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), (torch.randn(2, 7, 24),))


def _causal_lm(config: object, ids: Tensor) -> Case:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return Case(model, (ids,), lambda result: result.logits)  # type: ignore[attr-defined]


def llama() -> Case:
    from transformers import LlamaConfig

    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return _causal_lm(config, torch.randint(0, 64, (2, 11)))


def gpt2() -> Case:
    from transformers import GPT2Config

    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=4, use_cache=False)
    return _causal_lm(config, torch.randint(0, 64, (2, 9)))


def qwen2() -> Case:
    from transformers import Qwen2Config

    config = Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, use_cache=False,
    )  # fmt: skip
    return _causal_lm(config, torch.randint(0, 64, (1, 13)))


CASES: dict[str, Callable[[], Case]] = {
    "mlp": mlp, "cnn": cnn, "cnn_channels_last": cnn_channels_last, "sequence": sequence, "attention": attention,
    "encoder": encoder, "llama": llama, "gpt2": gpt2, "qwen2": qwen2,
}  # fmt: skip
