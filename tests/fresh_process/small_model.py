"""A small PyTorch model with paged key/value memory, captured here and replayed here: the side that has torch.

    python small_model.py CORES TIMES

Records the model with its executables, replays every bucket TIMES times, then captures the same model into CORES. The
last line is JSON: the core's folder and the digest of each replay.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from collections.abc import Mapping
from pathlib import Path

import torch
from shuffled import UNITS, plan, replay_inputs, result_digest
from torch import Tensor, nn

import heliograph.ops.references  # noqa: F401  registers the ops
from heliograph.capture import CaptureSpec, EntrySpec, Example, Recording, StateSpec, TensorSpec, capture, record
from heliograph.device.host import open_host

HEADS, KV_HEADS, WIDTH, VOCABULARY, BLOCK, TABLE = 4, 2, 16, 50, 4, 6
ops = torch.ops.heliograph


class Small(nn.Module):
    """An embedding, one attention layer over the paged memory, a head."""

    def __init__(self) -> None:
        super().__init__()
        size = HEADS * WIDTH
        self.embedding = nn.Parameter(torch.randn(VOCABULARY, size))
        self.query = nn.Linear(size, size)
        self.key = nn.Linear(size, KV_HEADS * WIDTH)
        self.value = nn.Linear(size, KV_HEADS * WIDTH)
        self.head = nn.Linear(size, VOCABULARY)

    def forward(self, ids: Tensor, positions: Tensor, rows: Tensor, tables: Tensor, kv: Tensor) -> Tensor:
        count = ids.shape[0]
        x = ops.embedding(ids, self.embedding, "f32", HEADS * WIDTH)
        key, value = self.key(x).view(count, KV_HEADS, WIDTH), self.value(x).view(count, KV_HEADS, WIDTH)
        ops.kv_store(key, value, kv, 0, tables, rows, positions)
        query = self.query(x).view(count, HEADS, WIDTH)
        mixed = ops.paged_attention(query, kv, 0, tables, rows, positions, 0.25)
        logits: Tensor = self.head(torch.relu(x + mixed.reshape(count, HEADS * WIDTH)))
        return logits


def decode(model: Small, ids: Tensor, positions: Tensor, tables: Tensor, kv: Tensor, seen: Tensor) -> dict[str, Tensor]:
    rows = torch.arange(ids.shape[0], dtype=torch.int32)
    logits = model(ids, positions, rows, tables, kv)
    seen.add_(logits.sum(0))
    return {"logits": logits, "seen": seen + 0}


def prefill(
    model: Small, ids: Tensor, positions: Tensor, tables: Tensor, kv: Tensor, seen: Tensor
) -> dict[str, Tensor]:
    logits = model(ids, positions, torch.zeros_like(ids), tables, kv)
    seen.mul_(0.5)
    return {"logits": logits}


def example(entry: str, bucket: Mapping[str, int], seed: int) -> Example:
    """Valid inputs; the last row of larger buckets is padding."""
    draw = random.Random(f"{entry} {sorted(bucket.items())} {seed}")
    ((dimension, count),) = bucket.items()
    real = count - (count > 1)
    tables = [[*draw.sample(range(1, UNITS), TABLE)] for _ in range(count if entry == "decode" else 1)]
    positions = [draw.randrange(BLOCK * TABLE) for _ in range(real)] if entry == "decode" else list(range(real))
    values = {
        "ids": [draw.randrange(VOCABULARY) for _ in range(count)],
        "positions": positions + [-1] * (count - real),
        "tables": [block for table in tables for block in table],
    }
    return Example({name: array("i", column).tobytes() for name, column in values.items()}, {dimension: real})


def small() -> Small:
    torch.manual_seed(5)
    return Small().eval()


def small_spec() -> CaptureSpec:
    def inputs(rows: str, tables: int | str) -> dict[str, TensorSpec]:
        row = TensorSpec((rows,), "i32")
        return {"ids": row, "positions": row, "tables": TensorSpec((tables, TABLE), "i32")}

    entries = (
        EntrySpec("decode", tuple({"rows": n} for n in (1, 2, 3, 4)), inputs("rows", "rows"), decode),
        EntrySpec("prefill", ({"tokens": 8}, {"tokens": 16}), inputs("tokens", 1), prefill),
    )
    state = {
        "kv": StateSpec((1, 2, KV_HEADS, BLOCK, WIDTH), "f16", grows=True),
        "seen": StateSpec((VOCABULARY,), "f32"),
    }
    return CaptureSpec("small", entries, state=state, units=UNITS, examples=example)


def replay(recording: Recording, entry: str, shape: Mapping[str, int], number: int) -> str:
    """From zero state: what a replay gives depends on its inputs alone."""
    for name in ("kv", "seen"):
        recording.write_state(name, bytes(len(recording.read_state(name))))
    for field, data in replay_inputs(entry, shape, number).items():
        recording.write(entry, shape, field, data)
    recording.run(entry, **shape)
    outputs = [recording.read(entry, shape, name) for name in ("logits", "seen") if entry == "decode" or name != "seen"]
    return result_digest(outputs, recording.read_state("kv"), recording.read_state("seen"))


def main(cores: str, times: str) -> None:
    spec, device = small_spec(), open_host(workers=1)
    with record(small(), spec, device=device, retain="executable") as recording:
        shapes = [(entry.name, bucket) for entry in spec.entries for bucket in entry.buckets]
        digests = {key: replay(recording, *work) for key, work in plan(shapes, 1, int(times))}
    device.close()
    print(json.dumps({"core": str(capture(small(), spec, cores=Path(cores), name="small")), "digests": digests}))


if __name__ == "__main__":
    main(*sys.argv[1:])
