"""Stream capture: work becomes nodes, events fork and join, and what cannot be meant is refused."""

from __future__ import annotations

import pytest

from heliograph._native import SealedImage, Stream, Template
from heliograph.errors import DriverError, GraphStateError, HeliographError

from .probe import Probe, folded


def ends(template: Template) -> list[tuple[int, int]]:
    return [(start, end) for start, end, _ in template.edges()]


def fork(probe: Probe, origin: Stream, other: Stream) -> None:
    event = probe.device.create_event()
    origin.record(event)
    other.wait(event)


def test_captured_work_becomes_a_chain_and_does_not_run(probe: Probe) -> None:
    stream, cell = probe.device.create_stream(), probe.take()
    stream.begin_capture()
    assert stream.capturing
    probe.launch(stream, "fold", cell, 1)
    stream.memset(cell + 64, 3, 8)
    probe.launch(stream, "fold", cell, 2)
    template = stream.end_capture()
    assert not stream.capturing
    assert ([node.kind for node in template.nodes()], ends(template)) == ([0, 2, 0], [(0, 1), (1, 2)])
    assert probe.word(cell) == 0
    executable = template.instantiate()
    probe.run(executable, times=2)
    assert probe.word(cell) == folded(0, 1, 2, 1, 2)
    executable.close()


def test_an_event_forks_a_stream_into_the_capture_and_joins_it_again(probe: Probe) -> None:
    a, b, c = (probe.device.create_stream() for _ in range(3))
    cells = [probe.take() for _ in range(4)]
    a.begin_capture()
    probe.launch(a, "fold", cells[0], 1)  # 0
    fork(probe, a, b)
    fork(probe, a, c)
    assert b.capturing
    assert c.capturing
    probe.launch(b, "fold", cells[1], 2)  # 1
    probe.launch(c, "fold", cells[2], 3)  # 2
    probe.launch(a, "fold", cells[3], 4)  # 3
    fork(probe, b, a)
    fork(probe, c, b)
    fork(probe, b, a)
    probe.launch(a, "fold", cells[0], 5)  # 4
    template = a.end_capture()
    assert ends(template) == [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 4)]
    assert not b.capturing
    executable = template.instantiate()
    probe.run(executable)
    assert [probe.word(cell) for cell in cells] == [folded(0, 1, 5), 2, 3, 4]
    executable.close()


def test_work_that_was_not_joined_is_refused(probe: Probe) -> None:
    a, b, cell = probe.device.create_stream(), probe.device.create_stream(), probe.take()
    a.begin_capture()
    fork(probe, a, b)
    probe.launch(b, "fold", cell, 1)
    with pytest.raises((GraphStateError, DriverError)):
        a.end_capture()
    assert not a.capturing
    assert not b.capturing
    a.begin_capture()
    fork(probe, a, b)
    probe.launch(b, "fold", cell, 1)
    fork(probe, b, a)
    assert a.end_capture().node_count == 1


def test_a_fork_without_work_needs_no_join(probe: Probe) -> None:
    a, b, cell = probe.device.create_stream(), probe.device.create_stream(), probe.take()
    a.begin_capture()
    probe.launch(a, "fold", cell, 1)
    fork(probe, a, b)
    assert a.end_capture().node_count == 1


def test_only_the_stream_that_began_it_ends_a_capture(probe: Probe) -> None:
    a, b = probe.device.create_stream(), probe.device.create_stream()
    with pytest.raises(HeliographError):
        a.end_capture()
    a.begin_capture()
    with pytest.raises(HeliographError):
        a.begin_capture()
    assert a.capturing
    assert a.end_capture().node_count == 0
    a.begin_capture()
    fork(probe, a, b)
    with pytest.raises(HeliographError):
        b.end_capture()


@pytest.mark.excludes("cuda", reason="a refused call invalidates a CUDA capture; the host's goes on")
def test_what_needs_results_is_refused_while_capturing(probe: Probe) -> None:
    stream, event, cell = probe.device.create_stream(), probe.device.create_event(), probe.take()
    template = probe.device.create_template()
    executable = template.instantiate()
    stream.begin_capture()
    probe.launch(stream, "fold", cell, 1)
    stream.record(event)
    for refused in (stream.synchronize, stream.query, event.synchronize, event.query):
        with pytest.raises(GraphStateError):
            refused()
    with pytest.raises(GraphStateError):
        executable.launch(stream)
    assert stream.end_capture().node_count == 1
    stream.synchronize()
    executable.close()


@pytest.mark.excludes("cuda", reason="a refused call invalidates a CUDA capture; the host's goes on")
def test_events_of_executed_work_do_not_enter_a_capture(probe: Probe) -> None:
    a, b, cell = probe.device.create_stream(), probe.device.create_stream(), probe.take()
    outside = probe.device.create_event()
    probe.launch(b, "fold", cell, 1)
    b.record(outside)
    a.begin_capture()
    with pytest.raises(GraphStateError):
        a.wait(outside)
    inside = probe.device.create_event()
    a.record(inside)
    assert a.end_capture().node_count == 0
    with pytest.raises(GraphStateError):
        b.wait(inside)  # that capture is over
    b.record(inside)
    a.wait(inside)
    probe.device.synchronize()
    assert inside.query()


def test_a_stream_that_is_not_part_of_the_capture_runs_its_work(probe: Probe) -> None:
    a, b, cell = probe.device.create_stream(), probe.device.create_stream(), probe.take()
    a.begin_capture()
    probe.launch(b, "fold", cell, 9)
    assert a.end_capture().node_count == 0
    b.synchronize()  # not before: a CUDA driver lets no thread wait for any stream while it captures
    assert probe.word(cell) == 9


def test_a_module_that_is_dropped_meanwhile_leaves_the_capture_as_it_is(probe: Probe) -> None:
    stream, module = probe.device.create_stream(), probe.device.load_module(SealedImage("other", probe.image))
    stream.begin_capture()
    stream.memset(probe.take(), 1, 8)
    del module
    stream.memset(probe.take(), 1, 8)
    assert stream.end_capture().node_count == 2


@pytest.mark.excludes("cuda", reason="destroying a capturing stream is undefined on CUDA")
def test_a_forked_stream_that_is_dropped_before_its_join_spoils_the_capture(probe: Probe) -> None:
    a, cell = probe.device.create_stream(), probe.take()
    a.begin_capture()
    b = probe.device.create_stream()
    fork(probe, a, b)
    probe.launch(b, "fold", cell, 1)
    b.close()
    with pytest.raises(GraphStateError):
        a.end_capture()
    a.begin_capture()
    b = probe.device.create_stream()
    fork(probe, a, b)
    probe.launch(b, "fold", cell, 1)
    fork(probe, b, a)
    b.close()
    assert a.end_capture().node_count == 1
