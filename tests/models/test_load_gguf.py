"""Loading a GGUF file: what is missing, extra, of another shape or not built stops the load and is named."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from eager_llama import teacher_forced
from test_llama import CHUNKS, IDS, check, expected

from heliograph.errors import ModelError, ModelFileError, StorageError, UnsupportedModelError
from heliograph.models.load import load_model
from heliograph.models.load_gguf import load_gguf
from tiny_models import random_model, tokens, write_gguf


@pytest.fixture(scope="module")
def source() -> torch.nn.Module:
    return random_model("llama")


def test_file_is_neither_changed_nor_needs_to_be_writable(tmp_path: Path, source: torch.nn.Module) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, source)
    before = path.read_bytes(), path.stat().st_mtime_ns
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        load_model(path)
        assert os.listdir(tmp_path) == ["m.gguf"]
    finally:
        tmp_path.chmod(0o755)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_file_cut_at_a_tensor_border_is_refused(tmp_path: Path, source: torch.nn.Module) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, source)
    whole = path.read_bytes()
    borders = [int(t.data_offset) for t in gguf.GGUFReader(path).tensors]
    for size in (0, borders[0], *borders[1::5], len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            load_model(path) if size >= 4 else load_gguf(path)
    path.write_bytes(whole)
    load_model(str(path))


def test_output_head_of_its_own_is_used(tmp_path: Path, source: torch.nn.Module) -> None:
    write_gguf(tmp_path / "m.gguf", source)
    model, _, _ = load_gguf(tmp_path / "m.gguf")
    assert not model.config.tied
    assert torch.equal(model.output.weight, source.lm_head.weight)


def test_file_without_an_output_head_ties_it_to_the_embedding(tmp_path: Path) -> None:
    reference = random_model("llama", tie_word_embeddings=True)
    write_gguf(tmp_path / "m.gguf", reference)
    model, _, _ = load_gguf(tmp_path / "m.gguf")
    assert model.config.tied
    check(teacher_forced(model, IDS, CHUNKS), expected(reference))


def test_missing_tensor_is_refused_by_its_name(tmp_path: Path, source: torch.nn.Module) -> None:
    write_gguf(tmp_path / "m.gguf", source, skip=["model.layers.1.mlp.up_proj.weight"])
    with pytest.raises(ModelFileError) as error:
        load_gguf(tmp_path / "m.gguf")
    assert "blk.1.ffn_up.weight" in error.value.found


def test_tensor_that_the_model_does_not_use_is_refused_by_its_name(tmp_path: Path, source: torch.nn.Module) -> None:
    write_gguf(tmp_path / "m.gguf", source, extra={"blk.0.attn_q.bias": np.zeros(64, np.float32)})
    with pytest.raises(ModelFileError) as error:
        load_gguf(tmp_path / "m.gguf")
    assert "blk.0.attn_q.bias" in error.value.found


def test_tensor_of_another_shape_is_refused_by_its_name(tmp_path: Path, source: torch.nn.Module) -> None:
    norm = "model.layers.0.input_layernorm.weight"
    write_gguf(tmp_path / "m.gguf", source, skip=[norm], extra={"blk.0.attn_norm.weight": np.ones(65, np.float32)})
    with pytest.raises(ModelFileError) as error:
        load_gguf(tmp_path / "m.gguf")
    assert "blk.0.attn_norm.weight" in error.value.found
    write_gguf(tmp_path / "m.gguf", source, skip=[norm], extra={"blk.0.attn_norm.weight": np.ones(64, np.float32)})
    load_gguf(tmp_path / "m.gguf")


def test_frequency_factors_divide_the_frequencies(tmp_path: Path, source: torch.nn.Module) -> None:
    factors = np.linspace(1, 4, 8).astype(np.float32)
    write_gguf(tmp_path / "m.gguf", source, extra={"rope_freqs.weight": factors})
    model, _, _ = load_gguf(tmp_path / "m.gguf")
    plain = model.config.rope.base ** -(torch.arange(0, 16, 2) / 16)
    torch.testing.assert_close(model.frequencies, plain / torch.from_numpy(factors))


@pytest.mark.parametrize("factors", [np.ones(7, np.float32), np.zeros(8, np.float32), np.full(8, np.nan, np.float32)])
def test_frequency_factors_that_make_no_sense_are_refused(
    tmp_path: Path, source: torch.nn.Module, factors: np.ndarray
) -> None:
    write_gguf(tmp_path / "m.gguf", source, extra={"rope_freqs.weight": factors})
    with pytest.raises(ModelFileError):
        load_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"general.architecture": "gemma3"}, "gemma3"),
        ({"llama.expert_count": 8}, "8 experts"),
        ({"llama.attention.sliding_window": 4096}, "llama.attention.sliding_window"),
        ({"llama.rope.scaling.type": "yarn"}, "yarn"),
        ({"llama.rope.scale_linear": 2.0}, "llama.rope.scale_linear"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count"),
        ({"llama.attention.scale": 0.5}, "llama.attention.scale"),
        ({"tokenizer.ggml.model": "llama"}, "'llama'"),
        ({"tokenizer.ggml.pre": "tekken"}, "tekken"),
        ({"tokenizer.ggml.add_space_prefix": True}, "add_space_prefix"),
    ],
)
def test_feature_that_is_not_built_is_refused_by_its_name(
    tmp_path: Path, source: torch.nn.Module, values: dict[str, object], named: str
) -> None:
    write_gguf(tmp_path / "m.gguf", source, values=values)
    with pytest.raises(UnsupportedModelError) as error:
        load_gguf(tmp_path / "m.gguf")
    assert named in error.value.found


KEYS = {
    "llama.block_count": 2, "llama.context_length": 128, "llama.embedding_length": 64,
    "llama.feed_forward_length": 96, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-6, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
    "tokenizer.ggml.tokens": tokens(), "tokenizer.ggml.token_type": [1] * len(tokens()), "tokenizer.ggml.merges": [],
}  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_metadata_of_another_type_or_length_is_refused(tmp_path: Path, source: torch.nn.Module, key: str) -> None:
    right = KEYS[key]
    wrong = [7.5, "text", True, [1, 2], ["a"]] if isinstance(right, int) else [3, True, [1.5, 2.5], ["a"]]
    for value in wrong:
        if key == "tokenizer.ggml.merges" and value == ["a"]:
            value = ["no such"]
        write_gguf(tmp_path / "m.gguf", source, values={key: value})
        with pytest.raises(ModelError):
            load_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("key", [key for key in KEYS if key != "llama.attention.head_count_kv"])
def test_missing_metadata_is_refused_by_its_name(tmp_path: Path, source: torch.nn.Module, key: str) -> None:
    write_gguf(tmp_path / "m.gguf", source, values={key: None})
    with pytest.raises(ModelError) as error:
        load_gguf(tmp_path / "m.gguf")
    assert key in error.value.found or key == "tokenizer.ggml.pre"


@pytest.mark.parametrize(
    "values",
    [
        {"llama.attention.head_count": 3}, {"llama.attention.head_count_kv": 3}, {"llama.attention.head_count": 0},
        {"llama.block_count": 0}, {"llama.block_count": 3}, {"llama.block_count": 1},
        {"llama.attention.layer_norm_rms_epsilon": float("nan")}, {"llama.rope.freq_base": float("inf")},
        {"llama.rope.freq_base": -1.0}, {"llama.vocab_size": 7}, {"llama.embedding_length": 2**32 - 1},
        {"llama.attention.key_length": 2**31}, {"tokenizer.ggml.eos_token_id": 300},
        {"tokenizer.ggml.bos_token_id": 2**32 - 1},
        {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None},
    ],
    ids=str,
)  # fmt: skip
def test_sizes_that_do_not_fit_together_are_refused(
    tmp_path: Path, source: torch.nn.Module, values: dict[str, object]
) -> None:
    write_gguf(tmp_path / "m.gguf", source, values=values)
    with pytest.raises(ModelError):
        load_gguf(tmp_path / "m.gguf")


def test_path_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        load_model(tmp_path / "nothing")
    with pytest.raises(UnsupportedModelError):
        load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"PK\3\4")
    with pytest.raises(UnsupportedModelError) as error:
        load_model(tmp_path / "pytorch_model.bin")
    assert "pickle" in error.value.hint


def test_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, source: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, source)
    from heliograph.models import load_gguf as module

    def touch(*args: object) -> object:
        os.utime(path, ns=(1, 1))
        return Llama(*args)

    Llama = module.Llama
    monkeypatch.setattr(module, "Llama", touch)
    with pytest.raises(ModelFileError):
        load_gguf(path)
    monkeypatch.undo()
    load_gguf(path)
