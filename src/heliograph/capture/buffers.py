"""The named buffers of a recording: weights, inputs and outputs, state, constants, and every tensor in scratch.

The content of ``scratch`` never matters, so its buffers may overlap each other: a range is given to the next tensor
when the tensor that lay there has died. No buffer of another role overlaps anything.

In ``scratch`` what kernels need privately lies behind all tensors, so that another kernel for an op moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from heliograph.capture.arena import Ranges
from heliograph.core.format import region_base
from heliograph.core.layout import Placer
from heliograph.core.manifest import Buffer
from heliograph.errors import CaptureError
from heliograph.ops.launch import ITEM_BYTES

# Where private memory starts while the size of what lies before it is not known yet.
FAR = 128 << 30


class BufferTable:
    """All buffers by index, and what is free in scratch. ``private`` is the offset of private memory there."""

    def __init__(self, slot: int, *, units: int, private: int = FAR) -> None:
        self.all: list[Buffer] = []
        self.units = units
        self.private = private
        self.tensor_bytes = 0  # most that the tensors of any graph take at a time
        self.private_bytes = 0
        self._tensors = Ranges()
        self._workspaces = Ranges()
        self._slot = slot
        self._placers: dict[str, Placer] = {}
        self._names: dict[str, int] = {}

    def add(self, name: str, role: str, size: int, dtype: str, shape: Iterable[int], *, grows: bool = False) -> int:
        """Places a buffer behind the others of its role. What grows comes last: only the end can move."""
        offset = self._placers.setdefault(role, Placer()).place(size)
        return self._append(name, role, offset, size, dtype, tuple(shape), grows)

    def next_graph(self) -> None:
        """All of scratch is free again: graphs share it, one runs at a time."""
        self.tensor_bytes = max(self.tensor_bytes, self._tensors.peak)
        self.private_bytes = max(self.private_bytes, self._workspaces.peak)
        self._tensors, self._workspaces = Ranges(), Ranges()

    def put(self, name: str, role: str, offset: int, size: int, dtype: str, shape: tuple[int, ...]) -> int:
        """A buffer whose place was chosen elsewhere: by PyTorch's allocator."""
        return self._append(name, role, offset, size, dtype, shape, False)

    def take(self, name: str, size: int, dtype: str, shape: tuple[int, ...]) -> int:
        """A buffer in scratch for a tensor that begins to live."""
        return self._append(name, "scratch", self._tensors.take(size), size, dtype, shape, False)

    def give(self, buffer: int) -> None:
        """The tensor in this scratch buffer has died. The buffer stays listed; its range may be used again."""
        self._tensors.give(self.all[buffer].offset)

    def take_workspace(self, name: str, shape: tuple[int, ...], dtype: str) -> int:
        """A buffer in scratch's private part."""
        size = prod(shape) * ITEM_BYTES[dtype]
        return self._append(name, "scratch", self.private + self._workspaces.take(size), size, dtype, shape, False)

    def give_workspace(self, buffer: int) -> None:
        self._workspaces.give(self.all[buffer].offset - self.private)

    def address(self, buffer: int) -> int:
        return region_base(self._slot, self.all[buffer].role) + self.all[buffer].offset

    def shape(self, buffer: int) -> tuple[int, ...]:
        """The shape of a tensor over a buffer; over a growing one the units are its leading dimension."""
        placed = self.all[buffer]
        return (self.units, *placed.shape) if placed.grows else placed.shape

    def find(self, name: str) -> int | None:
        return self._names.get(name)

    def sizes(self) -> Mapping[str, int]:
        """Bytes of each region that the buffers take, growing ones with all their units."""
        sizes = {role: placer.end for role, placer in self._placers.items()}
        for buffer in self.all:
            if buffer.grows:
                sizes[buffer.role] = buffer.offset + buffer.size * self.units
        sizes["scratch"] = self.private + self.private_bytes if self.private_bytes else self.tensor_bytes
        return sizes

    def _append(
        self, name: str, role: str, offset: int, size: int, dtype: str, shape: tuple[int, ...], grows: bool
    ) -> int:
        if name in self._names:
            raise CaptureError(
                "naming a buffer",
                found=f"{name!r} twice",
                required="a name for one buffer",
                hint="give the model's modules different names",
            )
        index = len(self.all)
        self._names[name] = index
        entry = Buffer(name=name, role=role, offset=offset, size=size, dtype=dtype, shape=shape, grows=grows)
        self.all.append(entry)
        return index
