"""Models with nodes that ordinary ones do not have, and models with planted faults."""

from __future__ import annotations

import ctypes
import random
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Thread

import torch
from torch import Tensor, nn

from gpu.kernels import Module, allow_shared, call, compiled, launch
from heliograph.capture import CaptureSpec, EntrySpec, StateSpec, TensorSpec

Made = tuple[nn.Module, CaptureSpec]
ROWS = ({"rows": 1}, {"rows": 4})
WIDTH = 64
UNCAPTURED = 1 + len(ROWS)  # runs of a model before its first capture


class Odd(nn.Module):
    """``body(x, out)`` launches something that reads x and writes all of out, both f32[rows, 64]."""

    def __init__(self, body: Callable[[Tensor, Tensor], None]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        out = torch.empty_like(x)
        self.body(x, out)
        return out * 2


def _spec(model: nn.Module) -> Made:
    entry = EntrySpec("step", ROWS, {"x": TensorSpec(("rows", WIDTH), "f32")}, lambda model, x: {"out": model(x)})
    return model, CaptureSpec("odd", (entry,))


def _pointer(tensor: Tensor) -> bytes:
    return struct.pack("<Q", tensor.data_ptr())


# ---- signatures ----------------------------------------------------------------------------------------------------
TYPES = {  # C type: (declaration, size, alignment)
    "unsigned char": ("", 1, 1),
    "unsigned short": ("", 2, 2),
    "unsigned": ("", 4, 4),
    "unsigned long long": ("", 8, 8),
    "S6": ("struct S6 { unsigned short a[3]; };", 6, 2),
    "S12": ("struct S12 { unsigned a[3]; };", 12, 4),
    "S128": ("struct S128 { unsigned long long a[16]; };", 128, 8),
}


@dataclass(frozen=True)
class Signature:
    name: str
    types: tuple[str, ...]

    @property
    def source(self) -> str:
        """Copies each argument, byte by byte, behind the one before."""
        arguments = "".join(f", {kind} a{i}" for i, kind in enumerate(self.types))
        copies = "".join(f"copy(out, at, &a{i}, sizeof a{i}); " for i in range(len(self.types)))
        return f'extern "C" __global__ void {self.name}(unsigned char *out{arguments}) {{ unsigned at = 0; {copies}}}'

    @property
    def size(self) -> int:
        return sum(TYPES[kind][1] for kind in self.types)

    def values(self, seed: int) -> list[bytes]:
        draw = random.Random(f"{self.name} {seed}")
        return [draw.randbytes(TYPES[kind][1]) for kind in self.types]

    def packed(self, out: bytes, values: list[bytes]) -> bytes:
        """One buffer, each argument at its alignment."""
        buffer = bytearray(out)
        for kind, value in zip(self.types, values, strict=True):
            buffer += bytes(-len(buffer) % TYPES[kind][2]) + value
        return bytes(buffer)


def signatures(count: int, seed: int = 1) -> list[Signature]:
    draw = random.Random(seed)
    return [
        Signature(f"k{i}", tuple(draw.choice(list(TYPES)) for _ in range(draw.randrange(0, 9)))) for i in range(count)
    ]


class Signatures(nn.Module):
    """Every kernel in both forms; ``out`` has what each was given, ``empty`` that one without parameters ran."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.kernels = signatures(count)
        self.module: Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.module is None:
            helper = (
                "__device__ void copy(unsigned char *out, unsigned &at, const void *from, unsigned size) {"
                " for (unsigned i = 0; i < size; ++i) out[at++] = ((const unsigned char *)from)[i]; }"
            )
            nothing = 'extern "C" __global__ void nothing() {}'
            declared = [declaration for declaration, _, _ in TYPES.values()]
            source = "\n".join([*declared, helper, nothing, *(kernel.source for kernel in self.kernels)])
            self.module = Module(compiled(source))
        outs = []
        launch(self.module.function("nothing"), [])
        for kernel in self.kernels:
            for form in (0, 1):
                out = torch.zeros(max(1, kernel.size), dtype=torch.uint8, device=x.device)
                values = kernel.values(form)
                function = self.module.function(kernel.name)
                if form:
                    launch(function, [], buffer=kernel.packed(_pointer(out), values))
                else:
                    launch(function, [_pointer(out), *values])
                outs.append(out)
        return torch.cat(outs)


def all_signatures(count: str = "200") -> Made:
    model = Signatures(int(count))
    entry = EntrySpec("step", ({},), {"x": TensorSpec((4,), "f32")}, lambda model, x: {"out": model(x), "echo": x * 2})
    return model, CaptureSpec("signatures", (entry,))


def expected_bytes(count: int) -> bytes:
    """What the output of ``all_signatures`` has to be."""
    outs = [b"".join(kernel.values(form)) or b"\0" for kernel in signatures(count) for form in (0, 1)]
    return b"".join(outs)


# ---- one name in several images ------------------------------------------------------------------------------------
def _affine(factor: int, added: int, linkage: str) -> str:
    """Applied one after the other, no two of these commute."""
    return (
        f"{linkage} __global__ void affine(const float *x, float *out, int n) {{"
        f" for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = {factor}.0f * x[i] + {added}.0f; }}"
    )


# By factory: the function's name, and the source of each image that has one of that name, in the order of launches.
NAMESAKES = {
    "same_name": ("affine", tuple(_affine(*each, 'extern "C"') for each in ((2, 3), (3, 5), (5, 7)))),
    "same_mangled": ("_Z6affinePKfPfi", tuple(_affine(*each, "static") for each in ((2, 3), (3, 5)))),
}


def _namesakes(which: str) -> Made:
    name, sources = NAMESAKES[which]
    modules: list[Module] = []

    def body(x: Tensor, out: Tensor) -> None:
        if not modules:
            modules.extend(Module(compiled(source)) for source in sources)
        source = x
        for module in modules:
            params = [_pointer(source), _pointer(out), struct.pack("<i", x.numel())]
            launch(module.function(name), params, block=32)
            source = out

    return _spec(Odd(body))


def same_name() -> Made:
    """One kernel name in three images."""
    return _namesakes("same_name")


def same_mangled() -> Made:
    """Static functions of one mangled name in two images."""
    return _namesakes("same_mangled")


# ---- shared memory -------------------------------------------------------------------------------------------------
def dynamic_shared() -> Made:
    """64 KiB of dynamic shared memory that the kernel fills and checks."""
    source = """
    extern "C" __global__ void through(const float *x, float *out, int n) {
      extern __shared__ float store[];
      for (int i = threadIdx.x; i < 16384; i += blockDim.x) store[i] = x[i % n] + i;
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = store[16384 - n + i] - (16384 - n + i);
    }"""
    found: list[Module] = []

    def body(x: Tensor, out: Tensor) -> None:
        if not found:
            found.append(Module(compiled(source)))
            allow_shared(found[0].function("through"), 65536)
        params = [_pointer(x), _pointer(out), struct.pack("<i", x.numel())]
        launch(found[0].function("through"), params, block=128, shared=65536)

    return _spec(Odd(body))


# ---- pointers where one does not expect them -----------------------------------------------------------------------
_STRUCT = """
struct Pair { int n; const float *x; unsigned tag; float *out; unsigned long long looks; };
extern "C" __global__ void pair(Pair p, unsigned long long *seen) {
  for (int i = threadIdx.x; i < p.n; i += blockDim.x) p.out[i] = p.x[i] + 1.0f;
  if (threadIdx.x == 0 && seen) *seen = p.looks;
}"""
LOOKS = 0x1001_0000_1000  # an address of slot 0's weights


def in_struct() -> Made:
    """Two pointers inside a by-value struct, beside an integer that looks like an address of ours."""
    found: list[Module] = []

    def body(x: Tensor, out: Tensor) -> None:
        if not found:
            found.append(Module(compiled(_STRUCT)))
        value = struct.pack("<i4xQI4xQQ", x.numel(), x.data_ptr(), 7, out.data_ptr(), LOOKS)
        launch(found[0].function("pair"), [value, struct.pack("<Q", 0)], block=32)

    return _spec(Odd(body))


def gone() -> Made:
    """A pointer to memory that a kernel reads, and that was given back to the driver after the last uncaptured run."""
    source = """
    extern "C" __global__ void reads(const float *x, float *out, int n, const float *table) {
      for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = x[i] + table[i % 64];
    }"""
    found: list[Module] = []
    table = ctypes.c_uint64()
    runs: list[None] = []

    def body(x: Tensor, out: Tensor) -> None:
        if not found:
            found.append(Module(compiled(source)))
            size = ctypes.c_size_t(64 << 20)  # too large to share a piece of memory with anything
            call("cuMemAlloc_v2", ctypes.byref(table), size)
            call("cuMemsetD8_v2", table, ctypes.c_ubyte(0), size)
        params = [_pointer(x), _pointer(out), struct.pack("<i", x.numel()), struct.pack("<Q", table.value)]
        launch(found[0].function("reads"), params, block=32)
        runs.append(None)
        if len(runs) == UNCAPTURED:
            torch.cuda.synchronize()
            call("cuMemFree_v2", table)

    return _spec(Odd(body))


def _given(make: Callable[[], int]) -> Made:
    """A pointer to memory that is made before the first launch, as a parameter."""
    found: list[Module] = []
    where: list[int] = []

    def body(x: Tensor, out: Tensor) -> None:
        if not found:
            found.append(Module(compiled(_STRUCT)))
            where.append(make())
        value = struct.pack("<i4xQI4xQQ", x.numel(), x.data_ptr(), 7, out.data_ptr(), 0)
        launch(found[0].function("pair"), [value, struct.pack("<Q", where[0])], block=32)

    return _spec(Odd(body))


def freed() -> Made:
    """A pointer to memory that another thread took from PyTorch, and gave back: PyTorch's cache has it."""
    stale: list[int] = []

    def take() -> None:
        stale.append(torch.empty(1 << 20, device="cuda").data_ptr())

    def make() -> int:
        other = Thread(target=take)
        other.start()
        other.join()
        return stale[0]

    return _given(make)


def pinned() -> Made:
    """A pointer to pinned memory of the host."""
    kept: list[Tensor] = []

    def make() -> int:
        kept.append(torch.zeros(64, dtype=torch.int64).pin_memory())
        return kept[0].data_ptr()

    return _given(make)


def managed() -> Made:
    """A pointer to memory that the driver moves between host and device."""
    attach_global = ctypes.c_uint(1)

    def make() -> int:
        address = ctypes.c_uint64()
        call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(2 << 20), attach_global)
        return address.value

    return _given(make)


def module_global() -> Made:
    """A pointer to a variable of a kernel image, as a parameter."""
    source = _STRUCT + "\n__device__ unsigned long long last;"
    found: list[Module] = []

    def body(x: Tensor, out: Tensor) -> None:
        if not found:
            found.append(Module(compiled(source, "-rdc=false")))
        value = struct.pack("<i4xQI4xQQ", x.numel(), x.data_ptr(), 7, out.data_ptr(), 0)
        launch(found[0].function("pair"), [value, struct.pack("<Q", found[0].address("last"))], block=32)

    return _spec(Odd(body))


def variables() -> Made:
    """A kernel that reads a ``__device__`` table and a ``__constant__`` factor, which the host had set."""
    source = """
    __device__ float table[64]; __constant__ float factor = 3.0f; __device__ int runs;
    extern "C" __global__ void fill(float v) { table[threadIdx.x] = v * threadIdx.x; }
    extern "C" __global__ void use(const float *x, float *out, int n) {
      for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = x[i] * factor + table[i % 64];
    }"""
    found: list[Module] = []

    def body(x: Tensor, out: Tensor) -> None:
        if not found:
            found.append(Module(compiled(source)))
            launch(found[0].function("fill"), [struct.pack("<f", 0.5)], block=64)
        params = [_pointer(x), _pointer(out), struct.pack("<i", x.numel())]
        launch(found[0].function("use"), params, block=32)

    return _spec(Odd(body))


LOCK = struct.pack("<2i", 0, 7)  # the words of ``lock`` as they have to be before the first launch


def lock() -> Made:
    """Blocks that count themselves in a word that must start at zero, and leave it so. The word behind it is added."""
    source = """
    extern "C" __global__ void last(const float *x, float *out, int n, unsigned *count) {
      if (threadIdx.x) return;
      if (atomicAdd(count, 1) == gridDim.x - 1) {
        for (int i = 0; i < n; ++i) out[i] = x[i] + count[1];
        *count = 0;
      }
    }"""
    found: list[object] = []

    def body(x: Tensor, out: Tensor) -> None:
        if not found:
            words = torch.tensor(struct.unpack("<2i", LOCK), dtype=torch.int32)
            found.extend((Module(compiled(source)), words.to(x.device)))
        module, count = found
        assert isinstance(module, Module)
        assert isinstance(count, Tensor)
        params = [_pointer(x), _pointer(out), struct.pack("<i", x.numel()), _pointer(count)]
        launch(module.function("last"), params, grid=4, block=32)

    return _spec(Odd(body))


def reads_scratch() -> Made:
    """A result that depends on memory which nobody wrote."""

    def body(x: Tensor, out: Tensor) -> None:
        out.copy_(x)
        out.add_(torch.empty(WIDTH, device=x.device).nan_to_num_().clamp_(-1, 1))

    return _spec(Odd(body))


class Frozen(nn.Module):
    """Counts its runs in Python: a graph has what the number was when it was captured."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        return x * self.runs


def frozen() -> Made:
    return _spec(Frozen())


class Static(nn.Module):
    """Tensor of the default pool, made before the capture by another thread's allocator settings."""

    def __init__(self) -> None:
        super().__init__()
        self.step = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, total: Tensor) -> Mapping[str, Tensor]:
        total.add_(x.sum(0))
        return {"out": self.step(x) + total}


def stateful() -> Made:
    torch.manual_seed(3)
    entry = EntrySpec("step", ROWS, {"x": TensorSpec(("rows", WIDTH), "f32")}, lambda m, x, total: m(x, total))
    return Static(), CaptureSpec("static", (entry,), state={"total": StateSpec((WIDTH,), "f32")})
