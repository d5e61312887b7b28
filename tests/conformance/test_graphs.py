"""Templates and executables: order, edges, every node kind, and results that no number of workers changes."""

from __future__ import annotations

import hashlib
import random
import struct

import pytest

from heliograph._native import Executable, HostDevice, Template
from heliograph.errors import DriverError, FlagsError, GraphStateError, UsageError

from .probe import Probe, folded, pack


def diamond(probe: Probe, x: int, left: int, right: int, out: int) -> Template:
    """x is written, left = x + x and right = x + x, out = left + right; 64 floats."""
    template = probe.device.create_template()
    top = probe.add(template, "write", x, 0x3F800000, blocks=64)  # 1.0f
    a = probe.add(template, "add", x, x, left, 64, after=[top])
    b = probe.add(template, "add", x, x, right, 64, after=[top])
    probe.add(template, "add", left, right, out, 64, after=[a, b])
    return template


def test_a_diamond_runs_in_the_order_of_its_edges(probe: Probe) -> None:
    x, left, right, out = (probe.take(256) for _ in range(4))
    executable = diamond(probe, x, left, right, out).instantiate()
    for _ in range(50):
        probe.write(x, bytes(256))
        probe.write(out, bytes(256))
        probe.run(executable)
        assert probe.read(out, 256) == struct.pack("<f", 4.0) * 64
    executable.close()


def test_independent_branches_all_run(probe: Probe) -> None:
    cells = [probe.take() for _ in range(20)]
    template = probe.device.create_template()
    for cell in cells:
        last: list[int] = []
        for value in range(1, 6):
            last = [probe.add(template, "fold", cell, value, after=last)]
    executable = template.instantiate()
    probe.run(executable, times=3)
    expected = folded(0, *[1, 2, 3, 4, 5] * 3)
    assert [probe.word(cell) for cell in cells] == [expected] * 20
    executable.close()


def test_a_chain_runs_in_order(probe: Probe) -> None:
    cell = probe.take()
    template = probe.device.create_template()
    last: list[int] = []
    for value in range(1, 301):
        last = [probe.add(template, "fold", cell, value, after=last)]
    executable = template.instantiate()
    probe.run(executable)
    assert probe.word(cell) == folded(0, *range(1, 301))
    executable.close()


def test_memsets_copies_and_empty_nodes_keep_their_place(probe: Probe) -> None:
    size = 600_001  # more than two blocks of the host's copies, and not a round number
    a, b = probe.take(size), probe.take(size)
    counter = probe.take()
    template = probe.device.create_template()
    fill = template.add_memset(a, 0x5A, size)
    fence = template.add_empty(after=[fill])
    copy = template.add_memcpy(b, a, size, after=[fence])
    clear = template.add_memset(a, 0, size, after=[copy])
    probe.add(template, "count", counter, blocks=7, after=[clear])
    executable = template.instantiate()
    probe.run(executable, times=2)
    assert probe.read(b, size) == b"\x5a" * size
    assert probe.read(a, size) == bytes(size)
    assert probe.word(counter) == 14
    executable.close()


def test_nodes_and_edges_are_read_back_as_they_were_added(probe: Probe) -> None:
    x, left, right, out = (probe.take(256) for _ in range(4))
    template = diamond(probe, x, left, right, out)
    template.add_memset(x, 7, 256, after=[3])
    template.add_memcpy(left, right, 128, after=[3, 4])
    template.add_empty(after=[5])
    nodes = template.nodes()
    assert [node.kind for node in nodes] == [0, 0, 0, 0, 2, 1, 5]
    assert nodes[0].grid == (64, 1, 1)
    assert [node.params for node in nodes[:2]] == [pack(x, 0x3F800000), pack(x, x, left, 64)]
    assert [node.function.name if node.function else None for node in nodes[:5]] == ["write", *["add"] * 3, None]
    assert (nodes[4].address, nodes[4].value, nodes[4].size) == (x, 7, 256)
    assert (nodes[5].address, nodes[5].source, nodes[5].size) == (left, right, 128)
    ends = [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 5), (5, 6)]
    assert template.edges() == [(*pair, bytes(8)) for pair in ends]
    assert (template.node_count, template.edge_count, template.device) == (7, 8, probe.device)


def test_edges_that_cannot_be_meant_are_refused(probe: Probe) -> None:
    template = probe.device.create_template()
    template.add_empty()
    template.add_empty()
    for after in ([2], [5], [0, 0]):
        with pytest.raises((UsageError, DriverError)):
            template.add_empty(after=after)
    assert template.node_count == 2
    assert template.add_empty(after=[0, 1]) == 2


@pytest.mark.excludes("cuda", reason="a CUDA driver checks a kernel's grid and parameters by its own rules")
def test_kernels_that_could_not_run_are_refused(probe: Probe) -> None:
    template = probe.device.create_template()
    cell = probe.take()
    with pytest.raises(UsageError):
        template.add_kernel(probe.function("count"), (1, 1, 1), pack(cell, 0))
    for grid in [(0, 1, 1), (1, 2, 1), (1, 1, 2)]:
        with pytest.raises(UsageError):
            template.add_kernel(probe.function("count"), grid, pack(cell))
    with pytest.raises(UsageError):
        template.add_memcpy(cell, cell + 32, 64)
    assert template.add_kernel(probe.function("count"), (1, 1, 1), pack(cell)) == 0
    assert template.add_memcpy(cell, cell + 64, 64) == 1


@pytest.mark.parametrize("flags", range(16))
def test_flags_are_kept_or_refused_by_name(probe: Probe, flags: int) -> None:
    template = probe.device.create_template()
    template.add_empty()
    if flags in (0, 1, 8, 9):
        executable = template.instantiate(flags)
        assert executable.flags == flags
        executable.close()
        return
    with pytest.raises(FlagsError) as refused:
        template.instantiate(flags)
    assert ("UPLOAD" in refused.value.found) == bool(flags & 2)
    assert ("DEVICE_LAUNCH" in refused.value.found) == bool(flags & 4)
    assert probe.counter("executables_created") == 0


def test_flags_beyond_the_known_bits_are_refused(probe: Probe) -> None:
    template = probe.device.create_template()
    template.add_empty()
    for flags in (16, 1 << 31):
        with pytest.raises(FlagsError):
            template.instantiate(flags)


def test_an_executable_outlives_its_template(probe: Probe) -> None:
    cell = probe.take()
    template = probe.device.create_template()
    probe.add(template, "fold", cell, 3)
    executable = template.instantiate()
    template.close()
    with pytest.raises(GraphStateError):
        template.instantiate()
    probe.run(executable, times=2)
    assert probe.word(cell) == folded(0, 3, 3)
    executable.close()


def test_one_template_gives_many_executables(probe: Probe) -> None:
    cell = probe.take()
    template = probe.device.create_template()
    probe.add(template, "count", cell, blocks=3)
    many = [template.instantiate() for _ in range(8)]
    for executable in many:
        probe.run(executable)
    assert probe.word(cell) == 24
    assert (probe.counter("executables_created"), probe.counter("executables_live")) == (8, 8)
    for executable in many:
        executable.close()
    assert (probe.counter("executables_created"), probe.counter("executables_live")) == (8, 0)


def test_counters_tell_what_was_created_and_what_is_left(probe: Probe) -> None:
    cell = probe.take()
    names = ("templates_created", "executables_created", "executables_live", "launches", "nodes_run")
    assert [probe.counter(name) for name in names] == [0, 0, 0, 0, 0]
    assert probe.counter("modules_loaded") == probe.counter("modules_live") == 1
    template = probe.device.create_template()
    first = probe.add(template, "count", cell)
    probe.add(template, "count", cell, after=[first])
    executable = template.instantiate()
    probe.run(executable, times=3)
    assert [probe.counter(name) for name in names] == [1, 1, 1, 3, 6]
    executable.close()
    assert probe.counter("executables_live") == 0
    assert probe.word(cell) == 6


def test_an_empty_graph_runs(probe: Probe) -> None:
    executable = probe.device.create_template().instantiate()
    probe.run(executable, times=3)
    executable.close()


# ---- the host's workers ------------------------------------------------------------------------------------------
def busy_graph(probe: Probe, seed: int, nodes: int = 300) -> tuple[Executable, int, int]:
    """A random graph over 24 buffers of 64 floats, with the edges that its reads and writes need; its memory."""
    draw = random.Random(seed)
    buffers = [probe.take(256) for _ in range(24)]
    for buffer in buffers:
        probe.write(buffer, struct.pack("<64f", *(draw.uniform(-1, 1) for _ in range(64))))
    template = probe.device.create_template()
    writer: dict[int, int] = {}
    readers: dict[int, list[int]] = {buffer: [] for buffer in buffers}
    for number in range(nodes):
        x, y, out = draw.sample(buffers, 3)
        after = {writer[b] for b in (x, y, out) if b in writer} | set(readers[out])
        if draw.random() < 0.3:
            probe.add(template, "norm", x, out, 8, blocks=8, after=sorted(after))
        else:
            probe.add(template, "add", x, y, out, 64, blocks=draw.choice([1, 3, 8]), after=sorted(after))
        readers[x].append(number)
        readers[y].append(number)
        writer[out], readers[out] = number, []
    return template.instantiate(), buffers[0], 24 * 256


def result(workers: int, cpus: tuple[int, ...] = ()) -> str:
    probe = Probe(HostDevice(workers=workers, cpus=cpus))
    executable, begin, size = busy_graph(probe, seed=7)
    probe.run(executable, times=3)
    digest = hashlib.sha256(probe.read(begin, size)).hexdigest()
    executable.close()
    probe.close()
    return digest


def test_results_are_equal_for_1_2_and_8_workers() -> None:
    assert result(1) == result(2) == result(8)


def test_16_workers_on_2_cpus_finish_with_equal_results() -> None:
    assert result(16, cpus=(0, 1)) == result(1)


def test_a_wider_graph_than_there_are_workers_gives_equal_results() -> None:
    def fold_all(workers: int) -> bytes:
        probe = Probe(HostDevice(workers=workers))
        out = probe.take(4 * 1000)
        template = probe.device.create_template()
        for i in range(1000):
            probe.add(template, "write", out + 4 * i, i * i)
        executable = template.instantiate()
        probe.run(executable)
        executable.close()
        data = probe.read(out, 4000)
        probe.close()
        return data

    assert fold_all(3) == fold_all(1) == struct.pack("<1000I", *(i * i for i in range(1000)))


def test_thousands_of_launches_count_every_node_once() -> None:
    probe = Probe(HostDevice(workers=2))
    cell = probe.take()
    template = probe.device.create_template()
    last: list[int] = []
    for _ in range(10):
        last = [probe.add(template, "count", cell, blocks=4, after=last)]
    executable = template.instantiate()
    probe.run(executable, times=5_000)
    assert probe.word(cell) == 4 * 10 * 5_000
    assert probe.counter("nodes_run") == 10 * 5_000
    assert probe.counter("launches") == 5_000
    executable.close()
    probe.close()


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_worker_rounds_to_nearest_and_keeps_denormals(workers: int) -> None:
    probe = Probe(HostDevice(workers=workers))
    words = probe.take(4 * 64)
    template = probe.device.create_template()
    probe.add(template, "control", words, blocks=64)
    executable = template.instantiate()
    probe.run(executable)
    assert set(probe.words(words, 64)) == {0x1F80}
    executable.close()
    probe.close()


def test_cpus_that_the_process_may_not_use_are_refused() -> None:
    with pytest.raises(UsageError) as refused:
        HostDevice(workers=1, cpus=(4095,))
    assert "4095" in refused.value.found
    HostDevice(workers=1, cpus=(0,)).close()
