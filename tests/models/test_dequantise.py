"""Packed weights become plain ones with the same values, within the type's rounding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from eager_llama import teacher_forced
from test_llama import CHUNKS, IDS, check, expected

from heliograph.models.dequantise import dequantised
from heliograph.models.load_gguf import load_gguf
from tiny_models import dequantised as values_of
from tiny_models import random_model, write_gguf


@pytest.mark.parametrize("matrices", ["Q8_0", "Q4_1"])
def test_plain_weights_in_f32_give_the_logits_of_the_packed_ones(tmp_path: Path, matrices: str) -> None:
    source = random_model("llama", tie_word_embeddings=matrices == "Q8_0")
    write_gguf(tmp_path / "m.gguf", source, matrices=matrices)
    model = dequantised(load_gguf(tmp_path / "m.gguf")[0], torch.float32)
    check(teacher_forced(model, IDS, CHUNKS), expected(values_of(source, matrices)))


def test_matrices_are_bf16_and_say_where_they_came_from(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", random_model("llama"), matrices="Q4_1", embedding="Q8_0")
    packed, model = (load_gguf(tmp_path / "m.gguf")[0] for _ in range(2))
    assert dequantised(model) is model
    for name, parameter in model.named_parameters():
        assert parameter.heliograph_source == packed.get_parameter(name).heliograph_source
        if parameter.dim() == 2:
            assert parameter.dtype == torch.bfloat16
            assert not hasattr(parameter, "heliograph_layout")
    down = model.layers[0].feed_forward.down
    assert (down.layout, tuple(down.weight.shape)) == ("bf16", (64, 96))
    assert model.embedding.layout == "bf16"
    assert torch.isfinite(teacher_forced(model, IDS, CHUNKS)).all()


def test_plain_weights_are_left_as_they_are(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", random_model("llama"), matrices="F16")
    model = load_gguf(tmp_path / "m.gguf")[0]
    before = dict(model.named_parameters())
    dequantised(model)
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
