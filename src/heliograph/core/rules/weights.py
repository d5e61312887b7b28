"""Slices and tensors of the weights: M43 to M45."""

from __future__ import annotations

from bisect import bisect_right
from math import prod

from heliograph.core.format import BUFFER_ALIGNMENT, DTYPES, LAYOUTS, MIN_CAP
from heliograph.core.layout import cuts, slice_bytes
from heliograph.core.manifest import Core, Tensor
from heliograph.core.refusal import refusal

DOING = "checking core.json"


def check_slices(core: Core) -> None:
    weights = core.weights
    if weights.cap < MIN_CAP:
        raise refusal(DOING, f"a cap of {weights.cap} bytes", f"at least {MIN_CAP}", "M43")
    mapped = [region.size for region in core.regions if region.role == "weights"]
    if (weights.size == 0) != (not mapped) or any(size < weights.size for size in mapped):
        raise refusal(
            DOING, f"{weights.size} bytes of weights in regions of {mapped}", "a region that holds them", "M44"
        )
    count = len(weights.slices)
    # Counted first: a lying size must not make a list of its own length.
    expected = -(-weights.size // slice_bytes(weights.cap))
    if count != expected or [(s.offset, s.size) for s in weights.slices] != cuts(weights.size, weights.cap):
        raise refusal(
            DOING,
            f"{count} slices of {weights.size} bytes of weights",
            f"slices that cover them once, in order, cut as for a cap of {weights.cap}",
            "M43",
        )


def check_tensors(core: Core) -> None:
    places = sorted((b.offset, b.size) for b in core.buffers if b.role == "weights")
    starts = [offset for offset, _ in places]
    for tensor in core.weights.tensors:
        at = bisect_right(starts, tensor.offset) - 1
        inside = at >= 0 and tensor.offset + tensor.size <= min(sum(places[at]), core.weights.size)
        if not inside or tensor.offset % BUFFER_ALIGNMENT or tensor.size != tensor_bytes(tensor):
            raise refusal(
                DOING,
                f"tensor {tensor.name}: {tensor.dtype} {list(tensor.shape)} {tensor.layout}, "
                f"{tensor.size} bytes at {tensor.offset}",
                "the bytes of its shape and layout, in one buffer of weights",
                "M45",
            )
    if len({tensor.name for tensor in core.weights.tensors}) != len(core.weights.tensors):
        raise refusal(DOING, "two tensors of one name", "unique names", "M45")
    check_overlap(core)


def check_overlap(core: Core) -> None:
    last: Tensor | None = None
    for tensor in sorted(core.weights.tensors, key=lambda t: (t.offset, t.size)):
        if last is not None and tensor.offset < last.offset + last.size:
            if (tensor.offset, tensor.size, tensor.stored) != (last.offset, last.size, last.stored):
                raise refusal(DOING, f"tensors {last.name} and {tensor.name} that overlap", "one place or two", "M45")
        else:
            last = tensor


def tensor_bytes(tensor: Tensor) -> int:
    """What a tensor of this shape and layout takes; -1 if there is no such layout."""
    elements = prod(tensor.shape)
    if tensor.layout == "plain":
        return elements * DTYPES.get(tensor.dtype, -1)
    if tensor.layout in LAYOUTS and tensor.dtype == "u8" and tensor.shape:
        items, size = LAYOUTS[tensor.layout]
        return -1 if tensor.shape[-1] % items else elements // items * size
    return -1
