"""Captured models against transformers: the whole way from published files to logits replayed from a signed core."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_llama import IDS, check, expected

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load
from heliograph.runtime.sampling import Sampling
from heliograph.runtime.steps import Steps
from tiny_models import capture_small, dequantised, random_model, write_gguf, write_hf


def replayed(core: Path) -> torch.Tensor:
    """f32[T, V]: the first half of IDS in one chunk (its last logits), the second half token by token."""
    found = []
    with verify(core, Policy.local()) as verified, load(verified) as program, Steps(program) as steps:
        half = len(IDS) // 2
        shape = program.bucket("prefill", tokens=half)
        seat = steps.seat(0, [1, 2], Sampling())
        steps.prefill(shape["tokens"], seat, IDS[:half], 0)
        found.append(program.read("prefill", shape, "logits"))
        for position in range(half, len(IDS)):
            steps.decode(1, [seat], [IDS[position]], [position])
            found.append(program.read("decode", {"rows": 1}, "logits"))
    return torch.stack([torch.frombuffer(bytearray(data), dtype=torch.float32) for data in found])


@pytest.mark.parametrize(
    ("kind", "dtype", "tied"),
    [("llama", torch.float32, False), ("qwen2", torch.bfloat16, True), ("qwen3", torch.bfloat16, False)],
)
def test_core_of_a_hugging_face_folder_gives_the_logits_of_transformers(
    tmp_path: Path, kind: str, dtype: torch.dtype, tied: bool
) -> None:
    reference = write_hf(tmp_path / "model", random_model(kind, tie_word_embeddings=tied), dtype=dtype, shard="90KB")
    core = capture_small(tmp_path / "model", tmp_path / "cores")
    check(replayed(core), expected(reference)[len(IDS) // 2 - 1 :])


@pytest.mark.parametrize(("kind", "matrices"), [("llama", "Q4_1"), ("qwen3", "Q8_0")])
def test_core_of_a_gguf_file_gives_the_logits_of_transformers_on_its_dequantised_weights(
    tmp_path: Path, kind: str, matrices: str
) -> None:
    source = random_model(kind)
    write_gguf(tmp_path / "m.gguf", source, matrices=matrices)
    core = capture_small(tmp_path / "m.gguf", tmp_path / "cores")
    check(replayed(core), expected(dequantised(source, matrices))[len(IDS) // 2 - 1 :])


def test_core_names_each_tensor_with_layout_and_source_digest(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", random_model("llama"), matrices="Q4_1", embedding="Q8_0")
    core = capture_small(tmp_path / "m.gguf", tmp_path / "cores")
    with verify(core, Policy.local()) as verified:
        tensors = {tensor.name: tensor for tensor in verified.core.weights.tensors}
        text = verified.core.text
    assert tensors["embedding.weight"].layout == "q8_0"
    down = tensors["layers.0.feed_forward.down.weight"]
    assert (down.layout, down.dtype, down.source) == ("q4_1", "u8", down.stored)
    assert text is not None
    assert (text.vocabulary, text.context, text.concurrency, text.eos) == (264, 96, 4, (0, 2))
