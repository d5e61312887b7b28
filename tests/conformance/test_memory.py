"""Fixed-address memory: exactly there or refused, zeroed, protected, limited."""

from __future__ import annotations

import pytest

from heliograph._native import HostDevice
from heliograph.errors import AddressTakenError, HeliographError, OutOfMemoryError, UsageError

from .probe import BASE, MAPPED, Probe

ELSEWHERE = BASE + (64 << 30)


def test_a_reservation_is_exactly_where_it_was_asked_for(probe: Probe) -> None:
    unit = probe.device.granularity
    reservation = probe.device.reserve(ELSEWHERE, 16 * unit)
    assert (reservation.address, reservation.span, reservation.mapped_bytes) == (ELSEWHERE, 16 * unit, 0)
    reservation.close()


def test_a_reservation_is_of_whole_units_somewhere(probe: Probe) -> None:
    unit = probe.device.granularity
    top = 2**64 - unit
    for address, span in [(ELSEWHERE, 0), (ELSEWHERE, unit + 1), (0, unit), (ELSEWHERE + 1, unit), (top, 2 * unit)]:
        with pytest.raises(UsageError, match="granularity"):
            probe.device.reserve(address, span)
    probe.device.reserve(ELSEWHERE, unit).close()


def test_taken_addresses_are_refused_by_name_and_free_ones_are_not(probe: Probe) -> None:
    unit = probe.device.granularity
    with pytest.raises(AddressTakenError) as refused:
        probe.device.reserve(probe.memory.address + unit, unit)
    assert refused.value.found
    probe.device.reserve(ELSEWHERE, unit).close()


def test_mapped_memory_is_zero_also_after_it_was_used(probe: Probe) -> None:
    unit = probe.device.granularity
    reservation = probe.device.reserve(ELSEWHERE, 4 * unit)
    for _ in range(2):
        reservation.map(unit, 2 * unit)
        assert reservation.read(unit, 2 * unit) == bytes(2 * unit)
        reservation.fill(unit, 0xAB, 2 * unit)
        assert reservation.read(unit, 2 * unit) == b"\xab" * (2 * unit)
        reservation.unmap(unit, 2 * unit)
    assert reservation.mapped_bytes == 0
    reservation.close()


def test_what_is_not_mapped_is_refused_and_what_is_is_not(probe: Probe) -> None:
    unit = probe.device.granularity
    reservation = probe.device.reserve(ELSEWHERE, 4 * unit)
    reservation.map(0, unit)
    for offset, size in [(unit, 8), (unit - 4, 8), (4 * unit, 8), (1 << 63, 8)]:
        with pytest.raises(HeliographError):
            reservation.write(offset, bytes(size))
        with pytest.raises(HeliographError):
            reservation.read(offset, size)
    reservation.write(unit - 8, b"12345678")
    assert reservation.read(unit - 8, 8) == b"12345678"
    reservation.close()


def test_memory_is_mapped_once_and_in_whole_units(probe: Probe) -> None:
    unit = probe.device.granularity
    reservation = probe.device.reserve(ELSEWHERE, 4 * unit)
    reservation.map(unit, unit)
    for offset, size in [(unit, unit), (0, 2 * unit), (0, unit // 2), (3 * unit, 2 * unit), (0, 0)]:
        with pytest.raises(HeliographError):
            reservation.map(offset, size)
    assert reservation.mapped_bytes == unit
    reservation.map(0, unit)
    assert reservation.mapped_bytes == 2 * unit
    reservation.close()


def test_closing_a_reservation_frees_its_addresses(probe: Probe) -> None:
    unit = probe.device.granularity
    for _ in range(3):
        reservation = probe.device.reserve(ELSEWHERE, unit)
        reservation.map(0, unit)
        reservation.close()
        reservation.close()
        with pytest.raises(HeliographError):
            reservation.read(0, 1)
    assert probe.counter("reservations_live") == 1
    assert probe.counter("bytes_mapped") == MAPPED


class TestHostViews:
    """What only memory that the host can address has."""

    @pytest.fixture
    def host(self) -> HostDevice:
        return HostDevice(workers=1)

    def test_a_view_is_the_memory_itself(self, host: HostDevice) -> None:
        reservation = host.reserve(ELSEWHERE, 4 * host.granularity)
        reservation.map(0, host.granularity)
        with reservation.view(16, 8) as view:
            view[:] = b"together"
            assert reservation.read(16, 8) == b"together"
        reservation.close()

    def test_a_held_view_keeps_its_memory_mapped(self, host: HostDevice) -> None:
        unit = host.granularity
        reservation = host.reserve(ELSEWHERE, 4 * unit)
        reservation.map(0, 2 * unit)
        view = reservation.view(0, unit)
        part = view[8:16]
        view.release()
        with pytest.raises(UsageError):
            reservation.close()
        with pytest.raises(UsageError):
            reservation.unmap(0, unit)
        reservation.unmap(unit, unit)  # the view does not look at this part
        part.release()
        reservation.close()

    def test_a_view_outlives_every_other_reference(self, host: HostDevice) -> None:
        reservation = host.reserve(ELSEWHERE, host.granularity)
        reservation.map(0, host.granularity)
        view = reservation.view(0, 4)
        del reservation
        view[:] = b"held"
        assert bytes(view) == b"held"
        del view
        assert host.counters()["reservations_live"] == 0

    def test_protected_memory_is_read_only_for_every_way_of_writing(self, host: HostDevice) -> None:
        unit = host.granularity
        reservation = host.reserve(ELSEWHERE, 4 * unit)
        reservation.map(0, 3 * unit)
        writable = reservation.view(unit, 8)
        with pytest.raises(UsageError):
            reservation.protect(unit, unit, writable=False)
        writable.release()
        reservation.protect(unit, unit, writable=False)
        for write in (lambda: reservation.write(unit, b"x"), lambda: reservation.fill(unit, 1, 8)):
            with pytest.raises(UsageError):
                write()
        assert reservation.view(unit, 8).readonly
        assert not reservation.view(0, 8).readonly
        reservation.protect(unit, unit, writable=True)
        reservation.write(unit, b"x")
        assert reservation.read(unit, 1) == b"x"
        reservation.close()

    def test_reservations_of_terabytes_cost_nothing_and_may_be_sparse(self, host: HostDevice) -> None:
        reservation = host.reserve(ELSEWHERE, 1 << 40)
        reservation.map(0, 1 << 40)
        reservation.write((1 << 40) - 8, b"the last")
        assert reservation.read((1 << 40) - 8, 8) == b"the last"
        reservation.close()

    def test_the_error_of_a_taken_address_says_what_is_there(self, host: HostDevice) -> None:
        with open("/proc/self/maps") as maps:
            library = next(line for line in maps if "libc.so" in line)
        begin = int(library.split("-")[0], 16)
        with pytest.raises(AddressTakenError) as refused:
            host.reserve(begin, host.granularity)
        assert "libc.so" in refused.value.found


class TestHostLimit:
    def test_mapping_beyond_the_limit_is_refused_with_the_numbers(self) -> None:
        host = HostDevice(workers=1, memory_limit=1 << 20)
        reservation = host.reserve(ELSEWHERE, 1 << 30)
        reservation.map(0, 1 << 19)
        with pytest.raises(OutOfMemoryError) as refused:
            reservation.map(1 << 19, (1 << 19) + host.granularity)
        assert str((1 << 19) + host.granularity) in refused.value.found
        assert str(1 << 20) in refused.value.required
        assert reservation.mapped_bytes == 1 << 19
        assert host.free_bytes == 1 << 19
        reservation.map(1 << 19, 1 << 19)
        assert host.free_bytes == 0
        reservation.close()

    def test_a_device_without_a_limit_states_none(self) -> None:
        assert HostDevice(workers=1).free_bytes is None

    def test_executables_count_against_the_limit_and_give_it_back(self) -> None:
        host = HostDevice(workers=1, memory_limit=10_000)
        template = host.create_template()
        for i in range(100):
            template.add_memset(ELSEWHERE, 0, 8, after=[i - 1] if i else [])
        first = template.instantiate()
        assert 5_000 < first.device_bytes < 10_000
        with pytest.raises(OutOfMemoryError):
            template.instantiate()
        assert host.counters()["executables_live"] == 1
        first.close()
        assert host.counters()["executable_bytes"] == 0
        template.instantiate().close()
