"""What a CUDA capture does beside the GPU: lines of ops, kernels by content, left-over bytes, refusals, the factory."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from blake3 import blake3
from submitting import LINES, SUBMITTING, Submitting, line_of
from torch import Tensor, nn

from heliograph.capture import capture
from heliograph.capture.again import Again, second_capture
from heliograph.capture.classify import NodeCensus
from heliograph.capture.cuda.graphs import CudaGraph, attributed, literal_nodes, stored_nodes
from heliograph.capture.cuda.kernels import CudaKernels
from heliograph.capture.cuda.ops import OpCounter, OpSpan, draws
from heliograph.capture.cuda.pools import Live
from heliograph.capture.cuda.record import CudaCapture, _apart
from heliograph.capture.cuda.session import check_pytorch
from heliograph.capture.trail import Trail, run_model
from heliograph.capture.words import decode, encode
from heliograph.core.templates import EmptyNode, KernelNode
from heliograph.device.cubin import Variable
from heliograph.errors import CaptureError, UnsupportedOpError, UsageError

FIXED = {"TRITON_DISABLE_LINE_INFO": "1", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
SPEC = """
from torch import nn
from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec

def make(width="4"):
    model = nn.Linear(int(width), 2)
    entry = EntrySpec("step", ({"rows": 1},), {"x": TensorSpec(("rows", int(width)), "f32")}, lambda m, x: {"y": m(x)})
    return model.eval(), CaptureSpec("linear", (entry,))

def wrong():
    return 5

number = 7
"""


# ---- lines ---------------------------------------------------------------------------------------------------------
class Launching(nn.Module):
    """Every op launches one node; the model launches two more by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ReLU()
        self.nodes = 0

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x) + 1
        self.nodes += 2  # past the dispatcher
        return y * 2


class Nodes:
    """Counts as the driver would: it is asked before and after each op, and each op adds one."""

    def __init__(self, model: Launching) -> None:
        self._model = model
        self._asked = 0

    def __call__(self) -> int:
        self._asked += 1
        self._model.nodes += self._asked % 2 == 0
        return self._model.nodes


def test_each_node_has_the_op_and_line_that_launched_it() -> None:
    model = Launching()
    trail = Trail(model)
    counter = OpCounter(trail, Nodes(model))
    with torch.no_grad(), trail, counter:
        run_model(lambda: model(torch.ones(4)))
    counter.close()
    spans = counter.spans[-4:]  # behind the op that makes the input
    assert [(span.end - span.first, span.path) for span in spans] == [
        (1, "inner/relu.0"), (1, "add.0"), (2, "launch.0"), (1, "mul.0")
    ]  # fmt: skip
    assert all(before.end == after.first for before, after in pairwise(spans))
    first, last = (line_of(Launching.forward, behind) for behind in (1, 3))
    assert [span.origin for span in spans] == [
        f"inner/relu.0 {first}", f"add.0 {first}", f"launch.0 between op add {first} and op mul {last}", f"mul.0 {last}"
    ]  # fmt: skip


class Drawing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.rand(4)


def test_an_op_that_draws_random_numbers_is_refused_by_name_and_line() -> None:
    """A20: its seed would be frozen."""
    model = Drawing()
    trail = Trail(model)
    with torch.no_grad(), trail, OpCounter(trail, lambda: 0), pytest.raises(UnsupportedOpError) as refused:
        model(torch.ones(4))
    assert "aten.rand.default at " in refused.value.found
    assert "test_cuda_capture.py:" in refused.value.found


@pytest.mark.parametrize(
    ("op", "given", "drawn"),
    [
        ("rand", ([4],), True),
        ("normal_", (), True),
        ("native_dropout", (None, 0.5, True), True),
        ("native_dropout", (None, 0.5, False), False),
        ("_scaled_dot_product_flash_attention", (None, None, None), False),
        ("_scaled_dot_product_flash_attention", (None, None, None, 0.0), False),
        ("_scaled_dot_product_cudnn_attention", (None, None, None, None, False, 0.1), True),
        ("_scaled_dot_product_cudnn_attention", (None, None, None, None, False, 0.0), False),
        ("mm", (), False),
    ],
)
def test_what_draws_random_numbers(op: str, given: tuple[object, ...], drawn: bool) -> None:
    assert draws(getattr(torch.ops.aten, op).default, given, {}) is drawn


def test_launches_of_a_custom_op_are_its_own_and_those_of_the_model_are_between_two_ops() -> None:
    nodes: list[str] = []
    places = ("before", "between", "behind")
    model = Submitting(**{place: partial(nodes.append, place) for place in places})
    SUBMITTING[:] = [partial(nodes.extend, ("one", "two")), partial(nodes.append, "three")]
    x = torch.ones(4)
    trail = Trail(model)
    counter = OpCounter(trail, lambda: len(nodes))
    with torch.no_grad(), trail, counter:
        run_model(lambda: model(x))
    counter.close()
    first, second = LINES
    assert [(span.end - span.first, span.origin) for span in counter.spans] == [
        (1, f"launch.0 between the beginning and op submit {first}"),
        (2, f"submit.0 {first}"),
        (1, f"launch.1 between op submit {first} and op submit {second}"),
        (1, f"submit.1 {second}"),
        (1, f"launch.2 between op submit {second} and the end"),
    ]


def test_a_node_belongs_to_the_span_that_holds_it() -> None:
    spans = (OpSpan(0, 2, "a", "a line", ()), OpSpan(3, 4, "b", "b line", ()))
    captured = CudaGraph(None, None, spans, (None,) * 4, (0, 1, 2, 3))  # type: ignore[arg-type]
    assert [captured.origin(node) for node in range(4)] == ["a line", "a line", "-", "b line"]
    nodes = [EmptyNode(captured.origin(node)) for node in range(4)]
    assert attributed([nodes, nodes[:1]]) == "lines: 4 of 5 nodes have theirs"


# ---- kernels -------------------------------------------------------------------------------------------------------
@dataclass
class FakeFunction:
    name: str
    image: int
    attributes: list[tuple[int, int]] = field(default_factory=list)
    param_bytes: int = 16


class FakeImages:
    def __init__(self, *data: bytes) -> None:
        self.data = data

    def number(self, function: FakeFunction) -> int:
        return function.image

    def image(self, number: int) -> bytes:
        return self.data[number]

    def library(self, number: int) -> str:
        return f"lib{number}.so"


def numbered(*data: bytes) -> CudaKernels:
    return CudaKernels(FakeImages(*data), None)  # type: ignore[arg-type]


def test_equal_images_are_one_and_equal_names_in_others_are_not() -> None:
    kernels = numbered(b"one", b"one", b"two")
    functions = [FakeFunction("f", 0), FakeFunction("f", 1), FakeFunction("f", 2), FakeFunction("g", 2)]
    numbers = [kernels.number(function, 0) for function in functions]  # type: ignore[arg-type]
    assert numbers == [0, 0, 1, 2]
    assert kernels.name(0)[0] != kernels.name(1)[0]
    assert kernels.name(1)[0] == kernels.name(2)[0]


def test_a_function_is_allowed_the_shared_memory_that_its_nodes_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.capture.cuda.kernels.variables", lambda data: NoVariables)
    kernels = numbered(b"one")
    small, large = FakeFunction("f", 0, [(8, 49152), (9, -1)]), FakeFunction("g", 0, [(8, 1000)])
    for function, shared in ((small, 100), (small, 65536), (large, 0)):
        kernels.number(function, shared)  # type: ignore[arg-type]
    found = kernels.kernels()
    assert [function.attributes for function in found.functions] == [((8, 65536), (9, -1)), ((8, 1000),)]
    assert [image.origin for image in found.images] == ["lib0.so"]


class NoVariables:
    named: tuple[Variable, ...] = ()
    unnamed: tuple[tuple[str, int], ...] = ()


def test_an_image_is_read_once_however_many_variables_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are large, and assert texts are hundreds of variables."""
    read: list[bytes] = []

    class Many(NoVariables):
        named = tuple(Variable(f"v{number}", ".nv.global", 8 * number, 8) for number in range(100))

    def parse(data: bytes) -> type[Many]:
        read.append(data)
        return Many

    def hashed(data: bytes) -> blake3:
        read.append(data)
        return blake3(data)

    monkeypatch.setattr("heliograph.capture.cuda.kernels.variables", parse)
    monkeypatch.setattr("heliograph.capture.cuda.kernels.blake3", hashed)
    module = SimpleNamespace(global_address=lambda name: (8 * int(name[1:]), 8), read_global=lambda name: b"content")
    kernels = CudaKernels(FakeImages(b"one"), SimpleNamespace(borrow_module=lambda function: module))  # type: ignore[arg-type]
    kernels.number(FakeFunction("f", 0), 0)  # type: ignore[arg-type]
    family = kernels.kernels().images[0].family
    assert kernels.variable(8 * 99) == f"global v99 of {family}"
    assert kernels.variable(8 * 100) is None
    assert read == [b"one"] * 2


def test_variables_without_names_stop_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unnamed(NoVariables):
        unnamed = ((".nv.global", 4096),)

    monkeypatch.setattr("heliograph.capture.cuda.kernels.variables", lambda data: Unnamed)
    kernels = numbered(b"one")
    kernels.number(FakeFunction("f", 0), 0)  # type: ignore[arg-type]
    with pytest.raises(CaptureError, match=r"4096 bytes of \.nv\.global"):
        kernels.kernels()


# ---- nodes ---------------------------------------------------------------------------------------------------------
@dataclass
class FakeNode:
    params: bytes
    kind: int = 0
    function: FakeFunction = field(default_factory=lambda: FakeFunction("f", 0))
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (32, 1, 1)
    shared_bytes: int = 0
    form: int = 1
    attrs: tuple[tuple[int, bytes], ...] = ()


def test_left_over_bytes_become_zeros_and_are_explored_as_captured() -> None:
    nodes = (FakeNode(bytes(range(1, 17))), FakeNode(bytes(range(16))))
    captured = CudaGraph(None, None, (), nodes, (0, 1))  # type: ignore[arg-type]
    kernels = numbered(b"one")
    stored = stored_nodes(captured, (NodeCensus(zeroed=((4, 3),)), NodeCensus()), kernels)
    assert isinstance(stored[0], KernelNode)
    assert stored[0].params == bytes([1, 2, 3, 4, 0, 0, 0, *range(8, 17)])
    assert stored[0].form == 1
    literal = literal_nodes(stored, captured)
    assert literal is not None
    assert [node.params for node in literal if isinstance(node, KernelNode)] == [node.params for node in nodes]
    kept = stored_nodes(captured, (NodeCensus(), NodeCensus()), kernels)
    assert literal_nodes(kept, captured) is None


def test_blocks_with_too_little_between_them_are_one_buffer() -> None:
    blocks = (Live(0, 512), Live(512, 100), Live(1024, 10), Live(4096, 5))
    assert _apart(blocks) == [(0, 612), (1024, 1034), (4096, 4101)]


# ---- refusals ------------------------------------------------------------------------------------------------------
def test_a_bucket_has_run_before_the_inputs_that_it_shares_with_the_next_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Inputs are written on the default stream, which does not wait for the one that models run on."""
    log: list[str] = []
    walk = SimpleNamespace(
        prepare=lambda entry, bucket: log.append("prepare"), run=lambda entry, bucket: log.append("run"),
        clear=lambda: None, fill_weights=lambda placed: None,
    )  # fmt: skip
    pools = {name: SimpleNamespace(name=name, used=nullcontext, live=tuple) for name in ("persistent", "scratch")}
    entry = SimpleNamespace(name="step", buckets=({"rows": 1}, {"rows": 2}))
    capture = object.__new__(CudaCapture)
    vars(capture).update(
        pools, walk=walk, spec=SimpleNamespace(entries=(entry,)), buckets=[(entry, each) for each in entry.buckets],
        tell=lambda *told: None, stream=SimpleNamespace(synchronize=lambda: log.append("synchronize")), _placed={},
        weights=(),
    )  # fmt: skip
    for step in ("_name_lasting", "_keep"):
        monkeypatch.setattr(CudaCapture, step, lambda self: None)
    capture._warm()
    assert log.count("prepare") == 3
    for at, said in enumerate(log):
        assert said != "run" or log[at + 1] == "synchronize", log


def test_all_that_is_kept_by_value_is_handed_to_the_census() -> None:
    capture = object.__new__(CudaCapture)
    kept = {"persistent": ((256, b"buffer"),), "scratch": ((1 << 33, b"library"),)}
    vars(capture).update(kept=kept, graphs=[], spec=SimpleNamespace(slot=2), scratch=SimpleNamespace(size=0))
    assert decode(encode(capture.words())).content == kept


def test_a_pytorch_for_another_cuda_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for built in (None, "12.8"):
        monkeypatch.setattr(torch.version, "cuda", built)
        with pytest.raises(CaptureError, match="CUDA"):
            check_pytorch(FIXED)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    check_pytorch(FIXED)


def test_a_process_that_was_on_the_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(CaptureError, match="initialised") as error:
        check_pytorch(FIXED)
    assert "fresh process" in error.value.hint  # for a second capture too


def test_settings_of_the_allocator_and_a_free_environment_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with pytest.raises(UsageError, match="PYTORCH_ALLOC_CONF"):
        check_pytorch(FIXED | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"})
    with pytest.raises(UsageError, match="TRITON_KERNEL_OVERRIDE"):
        check_pytorch(FIXED | {"TRITON_KERNEL_OVERRIDE": "1"})
    for missing in FIXED:
        with pytest.raises(UsageError, match=missing):
            check_pytorch({name: value for name, value in FIXED.items() if name != missing})


def test_a_capture_for_cuda_without_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SPEC)
    model, spec = Again(f"{tmp_path / 'model.py'}:make").make()
    with pytest.raises(CaptureError, match="no CUDA"):
        capture(model, spec, cores=tmp_path / "cores", device="cuda")
    assert not (tmp_path / "cores").exists()


# ---- the factory ---------------------------------------------------------------------------------------------------
def test_a_factory_makes_model_and_spec(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SPEC)
    model, spec = Again(f"{tmp_path / 'model.py'}:make", ("8",)).make()
    assert isinstance(model, nn.Linear)
    assert spec.model == "linear"


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("{0}/model.py", "no function in it"),
        ("{0}/other.py:make", "no such file"),
        ("{0}/model.py:number", "no function 'number'"),
        ("{0}/model.py:missing", "no function 'missing'"),
        ("{0}/model.py:wrong", "a int"),
        ("no.such.module:make", "No module named"),
    ],
)
def test_what_is_no_factory_is_named(tmp_path: Path, factory: str, said: str) -> None:
    (tmp_path / "model.py").write_text(SPEC)
    with pytest.raises(UsageError, match=said):
        Again(factory.format(tmp_path)).make()


def test_a_second_capture_that_fails_says_why(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SPEC)
    with pytest.raises(CaptureError, match="no CUDA"):
        second_capture(Again(f"{tmp_path / 'model.py'}:make"), 0)


def test_the_command_captures_what_a_function_makes(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SPEC)
    command = [sys.executable, "-m", "heliograph", "capture", f"{tmp_path / 'model.py'}:make", "--json"]
    ended = subprocess.run(
        [*command, "--cores", str(tmp_path / "cores"), "--name", "linear"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "cores" / "linear" / "core.json").is_file()
