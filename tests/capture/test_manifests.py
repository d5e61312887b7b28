"""R9: what may be written, what may also be replayed, and an error type for each."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field, replace

import pytest

from fake_cuda.control import FakeCuda
from heliograph._native import CudaDevice
from heliograph.capture.export_graph import Retain, record_export_graph
from heliograph.capture.manifests import CapturedBuffer, CapturedRegion, ExportManifest, ReplayManifest
from heliograph.device.graph import Graph, Instance
from heliograph.device.host import open_host
from heliograph.errors import ExportManifestError, OwnerCycleError, ReplayManifestError
from rigs import Rig
from witness import Plain


@dataclass(eq=False)
class Tensor:
    """A live buffer."""

    address: int
    size: int
    dtype: str
    __weakref__: object = field(init=False, repr=False, default=None)


def record(
    rig: Rig, name: str = "decode/8", retain: Retain = "template", flags: int = 0, owners: tuple[object, ...] = ()
) -> Graph:
    stream = rig.device.create_stream()
    return record_export_graph(
        lambda: rig.spin(stream, 1),
        stream=stream,
        pools=[rig.pool],
        owners=owners,
        retain=retain,
        flags=flags,
        graph=Graph(name),
    )


def region(rig: Rig) -> CapturedRegion:
    return CapturedRegion("io", *rig.pool.ranges[0])


def manifest(rig: Rig, *graphs: Graph, buffers: tuple[CapturedBuffer, ...] = ()) -> ExportManifest:
    return ExportManifest.of(rig.device, graphs, buffers, [region(rig)])


# ---- one object, two answers ----


def test_template_may_be_exported_and_not_replayed(rig: Rig) -> None:
    export = manifest(rig, record(rig, retain="template"))
    export.check()
    with pytest.raises(ReplayManifestError) as refused:
        ReplayManifest(export).check()
    assert "no executable" in refused.value.found
    assert rig.counter("executables_created") == 0


def test_executable_may_be_exported_and_replayed(rig: Rig) -> None:
    export = manifest(rig, record(rig, retain="executable"))
    export.check()
    ReplayManifest(export).check()


# ---- export: templates ----


def test_reset_template_is_refused(rig: Rig) -> None:
    graph = record(rig)
    export = manifest(rig, graph)
    export.check()
    graph.reset()
    with pytest.raises(ExportManifestError) as refused:
        export.check()
    assert "'decode/8'" in refused.value.doing
    assert "reset" in refused.value.found


def test_template_that_was_recorded_again_is_refused(rig: Rig) -> None:
    graph = record(rig)
    export = manifest(rig, graph)
    graph.reset()
    stream = rig.device.create_stream()
    record_export_graph(lambda: rig.spin(stream, 2), stream=stream, pools=[rig.pool], graph=graph)
    with pytest.raises(ExportManifestError) as refused:
        export.check()
    assert "later" in refused.value.found
    manifest(rig, graph).check()


def test_owner_that_came_to_hold_its_graph_is_refused_at_export(rig: Rig) -> None:
    owner = Plain()
    graph = record(rig, owners=(owner,))
    export = manifest(rig, graph)
    export.check()
    owner.engine = [graph]  # type: ignore[attr-defined]
    with pytest.raises(OwnerCycleError) as refused:
        export.check()
    assert "Plain.engine[0]" in refused.value.found
    del owner.engine  # type: ignore[attr-defined]
    export.check()


def test_manifest_holds_its_graphs(rig: Rig) -> None:
    graph = record(rig)
    watched = weakref.ref(graph)
    export = manifest(rig, graph)
    del graph
    gc.collect()
    assert watched() is not None
    export.check()
    del export
    gc.collect()
    assert watched() is None


def test_two_graphs_of_one_name_are_refused(rig: Rig) -> None:
    first, second = record(rig), record(rig)
    with pytest.raises(ExportManifestError) as refused:
        manifest(rig, first, second)
    assert "'decode/8'" in refused.value.found


def test_pool_whose_storage_moved_is_refused(rig: Rig) -> None:
    graph = record(rig)
    export = manifest(rig, graph)
    ((address, size),) = rig.pool.ranges
    rig.pool.ranges = ((address, size), (address + size, size))  # more is no harm
    export.check()
    for moved in [(address + 4096, size), (address, size - 1)]:
        rig.pool.ranges = (moved,)
        with pytest.raises(ExportManifestError) as refused:
            export.check()
        assert f"{address:#x}" in refused.value.found
    rig.pool.ranges = ((address, size),)
    export.check()


# ---- export: buffers ----


@pytest.mark.parametrize(("field_name", "value"), [("address", 0x100), ("size", 4096), ("dtype", "bf16")])
def test_buffer_that_changed_since_the_capture_is_refused(rig: Rig, field_name: str, value: int | str) -> None:
    tensor = Tensor(rig.pool.address, 1024, "f32")
    export = manifest(rig, record(rig), buffers=(CapturedBuffer.of("io/decode/ids", tensor),))
    export.check()
    before = getattr(tensor, field_name)
    setattr(tensor, field_name, value)
    with pytest.raises(ExportManifestError) as refused:
        export.check()
    assert "'io/decode/ids'" in refused.value.doing
    assert {"dtype": "type"}.get(field_name, field_name) in refused.value.found
    setattr(tensor, field_name, before)
    export.check()


@pytest.mark.parametrize("beyond", ["before", "across the end", "far away"])
def test_buffer_outside_every_region_is_refused(rig: Rig, beyond: str) -> None:
    ((start, size),) = rig.pool.ranges
    address = {"before": start - 256, "across the end": start + size - 512, "far away": 0x7000_0000_0000}[beyond]
    outside, inside = Tensor(address, 1024, "f32"), Tensor(start + size - 1024, 1024, "f32")
    manifest(rig, buffers=(CapturedBuffer.of("inside", inside),)).check()
    with pytest.raises(ExportManifestError) as refused:
        manifest(rig, buffers=(CapturedBuffer.of("outside", outside),)).check()
    assert "'outside'" in refused.value.doing
    assert "outside every region" in refused.value.found


def test_buffer_whose_owner_is_gone_is_refused(rig: Rig) -> None:
    tensor = Tensor(rig.pool.address, 1024, "f32")
    export = manifest(rig, buffers=(CapturedBuffer.of("weights/w", tensor),))
    export.check()
    del tensor
    gc.collect()
    with pytest.raises(ExportManifestError) as refused:
        export.check()
    assert "owner is gone" in refused.value.found


# ---- export: contexts ----


def test_graph_of_another_host_device_is_refused(host: Rig) -> None:
    other = open_host(workers=1)
    graph = record(host)
    with pytest.raises(ExportManifestError) as refused:
        ExportManifest.of(other, [graph]).check()
    assert "another device" in refused.value.found
    ExportManifest.of(host.device, [graph]).check()


def test_graph_of_another_context_is_refused(cuda: Rig) -> None:
    other = CudaDevice(1)
    graph = record(cuda)
    with pytest.raises(ExportManifestError) as refused:
        ExportManifest.of(other, [graph]).check()
    assert "another device" in refused.value.found
    ExportManifest.of(cuda.device, [graph]).check()


def test_dead_device_is_refused(rig: Rig) -> None:
    export = manifest(rig, record(rig))
    export.check()
    rig.device.close()
    with pytest.raises(ExportManifestError) as refused:
        export.check()
    assert "gone" in refused.value.found


def test_context_that_was_reset_is_refused(fake_cuda: FakeCuda, cuda: Rig) -> None:
    export = manifest(cuda, record(cuda))
    export.check()
    fake_cuda.reset_context()
    with pytest.raises(ExportManifestError) as refused:
        export.check()
    assert "gone" in refused.value.found


# ---- replay ----


def test_missing_executable_is_refused(rig: Rig) -> None:
    first, second = record(rig, "decode/1", "executable"), record(rig, "decode/2", "template")
    with pytest.raises(ReplayManifestError) as refused:
        ReplayManifest(manifest(rig, first, second)).check()
    assert "'decode/2'" in refused.value.doing
    second.instantiate()
    ReplayManifest(manifest(rig, first, second)).check()


def test_executable_of_another_template_is_refused(rig: Rig) -> None:
    first, second = record(rig, "decode/1", "executable"), record(rig, "decode/2", "executable")
    assert first.instance is not None
    assert second.instance is not None
    right: dict[str, Instance] = {"decode/1": first.instance, "decode/2": second.instance}
    export = manifest(rig, first, second)
    ReplayManifest(export, right).check()
    with pytest.raises(ReplayManifestError) as refused:
        ReplayManifest(export, {**right, "decode/2": first.instance}).check()
    assert "'decode/2'" in refused.value.doing
    assert "another template" in refused.value.found


def test_executable_with_other_flags_than_recorded_is_refused(rig: Rig) -> None:
    graph = record(rig, flags=8)
    export = manifest(rig, graph)
    graph.instantiate(flags=0)
    export.check()
    with pytest.raises(ReplayManifestError) as refused:
        ReplayManifest(export).check()
    assert "no flag (0)" in refused.value.found
    assert "USE_NODE_PRIORITY (8)" in refused.value.required
    instance = graph.instance
    assert instance is not None
    right = replace(instance, executable=graph.template.instantiate(8))
    ReplayManifest(export, {"decode/8": right}).check()


def test_replay_manifest_refuses_what_the_export_manifest_refuses(rig: Rig) -> None:
    graph = record(rig, retain="executable")
    replay = ReplayManifest(manifest(rig, graph))
    replay.check()
    graph.reset()
    with pytest.raises(ExportManifestError):
        replay.check()
