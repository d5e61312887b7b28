"""R8: which instantiation flags are supported, how others are named, and their one source."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fake_cuda.control import FakeCuda
from heliograph.capture.export_graph import record_export_graph
from heliograph.device.flags import Flags, flag_names, flags_from_one_source, supported_flags
from heliograph.device.graph import Graph
from heliograph.errors import FlagsError
from rigs import Rig

SUPPORTED = {0, 1, 8, 9}
REFUSED = sorted(set(range(16)) - SUPPORTED)


def record(rig: Rig, flags: int) -> Graph:
    stream = rig.device.create_stream()
    return record_export_graph(lambda: rig.spin(stream, 1), stream=stream, pools=[rig.pool], flags=flags)


@pytest.mark.parametrize("flags", sorted(SUPPORTED))
def test_supported_flags_are_read_back_from_the_executable(rig: Rig, flags: int) -> None:
    graph = record(rig, flags)
    assert graph.flags == graph.encoder_flags() == flags
    instance = graph.instantiate().instance
    assert instance is not None
    assert instance.executable.flags == graph.encoder_flags() == flags


@pytest.mark.parametrize("flags", REFUSED)
def test_other_flags_are_refused_by_name_when_recording(rig: Rig, flags: int) -> None:
    with pytest.raises(FlagsError) as refused:
        record(rig, flags)
    for bit in (Flags.UPLOAD, Flags.DEVICE_LAUNCH):
        assert (str(bit.name) in refused.value.found) == bool(flags & bit)
    assert rig.counter("templates_created") == 0


@pytest.mark.parametrize("flags", REFUSED)
def test_other_flags_are_refused_when_instantiating(rig: Rig, flags: int) -> None:
    graph = record(rig, 0)
    with pytest.raises(FlagsError):
        graph.instantiate(flags)
    with pytest.raises(FlagsError):
        graph.template.instantiate(flags)
    assert rig.counter("executables_created") == 0
    assert graph.instantiate(0).costs.executables == 1


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (0, "no flag (0)"),
        (2, "UPLOAD (2)"),
        (6, "UPLOAD | DEVICE_LAUNCH (6)"),
        (16, "bit 4 (16)"),
        (-1, "a negative number (-1)"),
    ],
)
def test_values_have_names(value: int, name: str) -> None:
    assert flag_names(value) == name


@pytest.mark.parametrize("value", [16, 25, 1 << 40, -1, -9])
def test_values_beyond_four_bits_are_refused(value: int) -> None:
    with pytest.raises(FlagsError):
        supported_flags(value, "testing")
    assert supported_flags(9, "testing") == 9


@pytest.mark.parametrize(("value", "name"), [(32, "bit 5 (32)"), (41, "bit 5 (32)"), (1 << 40, f"bit 40 ({1 << 40})")])
def test_bits_that_have_no_name_are_told(value: int, name: str) -> None:
    with pytest.raises(FlagsError) as refused:
        supported_flags(value, "testing")
    assert refused.value.found == name


@pytest.mark.parametrize("value", [True, False, 0.0, 9.0, "8", None])
def test_what_is_no_whole_number_is_no_flag(rig: Rig, value: Any) -> None:
    with pytest.raises(FlagsError) as refused:
        record(rig, value)
    assert repr(value) in refused.value.found
    assert supported_flags(Flags.USE_NODE_PRIORITY, "testing") == 8


def test_flags_have_exactly_one_source() -> None:
    executable = SimpleNamespace(flags=8)
    assert flags_from_one_source("encoding", executable=executable, value=None) == 8
    assert flags_from_one_source("encoding", executable=None, value=8) == 8
    with pytest.raises(FlagsError) as neither:
        flags_from_one_source("encoding", executable=None, value=None)
    assert "no source" in neither.value.found
    with pytest.raises(FlagsError) as both:
        flags_from_one_source("encoding", executable=executable, value=8)
    assert "two sources that agree" in both.value.found
    with pytest.raises(FlagsError) as disagreeing:
        flags_from_one_source("encoding", executable=executable, value=0)
    assert "two sources that disagree" in disagreeing.value.found
    assert "USE_NODE_PRIORITY (8)" in disagreeing.value.found


def test_unsupported_flags_of_a_source_are_refused() -> None:
    with pytest.raises(FlagsError):
        flags_from_one_source("encoding", executable=SimpleNamespace(flags=2), value=None)
    with pytest.raises(FlagsError):
        flags_from_one_source("encoding", executable=None, value=2)


def test_executable_with_other_flags_than_recorded_is_not_encoded(rig: Rig) -> None:
    graph = record(rig, 8).instantiate(1)
    with pytest.raises(FlagsError) as refused:
        graph.encoder_flags()
    assert "AUTO_FREE_ON_LAUNCH (1)" in refused.value.found
    assert "USE_NODE_PRIORITY (8)" in refused.value.found
    assert record(rig, 8).instantiate(8).encoder_flags() == 8


def test_driver_that_does_not_keep_the_flags_is_refused(fake_cuda: FakeCuda, cuda: Rig) -> None:
    graph = record(cuda, 1)
    fake_cuda.report_flags(0)
    with pytest.raises(FlagsError) as refused:
        graph.instantiate()
    assert "no flag (0)" in refused.value.found
    assert cuda.counter("executables_live") == 0
    fake_cuda.report_flags(-1)
    assert graph.instantiate().encoder_flags() == 1


def test_flag_that_the_driver_does_not_report_is_remembered(fake_cuda: FakeCuda, cuda: Rig) -> None:
    fake_cuda.report_flags(0)
    assert record(cuda, 8).instantiate().encoder_flags() == 8
    fake_cuda.report_flags(8)
    with pytest.raises(FlagsError):
        record(cuda, 0).instantiate()
