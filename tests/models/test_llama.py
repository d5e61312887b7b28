"""The model against transformers, on checkpoints in which every parameter counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from eager_llama import teacher_forced
from transformers import PreTrainedModel

from heliograph.models.load_gguf import load_gguf
from heliograph.models.load_hf import load_hf
from tiny_models import dequantised, random_model, write_gguf, write_hf

IDS = [(7 * i * i + 3 * i) % 250 + 3 for i in range(32)]
CHUNKS = (16, 9, 1, 1, 5)
TOLERANCE = 2e-3  # of the largest logit; f16 keys and values alone move these models by 3e-4


def expected(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.tensor([IDS])).logits[0]


def check(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.isfinite(found).all()
    assert (found - wanted).abs().max() <= TOLERANCE * wanted.abs().max()


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_of_a_hugging_face_folder_equal_those_of_transformers(
    tmp_path: Path, kind: str, dtype: torch.dtype, tied: bool
) -> None:
    reference = write_hf(tmp_path, random_model(kind, tie_word_embeddings=tied), dtype=dtype)
    model, _, _ = load_hf(tmp_path)
    check(teacher_forced(model, IDS, CHUNKS), expected(reference))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("matrices", ["F32", "F16", "BF16", "Q8_0", "Q4_1"])
def test_logits_of_a_gguf_file_equal_those_of_transformers_on_its_dequantised_weights(
    tmp_path: Path, kind: str, matrices: str
) -> None:
    source = random_model(kind)
    write_gguf(tmp_path / "m.gguf", source, matrices=matrices)
    model, _, _ = load_gguf(tmp_path / "m.gguf")
    reference = source if matrices == "F32" else dequantised(source, matrices)
    check(teacher_forced(model, IDS, CHUNKS), expected(reference))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ],
    ids=lambda rope: rope["rope_type"],
)  # fmt: skip
def test_rope_scaling_gives_the_logits_of_transformers(tmp_path: Path, rope: dict[str, object]) -> None:
    reference = write_hf(tmp_path, random_model("llama", rope_parameters={"rope_theta": 500.0, **rope}))
    model, _, _ = load_hf(tmp_path)
    check(teacher_forced(model, IDS, CHUNKS), expected(reference))


def test_tolerance_sees_a_wrong_rope_convention(tmp_path: Path) -> None:
    source = random_model("llama")
    write_gguf(tmp_path / "m.gguf", source)
    model, _, _ = load_gguf(tmp_path / "m.gguf")
    for layer in model.layers:
        layer.attention.interleaved = False
    with pytest.raises(AssertionError):
        check(teacher_forced(model, IDS, CHUNKS), expected(source))


@pytest.mark.parametrize("kind", ["qwen2", "qwen3"])
def test_tolerance_sees_a_missing_bias_or_norm(tmp_path: Path, kind: str) -> None:
    reference = write_hf(tmp_path, random_model(kind))
    model, _, _ = load_hf(tmp_path)
    for layer in model.layers:
        layer.attention.key_norm = layer.attention.query_norm = layer.attention.query.bias = None
    with pytest.raises(AssertionError):
        check(teacher_forced(model, IDS, CHUNKS), expected(reference))


def test_chunks_do_not_change_the_logits(tmp_path: Path) -> None:
    write_hf(tmp_path, random_model("llama"))
    model, _, _ = load_hf(tmp_path)
    whole = teacher_forced(model, IDS, (len(IDS),))
    check(teacher_forced(model, IDS, [1] * len(IDS), seed=1), whole)


def test_packed_weights_carry_layout_shape_and_source_digest(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", random_model("llama"), matrices="Q4_1", embedding="Q8_0")
    model, _, _ = load_gguf(tmp_path / "m.gguf")
    weight = model.layers[0].feed_forward.down.weight
    assert (weight.heliograph_layout, weight.heliograph_shape) == ("q4_1", (64, 96))
    assert (weight.dtype, tuple(weight.shape)) == (torch.uint8, (64, 96 // 32 * 20))
    assert model.embedding.weight.heliograph_layout == "q8_0"
    assert all(len(parameter.heliograph_source) == 64 for parameter in model.parameters())
    assert not hasattr(model.norm.weight, "heliograph_layout")


def test_float32_tensor_in_a_bfloat16_checkpoint_keeps_its_bits(tmp_path: Path) -> None:
    source = random_model("llama").to(torch.bfloat16)
    exact = torch.randn(64, generator=torch.Generator().manual_seed(5))
    source.model.norm.weight.data = exact.clone()
    source.lm_head.weight.data = source.lm_head.weight.data.float() + 1e-6
    write_hf_as_is(tmp_path, source)
    model, _, _ = load_hf(tmp_path)
    assert torch.equal(model.norm.weight, exact)
    assert torch.equal(model.output.weight, source.lm_head.weight)
    assert model.embedding.weight.dtype == torch.bfloat16


def write_hf_as_is(folder: Path, model: PreTrainedModel) -> None:
    """Keeps the type of each parameter."""
    from safetensors.torch import save_file

    write_hf(folder, random_model("llama"))
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
