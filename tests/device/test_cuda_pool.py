"""Pools behind PyTorch's pluggable allocator: deterministic, mapped on demand, unmoved, and never thrown through C."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import heliograph._native as native
from fake_cuda.control import FakeCuda
from heliograph._native import CudaDevice, PoolArena, Reservation
from heliograph.core.format import region_base
from heliograph.errors import DriverError, OutOfMemoryError, UsageError
from rigs import Rig

MIB = 1 << 20
SPAN = 64 * MIB
BASE = region_base(6, "scratch")


class Caller:
    """What PyTorch does with a pool: it calls two C functions."""

    def __init__(self, pool: PoolArena, device: int = 0) -> None:
        self.device = device
        signature = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        self._alloc = ctypes.CFUNCTYPE(ctypes.c_void_p, *signature)(pool.alloc_address)
        self._free = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *signature)(pool.free_address)

    def alloc(self, size: int) -> int:
        """The address, or 0."""
        return self._alloc(size, self.device, None) or 0

    def free(self, address: int, size: int = 0) -> None:
        self._free(address, size, self.device, None)


@pytest.fixture
def arena(cuda: Rig) -> Iterator[Reservation]:
    reservation = cuda.device.reserve(BASE, SPAN)
    yield reservation
    reservation.close()


def make(cuda: Rig, arena: Reservation, name: str = "scratch", offset: int = 0, span: int = SPAN) -> PoolArena:
    assert isinstance(cuda.device, CudaDevice)
    return cuda.device.pool(arena, offset, span, name)


def test_the_same_calls_give_the_same_addresses_lowest_first(cuda: Rig, arena: Reservation) -> None:
    seen = []
    for _ in range(2):
        pool = make(cuda, arena)
        call = Caller(pool)
        a, b, c = call.alloc(2 * MIB), call.alloc(2 * MIB), call.alloc(4 * MIB)
        call.free(a)
        d, e = call.alloc(1 * MIB), call.alloc(512 * 1024)
        call.free(b)
        f = call.alloc(2 * MIB)
        seen.append([a, b, c, d, e, f])
        assert a == d == BASE
        assert d < e < f < b < c  # what b left is one hole with what was free before it
        for address in (c, d, e, f):
            call.free(address)
        pool.close()
        arena.unmap(0, arena.mapped_bytes)
    assert seen[0] == seen[1]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5 * MIB)), max_size=40))
def test_ranges_never_touch_and_are_those_that_are_live(steps: list[tuple[bool, int]]) -> None:
    """Checked against a list of what is out; the device is the fake driver of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HELIOGRAPH_LIBCUDA", str(_fake_library()))
        device = CudaDevice()
        arena = device.reserve(region_base(7, "scratch"), SPAN)
        pool = device.pool(arena, 0, SPAN, "scratch")
        call = Caller(pool)
        out: dict[int, int] = {}
        for take, size in steps:
            if take:
                address = call.alloc(size)
                if address:
                    out[address] = size
            elif out:
                address = list(out)[size % len(out)]
                call.free(address)
                del out[address]
            assert pool.live() == sorted(out.items())
            ends = [arena.address, *(a + s + 256 for a, s in sorted(out.items()))]
            assert all(a >= end and a % 512 == 0 for (a, _), end in zip(sorted(out.items()), ends, strict=False))
        for address in out:
            call.free(address)
        pool.close()
        arena.close()
        device.close()


def _fake_library() -> str:
    from fake_cuda.build import fake_cuda_library

    return str(fake_cuda_library())


def test_memory_is_mapped_when_it_is_needed_and_stays_readable_when_freed(
    fake_cuda: FakeCuda, cuda: Rig, arena: Reservation
) -> None:
    pool = make(cuda, arena)
    call = Caller(pool)
    assert arena.mapped_bytes == 0
    first = call.alloc(2 * MIB)
    assert arena.mapped_bytes == pool.mapped_bytes == 2 * MIB
    second = call.alloc(2 * MIB)
    assert arena.mapped_bytes == 6 * MIB  # it ends 512 bytes behind a granule
    arena.write(0, b"kept")
    call.free(first)
    call.free(second)
    assert arena.mapped_bytes == 6 * MIB
    assert arena.read(0, 4) == b"kept"
    assert call.alloc(4 * MIB) == first
    assert arena.mapped_bytes == 6 * MIB
    assert fake_cuda.calls("cuMemCreate") == 1 + 2  # the rig's own and ours
    assert pool.peak == 4 * MIB + 1024
    call.free(first)


def test_memory_is_mapped_inside_a_capture_without_breaking_it(cuda: Rig, arena: Reservation) -> None:
    pool = make(cuda, arena)
    call = Caller(pool)
    cuda.stream.begin_capture()
    address = call.alloc(4 * MIB)
    cuda.count(cuda.stream, address)
    template = cuda.stream.end_capture()
    assert address == arena.address
    assert template.node_count == 1
    cuda.stream.begin_capture()
    with pytest.raises(DriverError):
        arena.map(32 * MIB, 2 * MIB)  # the ordinary way, which does break it
    with pytest.raises(DriverError):
        cuda.stream.end_capture()
    call.free(address)


def test_a_pool_that_is_full_says_null_and_keeps_the_error(cuda: Rig, arena: Reservation) -> None:
    pool = make(cuda, arena, span=4 * MIB)
    call = Caller(pool)
    address = call.alloc(3 * MIB)
    assert pool.error == ""
    pool.check()
    assert call.alloc(2 * MIB) == 0
    assert "room" in pool.error
    with pytest.raises(OutOfMemoryError) as full:
        pool.check()
    assert "scratch" in full.value.doing
    call.free(address)
    assert call.alloc(3 * MIB) == address
    call.free(address)


@pytest.mark.parametrize("entry", ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuCtxPushCurrent"])
def test_a_driver_error_is_kept_and_costs_no_range(
    fake_cuda: FakeCuda, cuda: Rig, arena: Reservation, entry: str
) -> None:
    pool = make(cuda, arena)
    call = Caller(pool)
    before = fake_cuda.live()
    fake_cuda.fail(entry, "CUDA_ERROR_OUT_OF_MEMORY")
    assert call.alloc(2 * MIB) == 0
    with pytest.raises(OutOfMemoryError) as refused:
        pool.check()
    assert entry in refused.value.found
    assert fake_cuda.live() == before
    assert pool.live() == []
    assert call.alloc(2 * MIB) == arena.address
    call.free(arena.address)


def test_calls_that_cannot_be_meant_are_kept_as_errors(cuda: Rig, arena: Reservation) -> None:
    pool = make(cuda, arena)
    assert Caller(pool, device=1).alloc(2 * MIB) == 0
    with pytest.raises(UsageError):
        pool.check()
    call = Caller(pool)
    assert call.alloc(0) == call.alloc(-1) == 0
    address = call.alloc(2 * MIB)
    call.free(address + 512)
    assert hex(address + 512) in pool.error
    assert pool.live() == [(address, 2 * MIB)]
    call.free(0)
    call.free(address)
    call.free(address)
    assert hex(address) in pool.error


def test_two_pools_have_functions_and_memory_of_their_own(cuda: Rig, arena: Reservation) -> None:
    pools = [make(cuda, arena, name, i * 16 * MIB, 16 * MIB) for i, name in enumerate(("a", "b", "c", "d"))]
    assert len({p.alloc_address for p in pools} | {p.free_address for p in pools}) == 8
    callers = [Caller(p) for p in pools]
    assert [c.alloc(MIB) for c in callers] == [p.address for p in pools] == [BASE + i * 16 * MIB for i in range(4)]
    with pytest.raises(UsageError) as refused:
        make(cuda, arena, "e")
    assert "a, b, c, d" in refused.value.found
    callers[2].free(pools[2].address)
    pools[2].close()
    again = make(cuda, arena, "e", 32 * MIB, 16 * MIB)
    assert again.alloc_address == pools[2].alloc_address
    for pool, caller in zip(pools, callers, strict=True):
        if pool is not pools[2]:
            caller.free(pool.address)


def test_functions_are_also_found_by_name(cuda: Rig, arena: Reservation) -> None:
    """PyTorch opens a library and looks two names up."""
    pool = make(cuda, arena)
    library = ctypes.CDLL(native.__file__)
    addresses = {
        ctypes.cast(getattr(library, f"heliograph_pool_alloc_{i}"), ctypes.c_void_p).value: i for i in range(4)
    }
    place = addresses[pool.alloc_address]
    free = ctypes.cast(getattr(library, f"heliograph_pool_free_{place}"), ctypes.c_void_p).value
    assert free == pool.free_address


@pytest.mark.parametrize(
    ("offset", "span"), [(1, 2 * MIB), (0, MIB), (0, 0), (62 * MIB, 4 * MIB), (128 * MIB, 2 * MIB)]
)
def test_a_range_that_is_not_whole_or_not_inside_is_refused(
    cuda: Rig, arena: Reservation, offset: int, span: int
) -> None:
    with pytest.raises(UsageError):
        make(cuda, arena, offset=offset, span=span)
    make(cuda, arena, offset=0, span=2 * MIB)


def test_a_closed_pool_gives_nothing_more_but_takes_back(cuda: Rig, arena: Reservation) -> None:
    pool = make(cuda, arena)
    call = Caller(pool)
    address = call.alloc(2 * MIB)
    pool.close()
    pool.close()
    assert call.alloc(2 * MIB) == 0
    assert pool.live() == [(address, 2 * MIB)]
    call.free(address)
    assert pool.live() == []


def test_memory_of_a_dropped_pool_stays_until_its_last_piece_is_freed(fake_cuda: FakeCuda, cuda: Rig) -> None:
    """PyTorch lets go of its segments when it likes, maybe long after the pool's object went."""
    arena = cuda.device.reserve(BASE, SPAN)
    pool = make(cuda, arena)
    call = Caller(pool)
    address = call.alloc(2 * MIB)
    assert address
    cuda.count(cuda.stream, address)
    cuda.stream.synchronize()
    arena.close()
    del pool, arena
    gc.collect()
    assert fake_cuda.live()["reservations"] == 2
    cuda.count(cuda.stream, address)
    cuda.stream.synchronize()
    call.free(address)
    assert fake_cuda.live()["reservations"] == 1


def test_memory_of_a_closed_pool_ends_with_its_reservation(fake_cuda: FakeCuda, cuda: Rig) -> None:
    """The device's memory is wanted back although PyTorch still has a piece, which it may free whenever it likes."""
    arena = cuda.device.reserve(BASE, SPAN)
    pool = make(cuda, arena)
    call = Caller(pool)
    address = call.alloc(2 * MIB)
    in_use = fake_cuda.memory_in_use()
    pool.close()
    assert fake_cuda.memory_in_use() == in_use
    arena.close()
    assert fake_cuda.memory_in_use() == in_use - 2 * MIB
    assert call.alloc(2 * MIB) == 0
    call.free(address)
    assert pool.live() == []
    assert cuda.device.reserve(BASE, SPAN).address == BASE


def test_threads_allocate_at_once(cuda: Rig, arena: Reservation) -> None:
    pool = make(cuda, arena)
    call = Caller(pool)

    def work() -> None:
        for _ in range(50):
            address = call.alloc(512 * 1024)
            assert address
            call.free(address)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.live() == []
    assert pool.error == ""
