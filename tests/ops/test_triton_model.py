"""A small Llama on the Triton kernels: near its reference; the same logits in every bucket and chunk, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from heliograph.models import llama
from heliograph.models.llama import Llama, Places
from heliograph.models.load_cuda import dequantised
from heliograph.models.load_gguf import load_gguf
from heliograph.ops.triton_launch import run
from heliograph.ops.triton_ops import OPS
from tiny_models import random_model, write_gguf

from .harness import same_bytes
from .triton_device import DEVICE, INTERPRETED

pytestmark = [] if INTERPRETED else [pytest.mark.gpu]
IDS = [(7 * i * i + 3 * i) % 250 + 3 for i in range(4 if INTERPRETED else 40)]
BLOCK = 16
BUCKETS = (1, 3) if INTERPRETED else (1, 2, 3, 4, 6, 8, 12, 16)
CHUNKS = (3, 1) if INTERPRETED else (16, 7, 1, 16)


@pytest.fixture
def model(tmp_path: Path) -> Llama:
    """Packed weights made bf16."""
    sizes = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 64} if INTERPRETED else {}
    write_gguf(tmp_path / "m.gguf", random_model("llama", **sizes), matrices="Q4_1", embedding="Q8_0")
    return dequantised(load_gguf(tmp_path / "m.gguf")[0])


@pytest.fixture
def on_triton(model: Llama, monkeypatch: pytest.MonkeyPatch) -> Llama:
    """The model on the device whose ops are the Triton kernels."""
    if INTERPRETED:
        monkeypatch.setattr(llama, "ops", SimpleNamespace(**{name: partial(run, name) for name in OPS}))
    return model.to(DEVICE)


def i32(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def memory(model: Llama) -> Tensor:
    """Room for 64 blocks; what nobody wrote is NaN."""
    config = model.config
    shape = (64, config.layers, 2, config.kv_heads, BLOCK, config.head_width)
    return torch.full(shape, torch.nan, dtype=torch.float16)


@torch.no_grad()
def step(model: Llama, kv: Tensor, ids: Tensor, positions: Tensor, rows: Tensor, tables: Tensor) -> Tensor:
    """Logits of tokens of which the last two are padding; ``kv`` is written."""
    padding = i32(-1, -1)
    real = i32(len(ids)).to(kv.device)
    ids, positions, rows = (torch.cat((t, padding)).to(kv.device) for t in (ids, positions, rows))
    places = Places(positions, rows, tables.to(kv.device), real)
    return model.logits(model(ids, places, kv), real)[:-2].cpu()


def chunked(model: Llama, chunks: Sequence[int]) -> Tensor:
    """Logits of IDS, which come in chunks, in blocks 5, 3 and 9."""
    kv, found, at = memory(model).to(model.frequencies.device), [], 0
    for size in chunks:
        positions = torch.arange(at, at + size, dtype=torch.int32)
        found.append(step(model, kv, i32(*IDS[at : at + size]), positions, i32(*[0] * size), i32(5, 3, 9)[None]))
        at += size
    return torch.cat(found)


def decoded(model: Llama, bucket: int) -> Tensor:
    """Logits of IDS token by token, in a row of a bucket whose other rows are strangers at other positions."""
    kv, found, place = memory(model).to(model.frequencies.device), [], bucket // 2
    tables = torch.arange(10, 10 + 3 * bucket, dtype=torch.int32).reshape(bucket, 3)
    tables[place] = i32(7, 2, 4)
    starts = torch.arange(bucket, dtype=torch.int32)
    starts[place] = 0
    for row in range(bucket):  # strangers have a past
        if row != place and row:
            size = int(starts[row])
            past = torch.arange(size, dtype=torch.int32)
            step(model, kv, past + 9, past, i32(*[row] * size), tables)
    for at, token in enumerate(IDS):
        ids = torch.arange(at, at + bucket, dtype=torch.int32) % 200
        ids[place] = token
        positions = starts + min(at, 47 - bucket)
        positions[place] = at
        found.append(step(model, kv, ids, positions, torch.arange(bucket, dtype=torch.int32), tables)[place])
    return torch.stack(found)


def test_logits_are_near_the_reference(model: Llama, request: pytest.FixtureRequest) -> None:
    want = chunked(model, [len(IDS)])
    got = chunked(request.getfixturevalue("on_triton"), [len(IDS)])
    assert torch.isfinite(got).all()
    assert (got - want).abs().max() <= 1e-4 * want.abs().max()


def test_chunks_give_the_same_bits(on_triton: Llama) -> None:
    assert same_bytes(chunked(on_triton, CHUNKS), chunked(on_triton, [len(IDS)]))


@pytest.mark.parametrize("bucket", BUCKETS)
def test_every_decode_bucket_gives_the_bits_of_the_chunk(on_triton: Llama, bucket: int) -> None:
    assert same_bytes(decoded(on_triton, bucket), chunked(on_triton, [len(IDS)]))
