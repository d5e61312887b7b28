"""SmolLM2 on CUDA, weights in bf16: near PyTorch in f32 and in bf16 on the GPU, and near the host device's core. Its
own core gives the bits of the model run by PyTorch, in whatever bucket."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from logit_gate import CUDA_MARGIN, CUDA_MEAN, Difference, compare
from plain_llama import Reference, prompts
from torch import Tensor

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.models.llama import Llama, Places
from heliograph.runtime.load import load
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Steps
from heliograph.runtime.text import Text

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(1800)]
BLOCK = 16
Ids = list[list[int]]


class Bf16Reference(Reference):
    """The same in bf16 throughout, as PyTorch does it on the GPU; angles are f32, and so are logits: two of 32 and more
    would be equal in bf16 or 0.25 apart, which is the whole margin of the gate."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.weights = {name: weight.to("cuda", torch.bfloat16) for name, weight in self.weights.items()}
        self.head = self.weights.get("output.weight", self.weights["token_embd.weight"])

    def rotated(self, x: Tensor) -> Tensor:
        return super().rotated(x.float()).to(x.dtype)

    def attention(self, x: Tensor, layer: int, future: Tensor) -> Tensor:
        return super().attention(x, layer, future.to(x.dtype))

    def projected(self, x: Tensor) -> Tensor:
        return x.float() @ self.head.float().T

    def logits(self, ids: Sequence[int]) -> Tensor:
        with torch.device("cuda"):
            return super().logits(ids).cpu()


@pytest.fixture(scope="module")
def ids(smollm2_core: Path) -> Ids:
    texts, count = prompts()
    with verify(smollm2_core, Policy.local()) as verified:
        text = Text.of(verified)
        found = [text.encode(prompt)[:count] for prompt in texts.values()]
        text.close()
    return found


@pytest.fixture(scope="module")
def model(smollm2: Path) -> Llama:
    from heliograph.models.load_cuda import load_for_cuda

    return load_for_cuda(smollm2).model.to("cuda")


@pytest.fixture(scope="module")
def ours(model: Llama, ids: Ids) -> list[Tensor]:
    return [logits(model, prompt) for prompt in ids]


@torch.no_grad()
def logits(model: Llama, ids: Sequence[int]) -> Tensor:
    """f32[T, V] after each of T tokens, in one chunk."""
    config, blocks = model.config, -(-len(ids) // BLOCK)
    kv = torch.zeros(
        1 + blocks, config.layers, 2, config.kv_heads, BLOCK, config.head_width, dtype=torch.float16, device="cuda"
    )
    tables = torch.arange(1, 1 + blocks, dtype=torch.int32, device="cuda")[None]
    rows = torch.zeros(len(ids), dtype=torch.int32, device="cuda")
    positions = torch.arange(len(ids), dtype=torch.int32, device="cuda")
    x = model(torch.tensor(ids, dtype=torch.int32, device="cuda"), Places(positions, rows, tables), kv)
    return model.logits(x).cpu()


def show(name: str, difference: Difference) -> None:
    print(f"\n{name}: {difference}")


def test_logits_pass_the_cuda_gate_against_pytorch_in_f32(smollm2: Path, ids: Ids, ours: list[Tensor]) -> None:
    reference = Reference(smollm2)
    difference = compare((reference.logits(prompt), found) for prompt, found in zip(ids, ours, strict=True))
    show("CUDA against PyTorch f32", difference)
    assert difference.positions == 960
    assert difference.cuda


def test_logits_pass_the_cuda_gate_against_pytorch_in_bf16(smollm2: Path, ids: Ids, ours: list[Tensor]) -> None:
    reference = Bf16Reference(smollm2)
    difference = compare((reference.logits(prompt), found) for prompt, found in zip(ids, ours, strict=True))
    show("CUDA against PyTorch bf16", difference)
    assert difference.cuda


def test_logits_pass_the_cuda_gate_against_the_host_device(smollm2_core: Path, ids: Ids, ours: list[Tensor]) -> None:
    with verify(smollm2_core, Policy.local()) as verified, load(verified) as program, Steps(program) as steps:
        seat, shape = steps.seat(0, range(1, 5), Sampling()), program.bucket("decode", rows=1)
        pairs = []
        for prompt, found in zip(ids, ours, strict=True):
            wanted = []
            for position, token in enumerate(prompt):
                steps.decode(shape["rows"], [seat], [token], [position])
                wanted.append(torch.frombuffer(bytearray(program.read("decode", shape, "logits")), dtype=torch.float32))
            pairs.append((torch.stack(wanted), found))
    difference = compare(pairs)
    show("CUDA against the host device", difference)
    assert difference.cuda


@pytest.fixture(scope="module")
def cuda_core(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cores = tmp_path_factory.mktemp("cores")
    heliograph = [sys.executable, "-m", "heliograph"]
    subprocess.run(
        [*heliograph, "capture", str(smollm2), "--target", "cuda", "--cores", str(cores), "--name", "cuda"], check=True
    )
    return cores / "cuda"


@pytest.mark.parametrize("rows", [1, 5, 16])
def test_core_gives_the_bits_of_the_model(cuda_core: Path, ids: Ids, ours: list[Tensor], rows: int) -> None:
    """The model took each prompt as one chunk, uncaptured; the core takes them token by token, several at once."""
    with verify(cuda_core, Policy.local()) as verified, load(verified) as program, Steps(program) as steps:
        shape = program.bucket("decode", rows=rows)
        seats = [steps.seat(row, range(1 + 3 * row, 4 + 3 * row), Sampling()) for row in range(rows)]
        for position in range(len(ids[0])):
            steps.decode(shape["rows"], seats, [prompt[position] for prompt in ids[:rows]], [position] * rows)
            data = bytearray(program.read("decode", shape, "logits"))
            found = torch.frombuffer(data, dtype=torch.float32).view(shape["rows"], -1)
            for row in range(rows):
                assert torch.equal(found[row], ours[row][position])


def test_interleaved_rope_taken_for_the_other_fails_the_gate(model: Llama, ids: Ids, ours: list[Tensor]) -> None:
    """A control: the gate sees a wrong model."""
    wrong = copy.deepcopy(model)
    for layer in wrong.layers:
        layer.attention.interleaved = False
    difference = compare(zip(ours[:3], [logits(wrong, prompt) for prompt in ids[:3]], strict=True))
    show("wrong rope", difference)
    assert not difference.cuda
    assert difference.mean > CUDA_MEAN or difference.overturned > CUDA_MARGIN


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch's threads spin while they wait, which costs more than they give on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
