"""``record_cuda``: a model on the GPU becomes a Recording.

Every bucket is run uncaptured before the first capture, twice: once so that libraries take their workspaces and the
model makes its tables (those lie in ``persistent``), once so that everything else has reached its final size. Then each
bucket is captured; memory that outlives a run may not come, go or move from there on.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress

import msgspec
import torch
from blake3 import blake3
from torch import Tensor, nn

from heliograph.capture.arena import Arena, RegionPool
from heliograph.capture.census import Census, exact_census, range_census
from heliograph.capture.classify import NodeCensus
from heliograph.capture.cuda.graphs import CudaGraph, literal_nodes, name_scratch, recorded_nodes, stored_nodes
from heliograph.capture.cuda.kernels import CudaKernels
from heliograph.capture.cuda.ops import OpCounter, lines_told
from heliograph.capture.cuda.pools import FrameworkPool, Live, check_unmoved
from heliograph.capture.cuda.session import CudaSession
from heliograph.capture.cuda.torch_capture import TorchCapture
from heliograph.capture.cuda.walk import CudaWalk
from heliograph.capture.export_graph import Retain, record_export_graph
from heliograph.capture.owned import Owned
from heliograph.capture.record_model import Tell, export_manifest
from heliograph.capture.recording import Kept, RecordedGraph, Recording
from heliograph.capture.settings import cuda_settings
from heliograph.capture.spec import CaptureSpec, EntrySpec, Shape, graph_name
from heliograph.capture.trail import Trail, run_model
from heliograph.capture.weights import describe, model_weights, swapped, without_traces
from heliograph.capture.words import RecordedNodes, Words
from heliograph.core.format import BUFFER_ALIGNMENT, region_base
from heliograph.core.layout import align
from heliograph.core.manifest import Target
from heliograph.core.manifest import Tensor as StoredTensor
from heliograph.device.cuda import context_limits
from heliograph.device.graph import Graph
from heliograph.errors import CaptureError

PAINTS = (0x5A, 0xA5)  # of the stack, in even and odd slots: no byte of the two is equal


def record_cuda(
    model: nn.Module,
    spec: CaptureSpec,
    *,
    session: CudaSession,
    second: Words | None = None,
    retain: Retain = "template",
    flags: int = 0,
    progress: Tell | None = None,
) -> tuple[Recording, Census]:
    """Records every bucket of a spec on the GPU, and says what its words are.

    second: the words of a capture in another slot, for the exact census; without them words are told apart by range,
    which leaves doubts. The model is on the CPU and stays there. The session is the recording's from here on; it is
    closed if this fails.

    Raises CaptureError (a capture that differs from the second one, memory that moves, a node that cannot be kept, what
    the model raises), ForeignMemoryError, OutOfMemoryError, DriverError.
    """
    with ExitStack() as undo:
        undo.callback(session.close)
        run = CudaCapture(model, spec, session, progress or (lambda doing, done, total: None))
        undo.callback(run.close)
        run.capture(retain, flags)
        first = run.words()
        owned = Owned(run.walk.buffers.all, spec.slot, spec.units)
        if second is None:
            census = range_census(first, owned, run.known)
        else:
            census = exact_census(first, second, owned, run.known)
        recording = run.recording(census, retain)
        undo.pop_all()
    return recording, census


class CudaCapture:
    """One capture of a model on the GPU: places everything, runs every bucket, captures every bucket."""

    def __init__(self, model: nn.Module, spec: CaptureSpec, session: CudaSession, tell: Tell) -> None:
        self.model, self.spec, self.session, self.tell = model, spec, session, tell
        self.buckets = [(entry, bucket) for entry in spec.entries for bucket in entry.buckets]
        self.graphs: list[CudaGraph] = []
        self.kernels = CudaKernels(session.images, session.device)
        self.kept: dict[str, Kept] = {}
        self.lasting: dict[str, tuple[Live, ...]] = {}  # PyTorch's memory that outlives a run, by role
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.weights = model_weights(model)
        self.walk = CudaWalk(model, spec, self.weights, session)
        self._placed = self.walk.device_weights()
        end = align(self.walk.buffers.sizes().get("persistent", 0), session.device.granularity)
        self.persistent = FrameworkPool(session, "persistent", end)
        self.scratch = FrameworkPool(session, "scratch", 0)

    # ---- running ---------------------------------------------------------------------------------------------------
    def capture(self, retain: Retain, flags: int) -> None:
        """Everything, from the uncaptured runs on."""
        on_device = swapped(self.model, self.weights, self._placed)
        collector = _older_objects_left_out()
        stream = torch.cuda.stream(self.stream)
        with without_traces(self.model, _on_device), cuda_settings(), stream, collector, on_device:
            self._warm()
            for done, (entry, bucket) in enumerate(self.buckets):
                self.tell(f"capturing {graph_name(entry, bucket)}", done, len(self.buckets))
                self._capture(entry, bucket, retain, flags)
                gc.collect()  # the collector is held off; what it would have freed must not be taken for kept
            for pool in (self.persistent, self.scratch):
                check_unmoved(pool, self.lasting[pool.name], "capturing")

    def _warm(self) -> None:
        """All buckets uncaptured; afterwards everything holds what it held before."""
        smallest = [(entry, entry.buckets[0]) for entry in self.spec.entries]
        versions = {name: tensor._version for name, tensor in self._placed.items()}
        for pool, buckets in ((self.persistent, smallest), (self.scratch, self.buckets)):
            with pool.used():
                for done, (entry, bucket) in enumerate(buckets):
                    self.tell(f"running {graph_name(entry, bucket)}", done, len(buckets))
                    self.walk.prepare(entry, bucket)
                    self.walk.run(entry, bucket)
                    self.stream.synchronize()  # the next inputs are written on another stream, shared ones among them
                    gc.collect()
        self.lasting = {pool.name: pool.live() for pool in (self.persistent, self.scratch)}
        self._refuse_written(versions)
        self.walk.clear()
        self.walk.fill_weights(self._placed)
        self.stream.synchronize()
        self._name_lasting()
        self._keep()

    def _refuse_written(self, versions: Mapping[str, int]) -> None:
        """Parameters are read-only in a core; what a model writes to belongs into its buffers or into state."""
        for weight in self.weights:
            if isinstance(weight.tensor, nn.Parameter) and self._placed[weight.name]._version != versions[weight.name]:
                raise CaptureError(
                    f"running {type(self.model).__name__}",
                    found=f"a write to its parameter {weight.name!r}",
                    required="parameters that are only read",
                    hint="register what the model writes to as a buffer, or state it in the spec",
                )

    def _capture(self, entry: EntrySpec, bucket: Shape, retain: Retain, flags: int) -> None:
        graph = Graph(graph_name(entry, bucket))
        capture = TorchCapture(self.session.device, self.stream, self.scratch)
        trail = Trail(self.model)
        counter = OpCounter(trail, capture.nodes, PAINTS[self.spec.slot % 2])

        def run() -> None:
            with trail, counter:
                run_model(lambda: self.walk.run(entry, bucket))
            counter.close()

        with self.scratch.told(), lines_told(graph.name, counter.spans):
            record_export_graph(
                run,
                stream=capture,
                pools=self._pools(),
                owners=(self.session.images, capture.graph),
                retain=retain,
                flags=flags,
                graph=graph,
            )
        try:
            nodes, top = tuple(graph.template.nodes()), tuple(graph.template.top_level)
        except BaseException:
            graph.reset()
            raise
        captured = CudaGraph(self.walk.places.graph(entry, bucket), graph, tuple(counter.spans), nodes, top)
        name_scratch(captured, self.walk.buffers, self.scratch)
        self.graphs.append(captured)

    def _pools(self) -> tuple[RegionPool | FrameworkPool, ...]:
        """The memory that nodes may point into: what we placed, and PyTorch's two pools."""
        placed = tuple(
            RegionPool(role, region.reservation, ((region_base(self.spec.slot, role), region.mapped),))
            for role, region in self.session.regions.items()
            if region.mapped
        )
        return (*placed, self.persistent, self.scratch)

    def _name_lasting(self) -> None:
        """Buffers for PyTorch's memory that outlives a run. In scratch its content matters like that of persistent."""
        for role, blocks in self.lasting.items():
            base = region_base(self.spec.slot, role)
            for number, (start, end) in enumerate(_apart(blocks)):
                size = end - start
                self.walk.buffers.put(f"{role}/library.{number}", role, start - base, size, "u8", (size,))

    # ---- results ---------------------------------------------------------------------------------------------------
    def words(self) -> Words:
        """What was recorded, for the census."""
        self._name_workspace()
        graphs = tuple(RecordedNodes(each.placed.name, recorded_nodes(each, self.kernels)) for each in self.graphs)
        return Words(self.spec.slot, graphs, dict(self.kept))

    def _name_workspace(self) -> None:
        """All of scratch, for what libraries take and give back within an op."""
        if self.scratch.size and self.walk.buffers.find("scratch/workspace") is None:
            size = self.scratch.size
            self.walk.buffers.put("scratch/workspace", "scratch", 0, size, "u8", (size,))

    def _keep(self) -> None:
        """Reads what of PyTorch's memory and the model's buffers has to be there before the first launch."""
        for role in ("persistent", "scratch"):
            region = self.session.regions[role].reservation
            self.kept[role] = tuple(
                (buffer.offset, region.read(buffer.offset, buffer.size))
                for buffer in sorted(self.walk.buffers.all, key=lambda buffer: buffer.offset)
                if buffer.role == role and buffer.size
            )

    def known(self, address: int) -> str | None:
        """What lies at an address that is in no region of ours: a variable of a kernel image, or an allocation."""
        return self.kernels.variable(address) or self.session.known(address)

    def recording(self, census: Census, retain: Retain) -> Recording:
        """The recording. It owns the session from here on."""
        session, device = self.session, self.session.device
        graphs = tuple(self._recorded(captured, census.graphs[number]) for number, captured in enumerate(self.graphs))
        sizes = {role: self._size(role) for role in session.regions}
        arena = Arena.over(
            device,
            self.spec.slot,
            {role: (region.reservation, sizes[role]) for role, region in session.regions.items()},
        )
        return Recording(
            self.spec,
            device,
            device.borrow_stream(self.stream.cuda_stream),
            arena,
            self.walk.buffers,
            graphs,
            self._tensors(),
            self.kernels.kernels(),
            Target(
                device="cuda",
                arch=device.arch,
                abi=0,
                ranks=1,
                processors=device.processors,
                shared_optin=device.shared_optin,
                driver=device.driver_version,
            ),
            retain,
            export_manifest(device, graphs, arena),
            self.kept,
            limits=context_limits(device, self.kernels.functions),
            closing=self.close,
        )

    def _recorded(self, captured: CudaGraph, census: tuple[NodeCensus, ...]) -> RecordedGraph:
        nodes = stored_nodes(captured, census, self.kernels)
        return RecordedGraph(captured.placed, nodes, captured.graph, literal_nodes(nodes, captured))

    def _size(self, role: str) -> int:
        """Bytes of a region in use."""
        placed = self.walk.buffers.sizes().get(role, 0)
        if role == "persistent":
            return self.persistent.size if self.persistent.taken else placed
        return self.scratch.size if role == "scratch" else placed

    def _tensors(self) -> tuple[StoredTensor, ...]:
        """The parameters as they lie in the weights region, under every name."""
        described: list[StoredTensor] = []
        for weight in self.weights:
            buffer = self.walk.buffers.all[self.walk.places.weights[weight.name]]
            if buffer.role == "weights":
                data = self.session.regions["weights"].reservation.read(buffer.offset, weight.size)
                digest = blake3(data, max_threads=blake3.AUTO).hexdigest()
                tensor = describe(weight, buffer.offset, digest)
                described += [msgspec.structs.replace(tensor, name=name) for name in (weight.name, *weight.aliases)]
        return tuple(described)

    def close(self) -> None:
        """Resets the graphs and makes PyTorch let go of everything that lies in the regions. Idempotent."""
        for captured in self.graphs:
            captured.graph.reset()
        self._placed = {}
        self.walk.close()
        with suppress(AttributeError):  # of PyTorch releases that keep workspaces elsewhere
            torch._C._cuda_clearCublasWorkspaces()
        for pool in (self.persistent, self.scratch):
            pool.close()
        torch.cuda.empty_cache()
        self.session.close()


@contextmanager
def _older_objects_left_out() -> Iterator[None]:
    """A collection follows each run and each capture. It looks at what came since then, not at the 300,000 objects of
    PyTorch's modules, which takes 0.1 to 0.2 s (2026-11-30)."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _on_device(value: object) -> bool:
    """Tables that the model makes and keeps lie in memory that goes with the recording."""
    return isinstance(value, Tensor) and value.is_cuda


def _apart(blocks: Sequence[Live]) -> list[tuple[int, int]]:
    """(begin, end) of blocks by address; those with less between them than buffers need are one."""
    joined: list[tuple[int, int]] = []
    for block in blocks:
        if joined and block.address < joined[-1][1] + BUFFER_ALIGNMENT:
            joined[-1] = (joined[-1][0], max(joined[-1][1], block.address + block.size))
        else:
            joined.append((block.address, block.address + block.size))
    return joined
