"""``record``: a model becomes a Recording. The model is run twice, first without and then under stream capture.

The first run says how much memory is needed, so that everything has its final address before the first capture; the
second has to record the same. A failure gives everything back, and the model has its own parameters again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import pairwise

import msgspec
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from heliograph._native import Device, Node
from heliograph.capture.arena import Arena
from heliograph.capture.export_graph import Retain, record_export_graph
from heliograph.capture.images import Images
from heliograph.capture.manifests import CapturedBuffer, CapturedRegion, ExportManifest
from heliograph.capture.moved import check_nothing_moved
from heliograph.capture.recording import RecordedGraph, Recording
from heliograph.capture.settings import fixed_settings
from heliograph.capture.spec import CaptureSpec, graph_name
from heliograph.capture.tape import Fill, Launch, Step, stored
from heliograph.capture.walk import Walk, WalkedGraph, Walker
from heliograph.capture.weights import Weight, copy_in, model_weights, store, without_traces
from heliograph.core.format import BUFFER_ALIGNMENT, KERNEL_ABI
from heliograph.core.layout import align
from heliograph.core.manifest import Target, Tensor
from heliograph.device.graph import Graph
from heliograph.errors import CaptureError

# Called with what is being done, how much of it is done, and how much there is.
Tell = Callable[[str, int, int], None]


def record(
    model: nn.Module,
    spec: CaptureSpec,
    *,
    device: Device,
    retain: Retain = "template",
    flags: int = 0,
    consume: bool = False,
    progress: Tell | None = None,
) -> Recording:
    """Records every bucket of a spec on a device.

    retain: "template" keeps what was captured, "executable" also instantiates it, to be replayed in this process.
    flags: instantiation flags of every graph. consume: the model's tensors are moved, it is left without them.

    Raises UnsupportedOpError, ValueReadError, ForeignMemoryError, AddressMovedError, AddressTakenError,
    OutOfMemoryError.
    """
    tell = progress or (lambda doing, done, total: None)
    buckets = [(entry, bucket) for entry in spec.entries for bucket in entry.buckets]
    weights = model_weights(model)
    with ExitStack() as undo, fixed_settings(), without_traces(model, _without_values):
        walker = Walker(model, spec, weights)
        first = Walk(walker, units=spec.units + 1 if spec.units else 0)
        for done, (entry, bucket) in enumerate(buckets):
            tell(f"running {graph_name(entry, bucket)}", done, len(buckets))
            first.graph(entry, bucket)
        private = align(first.buffers.tensor_bytes, BUFFER_ALIGNMENT)
        second = Walk(walker, units=spec.units, private=private, written=frozenset(first.written))
        arena = Arena(device, spec.slot, _sizes(first, second))
        undo.callback(arena.close)
        images = Images(device)
        stream = device.create_stream()
        graphs: list[RecordedGraph] = []
        for done, (entry, bucket) in enumerate(buckets):
            tell(f"capturing {graph_name(entry, bucket)}", done, len(buckets))
            graph = Graph(graph_name(entry, bucket))
            undo.callback(graph.reset)
            call = partial(second.graph, entry, bucket, stream, images.function)
            pools, owners = arena.pools(), (images,)
            record_export_graph(
                call, stream=stream, pools=pools, owners=owners, retain=retain, flags=flags, graph=graph
            )
            graphs.append(_recorded(second.graphs[-1], graph, images))
        check_nothing_moved(first, second)
        _write_constants(second, arena)
        tensors = _store_weights(weights, second, arena, consume, tell)
        recording = Recording(
            spec,
            device,
            stream,
            arena,
            second.buffers,
            tuple(graphs),
            tensors,
            images.kernels(),
            _target(images),
            retain,
            export_manifest(device, graphs, arena),
            {
                role: ((0, arena.region(role).read(0, arena.sizes[role])),)
                for role in ("constants", "persistent")
                if role in arena.sizes
            },
        )
        undo.pop_all()
    return recording


def _without_values(value: object) -> bool:
    return isinstance(value, FakeTensor)


def _sizes(first: Walk, second: Walk) -> dict[str, int]:
    """Bytes of each region in the capture: what is placed as the run goes on is known from the first run."""
    placed, known = second.buffers.sizes(), first.buffers.sizes()
    sizes = {role: placed.get(role, 0) for role in ("weights", "persistent", "state")}
    sizes |= {role: known.get(role, 0) for role in ("constants", "io")}
    private = first.buffers.private_bytes
    sizes["scratch"] = second.buffers.private + private if private else first.buffers.tensor_bytes
    return sizes


def _recorded(walked: WalkedGraph, graph: Graph, images: Images) -> RecordedGraph:
    """A graph whose template is what was recorded."""
    _check_template(walked, graph)
    nodes = tuple(stored(step, images.number) for step in walked.steps)
    return RecordedGraph(walked.placed, nodes, graph)


def _check_template(walked: WalkedGraph, graph: Graph) -> None:
    """What the driver holds against what was recorded: every node, in order, in a chain."""
    template, steps = graph.template, walked.steps
    nodes = template.nodes()
    for i, step in enumerate(steps):
        if i >= len(nodes) or _as_driver_tells(nodes[i]) != _as_recorded(step):
            raise _differs(walked, f"node {i} is not {step.origin!r} as it was recorded")
    if len(nodes) != len(steps):
        raise _differs(walked, f"{len(nodes)} nodes")
    if [(source, target) for source, target, _ in template.edges()] != list(pairwise(range(len(nodes)))):
        raise _differs(walked, "edges that are not one from each node to the next")


def _as_driver_tells(node: Node) -> tuple[object, ...]:
    if node.function is not None:
        return node.function.name, node.grid, node.params
    return node.address, node.source, node.value, node.size


def _as_recorded(step: Step) -> tuple[object, ...]:
    if isinstance(step, Launch):
        return step.name, (step.blocks, 1, 1), step.params
    if isinstance(step, Fill):
        return step.to.address, 0, step.value, step.size
    return step.to.address, step.source.address, 0, step.size


def _differs(walked: WalkedGraph, found: str) -> CaptureError:
    return CaptureError(
        f"reading graph {walked.placed.name!r} back from the driver",
        found=found,
        required=f"the {len(walked.steps)} nodes that were recorded, in that order",
        hint="something else was submitted to the capturing stream, or the driver is at fault",
    )


def _write_constants(walk: Walk, arena: Arena) -> None:
    for index, values in walk.constants.items():
        copy_in(values, arena.region("constants"), walk.buffers.all[index].offset)


def _store_weights(
    weights: tuple[Weight, ...], walk: Walk, arena: Arena, consume: bool, tell: Tell
) -> tuple[Tensor, ...]:
    """Moves the weights into their region, and what is written to into its own; describes the former."""
    described: list[Tensor] = []
    for done, weight in enumerate(weights):
        tell("moving weights", done, len(weights))
        buffer = walk.buffers.all[walk.places.weights[weight.name]]
        tensor = store(weight, arena.region(buffer.role), buffer.offset, consume=consume)
        if buffer.role == "weights":
            described += [msgspec.structs.replace(tensor, name=name) for name in (weight.name, *weight.aliases)]
    return tuple(described)


def _target(images: Images) -> Target:
    return Target(device="host", arch=images.level, abi=KERNEL_ABI, ranks=1, processors=0, shared_optin=0, driver=0)


def export_manifest(device: Device, graphs: Sequence[RecordedGraph], arena: Arena) -> ExportManifest:
    """What has to be as it is now until the last byte is written: graphs, and the memory of every region."""
    blocks = arena.blocks.values()
    return ExportManifest.of(
        device,
        [recorded.graph for recorded in graphs],
        [CapturedBuffer.of(block.role, block) for block in blocks],
        [CapturedRegion(block.role, block.address, block.size) for block in blocks],
    )
