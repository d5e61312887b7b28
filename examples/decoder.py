"""A decoder in plain PyTorch with a static key/value memory: captured here, replayed by a process without PyTorch.

    python examples/decoder.py CORES [--device cuda] [--size small|large] [--context N]

Grouped-query attention through PyTorch's own attention (cuDNN's on CUDA), linear layers through cuBLAS, RMSNorm,
SwiGLU, random weights. ``small`` has two layers, ``large`` 1.4 B parameters. What the caller fills for each step comes
in by name: ids, positions, the place of a chunk; keys and values are state, of a size that is fixed at capture.
"""

from __future__ import annotations

import argparse
import random
from array import array
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from heliograph.capture import CaptureSpec, EntrySpec, Example, StateSpec, TensorSpec, capture
from heliograph.capture.again import Again
from heliograph.capture.environment import start_in_fixed_environment

ROWS = 8  # sequences at once; row r of a decode bucket is sequence r
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
ATTENTION = [SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH]  # the second where there is no cuDNN


@dataclass(frozen=True, slots=True)
class Size:
    """The shape of a decoder. ``context``: tokens of a sequence at most; ``chunk``: tokens of a prompt at once."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int
    context: int
    chunk: int

    @property
    def head_width(self) -> int:
        return self.width // self.heads


SIZES = {
    "small": Size(2, 256, 4, 2, 512, 1024, 256, 32),
    "large": Size(24, 2048, 16, 8, 6656, 32_000, 2048, 256),  # 1.4 B parameters
}


class Memory:
    """Keys and values of one step: where its tokens go, and what they may see.

    sequences: i64[B], those of the batch; positions: i64[B, T]; keys, values: [layers, ROWS, kv heads, context, width].
    ``leading``: the batch is sequences 0 to B - 1, so that their memory is a slice and needs no copy.
    """

    def __init__(self, sequences: Tensor, positions: Tensor, keys: Tensor, values: Tensor, *, leading: bool) -> None:
        self.positions = positions
        self._sequences, self._leading = sequences, leading
        self._stored = (keys, values)
        seen = torch.arange(keys.shape[3], device=keys.device) <= positions[:, None, :, None]
        self.mask = torch.zeros(seen.shape, dtype=keys.dtype, device=keys.device).masked_fill(~seen, -torch.inf)

    def add(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Stores [B, kv heads, T, width] of new tokens; returns [B, kv heads, context, width] of all."""
        both = []
        for stored, new in zip(self._stored, (key, value), strict=True):
            by_token = stored[layer].transpose(1, 2)  # [ROWS, context, kv heads, width]
            by_token.index_put_((self._sequences[:, None], self.positions), new.transpose(1, 2))
            rows = len(self._sequences)
            both.append(stored[layer, :rows] if self._leading else stored[layer].index_select(0, self._sequences))
        return both[0], both[1]


class Norm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class Attention(nn.Module):
    def __init__(self, size: Size, layer: int) -> None:
        super().__init__()
        self.layer, self.heads, self.kv_heads, self.head_width = layer, size.heads, size.kv_heads, size.head_width
        shared = size.kv_heads * size.head_width
        self.query, self.output = (nn.Linear(size.width, size.width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(size.width, shared, bias=False) for _ in range(2))

    def forward(self, x: Tensor, memory: Memory, cos: Tensor, sin: Tensor) -> Tensor:
        query = turned(self.query(x).unflatten(2, (self.heads, self.head_width)).transpose(1, 2), cos, sin)
        key = turned(self.key(x).unflatten(2, (self.kv_heads, self.head_width)).transpose(1, 2), cos, sin)
        value = self.value(x).unflatten(2, (self.kv_heads, self.head_width)).transpose(1, 2)
        key, value = memory.add(self.layer, key, value)
        with sdpa_kernel(ATTENTION, set_priority=True):
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=memory.mask, enable_gqa=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions: [B, heads, T, width] with [B, 1, T, width / 2] of angles."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self, size: Size, layer: int) -> None:
        super().__init__()
        self.attention_norm, self.feed_forward_norm = Norm(size.width), Norm(size.width)
        self.attention = Attention(size, layer)
        self.gate, self.up = (nn.Linear(size.width, size.feed_forward, bias=False) for _ in range(2))
        self.down = nn.Linear(size.feed_forward, size.width, bias=False)

    def forward(self, x: Tensor, memory: Memory, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), memory, cos, sin)
        y = self.feed_forward_norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    """``forward`` gives final hidden states [B, T, width] of ids [B, T]."""

    frequencies: Tensor

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.layers = nn.ModuleList(Layer(size, layer) for layer in range(size.layers))
        self.norm = Norm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, ids: Tensor, memory: Memory) -> Tensor:
        x = self.embedding(ids)
        angles = memory.positions[:, None, :, None].float() * self.frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, memory, cos, sin)
        return x

    def logits(self, x: Tensor) -> dict[str, Tensor]:
        """Of hidden states [R, width]: logits [R, V] in f32, and the most likely token of each row."""
        logits = self.head(self.norm(x)).float()
        return {"logits": logits, "sampled": logits.argmax(-1)}


def decode(model: Decoder, *, ids: Tensor, positions: Tensor, keys: Tensor, values: Tensor) -> Mapping[str, Tensor]:
    """One token of each of the first R sequences: ids, positions i64[R]."""
    sequences = torch.arange(len(ids), device=ids.device)
    memory = Memory(sequences, positions[:, None], keys, values, leading=True)
    return model.logits(model(ids[:, None], memory)[:, 0])


def prefill(
    model: Decoder, *, ids: Tensor, start: Tensor, last: Tensor, sequence: Tensor, keys: Tensor, values: Tensor
) -> Mapping[str, Tensor]:
    """A chunk of T tokens of one sequence, from position ``start`` on; logits of token ``last`` of the chunk. What is
    behind that token is overwritten before anything looks at it."""
    positions = start + torch.arange(len(ids), device=ids.device)
    x = model(ids[None], Memory(sequence, positions[None], keys, values, leading=False))
    return model.logits(x[0].index_select(0, last))


def sized(size: str, context: str = "") -> Size:
    """A size by its name, with another context if one is given."""
    return replace(SIZES[size], context=int(context)) if context else SIZES[size]


def frequencies(size: Size) -> Tensor:
    """Of the rotary positions: f32[head width / 2]."""
    return 10_000.0 ** (-torch.arange(0, size.head_width, 2, dtype=torch.float32) / size.head_width)


def make(size: str = "small", dtype: str = "bf16", context: str = "") -> tuple[Decoder, CaptureSpec]:
    """The model on the CPU, its weights random and different in every layer, and what to capture of it."""
    shape = sized(size, context)
    with torch.device("meta"):
        model = Decoder(shape)
    model = model.to(DTYPES[dtype]).to_empty(device="cpu").eval().requires_grad_(False)
    with ThreadPoolExecutor() as pool:  # each weight has a generator of its own
        list(pool.map(fill, *zip(*model.named_parameters(), strict=True), count(1000)))
    model.register_buffer("frequencies", frequencies(shape), persistent=False)
    return model, spec(shape, dtype)


def fill(name: str, weight: Tensor, seed: int) -> None:
    scale = 0.1 if "norm" in name else 1.0 if "embedding" in name else weight.shape[-1] ** -0.5
    weight.normal_(1.0 if "norm" in name else 0.0, scale, generator=torch.Generator().manual_seed(seed))


def spec(size: Size, dtype: str) -> CaptureSpec:
    token = {"low": 0, "high": size.vocabulary - 1}
    memory = StateSpec((size.layers, ROWS, size.kv_heads, size.context, size.head_width), dtype)
    step = EntrySpec(
        "decode",
        buckets=tuple({"rows": rows} for rows in range(1, ROWS + 1)),
        inputs={
            "ids": TensorSpec(("rows",), "i64", **token),
            "positions": TensorSpec(("rows",), "i64", 0, size.context - 1),
        },
        call=decode,
    )
    chunk = EntrySpec(
        "prefill",
        buckets=({"tokens": size.chunk},),
        inputs={
            "ids": TensorSpec(("tokens",), "i64", **token),
            "start": TensorSpec((1,), "i64", 0, size.context - size.chunk),
            "last": TensorSpec((1,), "i64", 0, size.chunk - 1),
            "sequence": TensorSpec((1,), "i64", 0, ROWS - 1),
        },
        call=prefill,
    )
    return CaptureSpec(
        "decoder",
        (step, chunk),
        state={"keys": memory, "values": memory},
        numerics="fast",
        examples=partial(example, size),
    )


def example(size: Size, entry: str, bucket: Mapping[str, int], seed: int) -> Example:
    """Inputs of a bucket; the same for the same seed."""
    draw = random.Random(f"{entry} {sorted(bucket.items())} {seed}")
    tokens = bucket["rows" if entry == "decode" else "tokens"]
    columns = {"ids": [draw.randrange(size.vocabulary) for _ in range(tokens)]}
    if entry == "decode":
        columns["positions"] = [draw.randrange(size.context) for _ in range(tokens)]
    else:
        columns["start"] = [draw.randrange(size.context - size.chunk + 1)]
        columns["last"] = [draw.randrange(size.chunk)]
        columns["sequence"] = [draw.randrange(ROWS)]
    return Example({name: array("q", values).tobytes() for name, values in columns.items()})


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cores", type=Path)
    options.add_argument("--device", choices=("host", "cuda"), default="host")
    options.add_argument("--size", choices=tuple(SIZES), default="small")
    options.add_argument("--context", default="", help="tokens of a sequence; default that of the size")
    given = options.parse_args()
    if given.device == "cuda":
        start_in_fixed_environment()
    arguments = (given.size, "bf16" if given.device == "cuda" else "f32", given.context)
    again = Again(f"{Path(__file__).resolve()}:make", arguments) if given.device == "cuda" else None
    core = capture(*make(*arguments), cores=given.cores, device=given.device, again=again, consume=True)
    print(f"captured {core.name}")


if __name__ == "__main__":
    main()
