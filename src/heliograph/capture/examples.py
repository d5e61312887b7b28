"""Inputs for self-tests and verification replays: those of the spec, or drawn from what it says about values."""

from __future__ import annotations

from math import prod

import torch
from blake3 import blake3
from torch import Tensor

from heliograph.capture.spec import CaptureSpec, EntrySpec, Example, Shape, TensorSpec, graph_name
from heliograph.capture.storages import TORCH_DTYPES
from heliograph.capture.trail import first_line, told_with_line
from heliograph.errors import UsageError
from heliograph.ops.launch import ITEM_BYTES

WHOLE = ("i64", "i32", "i16", "i8", "u64", "u32", "u8", "bool")


def example(spec: CaptureSpec, entry: EntrySpec, bucket: Shape, seed: int) -> Example:
    """Inputs of a bucket, shared ones included; the same for the same seed."""
    fields = {**entry.inputs, **spec.shared}
    if spec.examples is None:
        key = f"{graph_name(entry, bucket)} {seed}"
        return Example({name: drawn(field, bucket, f"{key} {name}") for name, field in fields.items()})
    graph = graph_name(entry, bucket)
    with told_with_line(
        f"making an example for {graph!r}", first_line(spec.examples), "call the spec's examples by itself first"
    ):
        given = spec.examples(entry.name, bucket, seed)
    _check(given, fields, graph, bucket)
    return given


def drawn(field: TensorSpec, bucket: Shape, key: str) -> bytes:
    """Values between the field's bounds, the same for the same key on every machine and release."""
    count = prod(field.resolve(bucket))
    raw = torch.frombuffer(bytearray(blake3(key.encode()).digest(length=4 * count)), dtype=torch.uint32)
    words = raw.to(torch.int64)
    if field.dtype in WHOLE:
        low, high = int(field.low or 0), int(1 if field.high is None else field.high)
        values = low + words % (high - low + 1)
    else:
        low_f, high_f = (-1.0 if field.low is None else field.low), (1.0 if field.high is None else field.high)
        values = low_f + (high_f - low_f) * (words.to(torch.float64) / 2**32)
    return raw_bytes(values.to(TORCH_DTYPES[field.dtype]))


def raw_bytes(values: Tensor) -> bytes:
    """A tensor's elements as they lie in memory, row-major."""
    contiguous = values.detach().contiguous().reshape(-1)
    out = bytearray(contiguous.numel() * contiguous.element_size())
    if out:
        torch.frombuffer(out, dtype=contiguous.dtype).copy_(contiguous)
    return bytes(out)


def _check(given: object, fields: dict[str, TensorSpec], graph: str, bucket: Shape) -> None:
    doing = f"reading an example for {graph!r}"
    if not isinstance(given, Example):
        raise UsageError(
            doing, found=f"a {type(given).__name__}", required="an Example", hint="heliograph.capture has the class"
        )
    if given.inputs.keys() != fields.keys():
        raise UsageError(
            doing,
            found=f"inputs {', '.join(sorted(given.inputs))}",
            required=f"inputs {', '.join(sorted(fields))}",
            hint="an example holds every input of the entry and every shared one",
        )
    for name, data in given.inputs.items():
        dtype, shape = fields[name].dtype, fields[name].resolve(bucket)
        size = ITEM_BYTES[dtype] * prod(shape)
        if len(data) != size:
            raise UsageError(
                doing,
                found=f"{len(data)} bytes for {name!r}",
                required=f"{size} bytes: {dtype} {shape}",
                hint="let examples follow the shapes of the spec",
            )
    for dimension, rows in (given.real_rows or {}).items():
        if not 0 <= rows <= bucket.get(dimension, -1):
            raise UsageError(
                doing,
                found=f"{rows} real rows of {dimension!r}",
                required=f"dimensions {', '.join(bucket)} and at most their extents",
                hint="real_rows counts the rows of a bucket's dimension that are no padding",
            )
