"""The decoders of the examples: chunks and single steps agree, other rows change nothing, cores give their logits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import decoder
import hf_llama

from heliograph.capture import CaptureSpec, capture
from heliograph.capture.storages import TORCH_DTYPES
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load

MAKERS: Mapping[str, tuple[ModuleType, Callable[[], tuple[nn.Module, CaptureSpec]]]] = {
    "decoder": (decoder, lambda: decoder.make("small", "f32")),
    "transformers": (hf_llama, lambda: hf_llama.make("f32")),
}
IDS = [(7 * i * i + 3 * i) % 1000 for i in range(20)]


def i64(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def state(spec: CaptureSpec) -> dict[str, Tensor]:
    return {name: torch.zeros(given.shape, dtype=TORCH_DTYPES[given.dtype]) for name, given in spec.state.items()}


@torch.no_grad()
def decoded(example: ModuleType, model: nn.Module, spec: CaptureSpec) -> Tensor:
    """f32[T, V]: IDS token by token, in the second of three rows."""
    memory, found = state(spec), []
    for position, token in enumerate(IDS):
        ids, positions = i64(5, token, 900 - token % 900), i64(0, position, 100 + position)
        found.append(example.decode(model, ids=ids, positions=positions, **memory)["logits"][1])
    return torch.stack(found)


@pytest.mark.parametrize("name", list(MAKERS))
def test_chunk_gives_the_logits_of_single_steps(name: str) -> None:
    example, make = MAKERS[name]
    model, spec = make()
    want, memory = decoded(example, model, spec), state(spec)
    with torch.no_grad():
        for start, ids in ((0, IDS[:12]), (12, IDS[12:])):
            padded = torch.cat((i64(*ids), torch.full((32 - len(ids),), 7)))
            result = example.prefill(
                model, ids=padded, start=i64(start), last=i64(len(ids) - 1), sequence=i64(6), **memory
            )
            assert (result["logits"][0] - want[start + len(ids) - 1]).abs().max() < 1e-4
            assert result["sampled"][0] == want[start + len(ids) - 1].argmax()
    assert all(not stored[:, :6].any() for stored in memory.values())


def test_transformers_own_cache_gives_the_same_logits() -> None:
    model, spec = hf_llama.make("f32")
    with torch.no_grad():
        want = model(input_ids=i64(*IDS)[None]).logits[0]
    assert (decoded(hf_llama, model, spec) - want).abs().max() < 1e-4


def test_weights_differ_in_every_layer_and_are_the_same_every_time() -> None:
    for _, make in MAKERS.values():
        (model, _), (again, _) = make(), make()
        weights = [parameter for name, parameter in model.named_parameters() if "norm" not in name]
        assert len({parameter.flatten()[:64].numpy().tobytes() for parameter in weights}) == len(weights)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_large_decoder_has_1_4_billion_parameters() -> None:
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in decoder.Decoder(decoder.SIZES["large"]).parameters())
    assert 1.35e9 < count < 1.45e9


@pytest.mark.timeout(900)
def test_core_of_the_decoder_gives_its_logits(tmp_path: Path) -> None:
    model, spec = decoder.make("small", "f32")
    want = decoded(decoder, model, spec)
    step = replace(spec.entries[0], buckets=({"rows": 1}, {"rows": 3}))
    core = capture(model, replace(spec, entries=(step,)), cores=tmp_path)
    found = []
    with verify(core, Policy.local()) as verified, load(verified) as program:
        shape = program.bucket("decode", rows=3)
        for position, token in enumerate(IDS):
            program.write("decode", shape, "ids", i64(5, token, 900 - token % 900).numpy().tobytes())
            program.write("decode", shape, "positions", i64(0, position, 100 + position).numpy().tobytes())
            program.run("decode", **shape)
            logits = torch.frombuffer(bytearray(program.read("decode", shape, "logits")), dtype=torch.float32)
            found.append(logits.view(3, -1)[1])
    assert (torch.stack(found) - want).abs().max() < 1e-3
