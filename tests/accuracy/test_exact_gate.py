"""SmolLM2's core against the reference: the exact profile holds, and what breaks it is seen to break it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from logit_gate import Difference, compare
from plain_llama import Reference, prompts
from torch import Tensor

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load
from heliograph.runtime.program import Program
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Steps
from heliograph.runtime.text import Text

CONTROLS = 5  # prompts that a negative control runs on

Ids = list[list[int]]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """PyTorch's threads spin while they wait, which costs more than they give on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> Reference:
    return Reference(smollm2)


def decoded(program: Program, ids: Ids) -> list[Tensor]:
    """Logits after each token of each prompt, f32[T, V], teacher-forced through decode buckets."""
    found: list[list[Tensor]] = [[] for _ in ids]
    shape = program.bucket("decode", rows=len(ids))
    with Steps(program) as steps, program.view("decode", shape, "logits") as view:
        seats = [steps.seat(row, range(1 + 3 * row, 4 + 3 * row), Sampling()) for row in range(len(ids))]
        for position in range(len(ids[0])):
            now = [prompt[position] for prompt in ids]
            steps.decode(shape["rows"], seats, now, [position] * len(ids))
            logits = torch.frombuffer(bytearray(view), dtype=torch.float32).view(shape["rows"], -1)
            for row, positions in enumerate(found):
                positions.append(logits[row])
    return [torch.stack(positions) for positions in found]


@pytest.fixture(scope="module")
def ids_and_ours(smollm2_core: Path) -> tuple[Ids, list[Tensor]]:
    texts, count = prompts()
    with verify(smollm2_core, Policy.local()) as verified:
        text = Text.of(verified)
        ids = [text.encode(prompt)[:count] for prompt in texts.values()]
        text.close()
        with load(verified) as program:
            size = text_rows(program)
            ours = [logits for at in range(0, len(ids), size) for logits in decoded(program, ids[at : at + size])]
    assert len(ids) == 20
    assert {len(prompt) for prompt in ids} == {48}
    return ids, ours


def text_rows(program: Program) -> int:
    assert program.core.text is not None
    return program.core.text.concurrency


@pytest.fixture(scope="module")
def wanted(reference: Reference, ids_and_ours: tuple[Ids, list[Tensor]]) -> list[Tensor]:
    return [reference.logits(prompt) for prompt in ids_and_ours[0]]


def show(name: str, difference: Difference) -> None:
    print(f"\n{name}: {difference}")


@pytest.mark.timeout(1800)
def test_core_passes_the_exact_gate(wanted: list[Tensor], ids_and_ours: tuple[Ids, list[Tensor]]) -> None:
    difference = compare(zip(wanted, ids_and_ours[1], strict=True))
    show("core", difference)
    assert difference.positions == 960
    assert difference.exact
    assert difference.quantised


@pytest.mark.timeout(1800)
def test_chunks_of_a_prompt_give_the_logits_of_its_decoded_tokens(
    smollm2_core: Path, ids_and_ours: tuple[Ids, list[Tensor]]
) -> None:
    ids, ours = ids_and_ours
    with verify(smollm2_core, Policy.local()) as verified, load(verified) as program:
        steps = Steps(program)
        seat = steps.seat(0, [1, 2, 3], Sampling())
        for prompt, logits in zip(ids[:4], ours[:4], strict=True):
            for length in (1, 16, 17, 48):
                shape = program.bucket("prefill", tokens=length)
                steps.prefill(shape["tokens"], seat, prompt[:length], 0)
                found = torch.frombuffer(bytearray(program.read("prefill", shape, "logits")), dtype=torch.float32)
                assert torch.equal(found, logits[length - 1])
        steps.close()


def control(reference: Reference, wanted: Sequence[Tensor], ids: Ids) -> Difference:
    pairs = zip(wanted[:CONTROLS], ids[:CONTROLS], strict=True)
    return compare((logits, reference.logits(prompt)) for logits, prompt in pairs)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("dtype", "passes"), [(torch.float16, True), (torch.bfloat16, False)])
def test_f16_keys_and_values_pass_and_bf16_ones_fail(
    reference: Reference, wanted: list[Tensor], ids_and_ours: tuple[Ids, list[Tensor]], dtype: torch.dtype, passes: bool
) -> None:
    reference.rounded = dtype
    difference = control(reference, wanted, ids_and_ours[0])
    reference.rounded = None
    show(str(dtype), difference)
    assert difference.exact == passes


@pytest.mark.timeout(1800)
def test_weights_without_their_minima_fail_both_gates(
    reference: Reference, wanted: list[Tensor], ids_and_ours: tuple[Ids, list[Tensor]]
) -> None:
    kept = dict(reference.weights)
    reference.without_minima()
    difference = control(reference, wanted, ids_and_ours[0])
    reference.weights = kept
    show("Q4_1 without minima", difference)
    assert not difference.exact
    assert not difference.quantised
    assert control(reference, wanted, ids_and_ours[0]).exact
