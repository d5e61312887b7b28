"""What PyTorch allocates by itself during a capture: in pools over our regions, one a role.

``persistent`` holds what outlives a run and is written by kernels (library workspaces, tables that the model makes on
first use), ``scratch`` everything that dies again. PyTorch's allocator cuts what our callbacks give it into blocks, so
what is alive is asked of the allocator itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from heliograph._native import PoolArena
from heliograph.capture.cuda.session import CudaSession
from heliograph.core.format import region_base, region_span
from heliograph.errors import CaptureError, OutOfMemoryError


@dataclass(frozen=True, slots=True, order=True)
class Live:
    """A block of PyTorch's allocator that is in use."""

    address: int
    size: int


class FrameworkPool:
    """A ``torch.cuda.MemPool`` over a region, from ``offset`` on. A pool for ``record_export_graph``.

    Blocks that are freed stay mapped, unmoved and readable; the same sequence of requests gets the same addresses.
    """

    def __init__(self, session: CudaSession, role: str, offset: int) -> None:
        self.name = role
        self.offset = offset
        self.base = region_base(session.slot, role)
        reservation = session.regions[role].reservation
        self._arena: PoolArena = session.device.pool(reservation, offset, region_span(role) - offset, role)
        allocator = torch._C._cuda_customAllocator(self._arena.alloc_address, self._arena.free_address)
        self._pool: Any = torch.cuda.MemPool(allocator)
        self.owner: object = self._arena

    @property
    def id(self) -> Any:
        """PyTorch's number of the pool, for ``capture_begin``: a pair of integers."""
        return self._pool.id

    @property
    def taken(self) -> bool:
        """Whether anything was ever given out."""
        return self._arena.peak > 0

    @property
    def size(self) -> int:
        """Bytes of the region up to the highest that was ever given out."""
        return self.offset + self._arena.peak

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        return ((self.base, self.size),)

    @contextmanager
    def used(self) -> Iterator[None]:
        """What this thread allocates lies in this pool."""
        with self.told(), torch.cuda.use_mem_pool(self._pool):
            yield

    @contextmanager
    def told(self) -> Iterator[None]:
        """PyTorch's running out of memory becomes OutOfMemoryError, with what the device said."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"running the model with its memory in the {self.name} region",
                found=self._arena.error or str(error).splitlines()[0],
                required="memory for all buckets of the model",
                hint="capture a smaller model, or fewer or smaller buckets",
            ) from error

    def live(self) -> tuple[Live, ...]:
        """The blocks in use, by address."""
        return tuple(sorted(Live(block["address"], block["requested_size"]) for block in _blocks(self.id)))

    def close(self) -> None:
        """PyTorch's pool goes, and the memory with it. What PyTorch frees later is ignored."""
        self._pool = None
        self._arena.close()


def check_unmoved(pool: FrameworkPool, before: tuple[Live, ...], doing: str) -> None:
    """CaptureError if memory that outlives a run came, went or moved since ``before``."""
    now = pool.live()
    if now != before:
        came = [block for block in now if block not in before]
        went = [block for block in before if block not in now]
        told = [f"{block.size} bytes at {block.address:#x} came" for block in came[:2]]
        told += [f"{block.size} bytes at {block.address:#x} went" for block in went[:2]]
        raise CaptureError(
            doing,
            found=f"{', '.join(told)} in the {pool.name} pool",
            required="memory that outlives a run to be there, and stay, from the uncaptured runs on",
            hint="the model keeps another tensor with every run: let it keep what it needs in buffers",
        )


def _blocks(pool: Any) -> Iterator[dict[str, Any]]:
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        if tuple(segment["segment_pool_id"]) == pool:
            for block in segment["blocks"]:
                if block["state"] == "active_allocated":
                    yield block
