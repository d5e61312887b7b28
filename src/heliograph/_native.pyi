"""
The drivers: fixed-address memory, kernel modules, streams, templates and executables.
"""

from collections.abc import Sequence

from typing_extensions import Buffer

SCHEMA: int = 1

BUILD: dict[str, str]

class SealedImage:
    """
    A kernel image that nobody can change any more: written, sealed, then readable by descriptor for hashing.

    place: memory (a sealed memfd), runtime (an unnamed file in `folder`), cache (a file in `folder`, unlinked).
    """

    def __init__(self, name: str, data: Buffer, place: str = "memory", folder: str = "") -> None: ...
    def fileno(self) -> int:
        """
        The descriptor; open for as long as this object or a module made of it.
        """

    @property
    def size(self) -> int: ...
    def refusal(self) -> str:
        """The policy that forbids code in this place, or an empty string."""

def unfit_module(image: Buffer, machines: Sequence[int]) -> str:
    """
    Why an image is no freestanding kernel module of one of these machines (ELF's e_machine), as load_module of
    the host device sees it; empty if it is one. Loads nothing.
    """

class Module:
    @property
    def abi(self) -> int: ...
    @property
    def family(self) -> str: ...
    @property
    def level(self) -> str: ...
    def function(self, name: str) -> Function: ...
    def function_names(self) -> list[str]: ...
    def global_address(self, name: str) -> tuple[int, int]:
        """
        (address, bytes) of a variable of a CUDA module. ModuleError if there is none; none on the host.
        """

    def read_global(self, name: str) -> bytes:
        """What a variable holds now. ModuleError if there is none."""

    def write_global(self, name: str, data: Buffer) -> None:
        """
        Writes a variable whole. ModuleError if there is none, or if it has another size.
        """

class Function:
    @property
    def name(self) -> str: ...
    @property
    def param_bytes(self) -> int:
        """Size of the parameter block, as the driver states it."""

    @property
    def pointer_offsets(self) -> tuple[int, ...]: ...
    @property
    def params(self) -> list[tuple[int, int]]:
        """
        (offset, size) of each parameter in bytes, as the driver states them; empty on the host.
        """

    @property
    def local_bytes(self) -> int:
        """
        Local memory of a thread, in bytes: what the stack limit of the context has to allow; 0 on the host.
        """

    @property
    def attributes(self) -> list[tuple[int, int]]:
        """
        The attributes that can be set (8, 9, 11 to 15 of the CUDA driver), as they are now on the
        function or on its kernel, whichever is more; empty on the host.
        """

    def raise_attributes(self, attributes: Sequence[tuple[int, int]]) -> None:
        """
        Sets those that are more than what is set, and lowers none; to be called before nodes are added. On the
        host only an empty list is allowed.
        """

    @property
    def module(self) -> Module | None:
        """None for a function that somebody else loaded (borrow_template)."""

class Reservation:
    """A span of addresses that is ours; parts of it are backed by memory."""

    @property
    def address(self) -> int: ...
    @property
    def span(self) -> int: ...
    @property
    def mapped_bytes(self) -> int: ...
    def map(self, offset: int, size: int, exportable: bool = False) -> None:
        """
        Backs a range with zeroed memory. Both are multiples of the device's granularity.

        exportable (CUDA only): its handle can be passed to another process as a file descriptor.
        """

    def unmap(self, offset: int, size: int) -> None:
        """
        Waits for the device, then gives the memory back. The addresses stay ours.
        """

    def protect(self, offset: int, size: int, writable: bool) -> None: ...
    def write(self, offset: int, data: Buffer) -> None: ...
    def read(self, offset: int, size: int) -> bytes: ...
    def fill(self, offset: int, value: int, size: int) -> None: ...
    def write_async(self, offset: int, source: PinnedMemory, at: int, size: int, stream: Stream) -> None:
        """
        Copies `size` bytes from offset `at` of pinned memory, in stream order (CUDA only).

        While the copy is under way, closing or dropping either memory waits for it, and so does unmapping.
        UsageError: out of bounds, another device, a stream that is capturing.
        """

    def read_async(self, offset: int, target: PinnedMemory, at: int, size: int, stream: Stream) -> None:
        """
        The other way round; the bytes are there once the stream has come past the copy.
        """

    def view(self, offset: int, size: int) -> memoryview:
        """
        The memory itself (host only), writable unless protected. It holds the reservation.
        """

    def close(self) -> None:
        """Unmaps everything. An error while views are held."""

class Event:
    def synchronize(self) -> None: ...
    def query(self) -> bool: ...

class Stream:
    """
    Work in order. Work on two streams has no order unless an event gives it one.
    """

    def launch(
        self,
        function: Function,
        grid: tuple[int, int, int],
        params: Buffer,
        *,
        block: tuple[int, int, int] = (1, 1, 1),
        shared_bytes: int = 0,
    ) -> None:
        """Submits one kernel, or adds it as a node when the stream is capturing."""

    def memset(self, address: int, value: int, size: int) -> None: ...
    def memcpy(self, to: int, source: int, size: int) -> None: ...
    def record(self, event: Event) -> None: ...
    def wait(self, event: Event) -> None:
        """
        Later work of this stream starts after the work that the event's last record follows.
        """

    def synchronize(self) -> None: ...
    def query(self) -> bool:
        """Whether all its work is done."""

    def begin_capture(self) -> None:
        """From now on work becomes nodes of a new template."""

    def end_capture(self) -> Template: ...
    @property
    def capturing(self) -> bool: ...
    def close(self) -> None:
        """Ends the stream; work that it has still runs. Idempotent."""

class Node:
    """
    One node read back from the driver. Fields of other kinds are None or 0.
    """

    @property
    def kind(self) -> int: ...
    @property
    def function(self) -> Function | None: ...
    @property
    def grid(self) -> tuple[int, int, int]: ...
    @property
    def block(self) -> tuple[int, int, int]: ...
    @property
    def shared_bytes(self) -> int: ...
    @property
    def params(self) -> bytes: ...
    @property
    def form(self) -> int:
        """
        How the parameters reached the driver: 0 an array of pointers, 1 one buffer.
        """

    @property
    def attrs(self) -> list[tuple[int, bytes]]:
        """
        Attributes of a kernel node that differ from a plain node's: the driver's id, and 64 bytes: the
        members of the value, then zeros (core format M86). Ascending by id; empty on the host.
        """

    @property
    def address(self) -> int:
        """Destination of a memset or a memcpy."""

    @property
    def source(self) -> int: ...
    @property
    def value(self) -> int:
        """Of a memset: one element of it."""

    @property
    def element(self) -> int:
        """Of a memset: bytes of the value, 1, 2 or 4."""

    @property
    def width(self) -> int:
        """Of a memset: elements of a row."""

    @property
    def height(self) -> int:
        """Of a memset: rows."""

    @property
    def pitch(self) -> int:
        """Of a memset: bytes from row to row; 0 for one row."""

    @property
    def size(self) -> int:
        """
        Bytes of a memcpy; of a memset from its first byte to one past its last.
        """

class Template:
    """A graph as the driver holds it: nodes and edges in construction order."""

    @property
    def device(self) -> Device: ...
    @property
    def node_count(self) -> int: ...
    @property
    def edge_count(self) -> int: ...
    def add_kernel(
        self,
        function: Function,
        grid: tuple[int, int, int],
        params: Buffer,
        after: Sequence[int] = (),
        *,
        block: tuple[int, int, int] = (1, 1, 1),
        shared_bytes: int = 0,
        form: int = 0,
        attrs: Sequence[tuple[int, bytes]] = (),
        data: Sequence[bytes] = (),
    ) -> int:
        """
        form and attrs are those of Node; data has the eight bytes of each edge from `after`. CUDA only, all three.
        """

    def add_memset(
        self,
        address: int,
        value: int,
        size: int,
        after: Sequence[int] = (),
        *,
        element: int = 1,
        height: int = 1,
        pitch: int = 0,
    ) -> int:
        """
        size: bytes of a row; element: of the value, 1, 2 or 4; pitch: from row to row. On the host one row.
        """

    def add_memcpy(self, to: int, source: int, size: int, after: Sequence[int] = ()) -> int: ...
    def add_empty(self, after: Sequence[int] = ()) -> int: ...
    def nodes(self) -> list[Node]: ...
    def edges(self) -> list[tuple[int, int, bytes]]:
        """(from, to, data) sorted by (to, from)."""

    @property
    def top_level(self) -> list[int]:
        """
        For each node the number of the node of the graph itself that it is or is inside of: its own
        number, unless a borrowed graph has graphs inside, which are read flattened.
        """

    def instantiate(self, flags: int = 0) -> Executable: ...
    def close(self) -> None:
        """Idempotent. Later use is GraphStateError."""

class Executable:
    """An instantiated graph. Dropping it waits for its launches."""

    @property
    def flags(self) -> int:
        """
        Read back from the driver, but for USE_NODE_PRIORITY (8): CUDA drivers of release 580 accept it and
        do not report it, so it is remembered as instantiate() passed it to the driver.
        """

    @property
    def in_flight(self) -> int:
        """Launches submitted by launch() and not yet finished."""

    @property
    def device_bytes(self) -> int: ...
    @property
    def host_bytes(self) -> int: ...
    @property
    def handle(self) -> int:
        """
        Its CUgraphExec, for native code that launches by itself (docs/lifecycle.md): valid while this is
        open, for somebody who stops launching before it is closed or dropped. Once it was read, drain(),
        close() and dropping wait for the whole device. UsageError for an executable of the host device.
        """

    def launch(self, stream: Stream) -> None: ...
    def drain(self) -> None:
        """Returns when every launch submitted before is finished."""

    def close(self) -> None:
        """Drains first. Idempotent."""

class Device:
    @property
    def kind(self) -> str:
        """host or cuda"""

    @property
    def arch(self) -> str:
        """From the driver: x86-64-v3, sm_90."""

    @property
    def alive(self) -> bool:
        """False once its context is gone."""

    @property
    def granularity(self) -> int:
        """Bytes: what is mapped is a multiple of it."""

    @property
    def free_bytes(self) -> int | None:
        """
        What may still be mapped, or held by executables; None where the device states no limit.
        """

    def reserve(self, address: int, span: int) -> Reservation:
        """Exactly there, or AddressTakenError."""

    def load_module(self, image: SealedImage) -> Module: ...
    def create_stream(self) -> Stream: ...
    def create_event(self) -> Event: ...
    def create_template(self) -> Template: ...
    def synchronize(self) -> None: ...
    def counters(self) -> dict[str, int]:
        """What was created since the device was opened."""

    def close(self) -> None:
        """
        Waits for all work, then gives threads or the context back. Idempotent.
        """

def check_columns(
    columns: dict[str, Buffer],
    host: bool,
    functions: Sequence[tuple[int, Sequence[int]]],
    buffers: Sequence[tuple[int, int, bool]],
    graphs: Sequence[tuple[int, int, int]],
    chunks: int,
) -> None:
    """
    Checks what the columns of graphs.safetensors mean (docs/core-format.md, M70 to M85) against core.json:
    functions are (param_bytes, pointers), buffers (address, size, writable), graphs (nodes, edges, flags),
    chunks the rows of weights.chunks. FormatError names the rule that is broken.
    """

def build_template(device: Device, columns: dict[str, Buffer], graph: int, functions: Sequence[Function]) -> Template:
    """
    Rebuilds one graph of a checked catalogue, nodes and edges in stored order.
    """

def compare_template(template: Template, columns: dict[str, Buffer], graph: int, functions: Sequence[Function]) -> None:
    """
    Reads a template back from the driver; DriverError names the first node or edge that is not as stored.
    """

class HostDevice(Device):
    """
    The CPU as a device.

    workers: threads that run a launch, its stream's included; 0: one a processor. cpus: where they run; with one
    or more for each worker, each worker has its own. memory_limit: bytes that may be mapped or held by
    executables (OutOfMemoryError beyond), 0: none. spin_us: how long a worker spins before it sleeps. status_fd:
    a shared file of at least one page where the running launch and node of each worker stand and a fault is
    recorded.
    """

    def __init__(
        self, workers: int = 0, cpus: Sequence[int] = (), memory_limit: int = 0, spin_us: int = 50, status_fd: int = -1
    ) -> None: ...
    @property
    def workers(self) -> int: ...
    def inject_fault(self, launch: int, node: int) -> None:
        """The node of the launch-th launch from now on faults, as by SIGSEGV."""

def host_levels() -> list[str]:
    """Instruction-set levels this processor can run, best first."""

def read_fault(status: Buffer) -> dict[str, int] | None:
    """
    The fault recorded in a status page: signal, address, launch, node (-1: no graph's), worker.
    """

def read_running(status: Buffer) -> list[dict[str, int]]:
    """
    What the workers of a status page run, or ran when the process ended: worker, launch, node.
    """

class CudaDevice(Device):
    """
    A CUDA device through the lazily opened driver library (HELIOGRAPH_LIBCUDA names another one, for tests).
    """

    def __init__(self, index: int = 0) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def index(self) -> int:
        """Its ordinal."""

    @property
    def processors(self) -> int:
        """Multiprocessors."""

    @property
    def shared_optin(self) -> int:
        """Bytes of shared memory that a block may opt into."""

    @property
    def driver_version(self) -> int:
        """1000 * major + 10 * minor of the CUDA version."""

    def limits(self) -> dict[str, int]:
        """
        The limits of the context that can be set, by name (core format M53): bytes, or counts. Those that this
        device lacks are left out.
        """

    def set_limit(self, name: str, value: int) -> None:
        """
        Before the first module is loaded. UsageError for a name that no limit has.
        """

    def pointer_info(self, address: int) -> PointerInfo | None:
        """None where the driver knows no allocation."""

    def borrow_module(self, function: Function) -> Module:
        """
        The module of a function, also of one that somebody else loaded and keeps.
        """

    def borrow_template(self, graph: int) -> Template:
        """
        A CUgraph that somebody else owns: whoever calls keeps it for as long as the template and its executables
        live. Nodes and edges are those of the flattened graph; instantiate() takes the graph as it is; nothing
        can be added. CaptureError for what cannot be kept (docs/cuda-nodes.md).
        """

    def borrow_stream(self, stream: int) -> Stream:
        """
        A CUstream that somebody else owns; it is never destroyed here. Keep it until what was captured on it
        has been borrowed: until then it holds the functions that were launched through it.
        """

    def capture_info(self, stream: int) -> tuple[int, int]:
        """
        (CUgraph, nodes so far) of a stream that is capturing, (0, 0) of one that is not.
        """

    def relaxed(self) -> RelaxedCapture:
        """A context manager for allocations in a capture."""

    def pinned(self, size: int) -> PinnedMemory:
        """Page-locked memory of the host, in bytes."""

    def pool(self, reservation: Reservation, offset: int, span: int, name: str) -> PoolArena:
        """
        A pool over [offset, offset + span) of a reservation, of which nothing is mapped. At most 4 at a time.
        """

class PointerInfo:
    """What the CUDA driver knows of an address."""

    @property
    def kind(self) -> str:
        """device, pinned or managed"""

    @property
    def base(self) -> int:
        """Address of the allocation."""

    @property
    def size(self) -> int:
        """Bytes of the allocation."""

    @property
    def device(self) -> int:
        """Ordinal of its device."""

class RelaxedCapture:
    """
    A context manager: inside, this thread may make calls that would otherwise break a capture
    under way, such as mapping memory. Leave it in the thread that entered it.
    """

    def __enter__(self) -> RelaxedCapture: ...
    def __exit__(self, *args: object) -> None: ...

def paint_stack(byte: int) -> None:
    """
    Fills 96 KiB of this thread's stack below the caller: what is launched next has this byte wherever a struct
    that is passed by value has padding, or places that nobody sets.
    """

def cuda_fidelity() -> list[tuple[str, int, str, bool, int, str]]:
    """
    What of a CUDA graph is kept (docs/cuda-nodes.md): rows of aspect (node, attribute, edge, port, flag), id,
    name in the header, kept, bytes of a kept attribute's members, how it is kept or why it is refused.
    """

class PinnedMemory(Buffer):
    """
    Page-locked memory of the host: a writable buffer of bytes that a device copies from and to in stream order.
    """

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def address(self) -> int: ...
    def __len__(self) -> int: ...
    def close(self) -> None:
        """
        Frees it, once copies under way are done. Idempotent; an error while views are held.
        """

class PoolArena:
    """
    Memory of a reservation for PyTorch's pluggable allocator.

    The same calls in the same order get the same addresses: multiples of 512, the lowest free
    one first, 256 bytes or more apart. Memory is mapped when it is first needed, also in a
    stream capture, is not zeroed, and stays mapped and readable when it is freed. Keep the
    pool for as long as an allocator uses its functions. It ends with close() or with this object;
    in the second case its memory stays until PyTorch has given the last piece back.
    """

    @property
    def name(self) -> str: ...
    @property
    def address(self) -> int:
        """Where its span begins."""

    @property
    def span(self) -> int:
        """Bytes of addresses."""

    @property
    def alloc_address(self) -> int:
        """
        Address of its function void *(ssize_t bytes, int device, cudaStream_t). Null: see error.
        """

    @property
    def free_address(self) -> int:
        """
        Address of its function void (void *, ssize_t bytes, int device, cudaStream_t).
        """

    @property
    def peak(self) -> int:
        """Bytes that the span needed so far, padding included."""

    @property
    def mapped_bytes(self) -> int: ...
    def live(self) -> list[tuple[int, int]]:
        """(address, bytes) of what is out, ascending."""

    @property
    def error(self) -> str:
        """What the last call that failed found, or an empty string."""

    def check(self) -> None:
        """
        Raises that error, if there is one: OutOfMemoryError, DriverError, UsageError.
        """

    def close(self) -> None:
        """
        Nothing more is handed out, and its memory ends with the reservation, whoever still uses it. Pieces may
        still be freed. Idempotent.
        """

class CudaImages:
    """
    The kernel images that this process loads, as CUPTI hands them out, and which of them a kernel came from.

    Made before the first context of the process; at most one at a time. cupti: path of
    libcupti. The one that is mapped already is used whatever is named; else the path, else
    HELIOGRAPH_LIBCUPTI. CaptureError: no such library; another subscriber (Nsight, cuda-gdb,
    compute-sanitizer, a profiler).
    """

    def __init__(self, cupti: str = "") -> None: ...
    @property
    def cupti(self) -> str:
        """Path of the CUPTI library that is used."""

    def count(self) -> int:
        """Images loaded so far."""

    def image(self, number: int) -> bytes:
        """The image as the driver loaded it, for the exact architecture."""

    def library(self, number: int) -> str:
        """
        File name of the library whose code loaded it (libcublasLt.so.13, triton); empty where unknown.
        """

    def number(self, function: Function) -> int:
        """
        Number of the image that a function is in, by its handles. CaptureError if they lead to none, or to
        several that differ: a name is no proof.
        """

    def number_of(self, device: CudaDevice, kernel: int = 0, function: int = 0) -> int:
        """The same by the driver's handles, a CUkernel, a CUfunction or both."""

    def close(self) -> None:
        """Unsubscribes; what was collected stays. Idempotent."""
