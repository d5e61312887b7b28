"""Examples of every bucket: valid, varied, the same for the same seed; the reference ops run on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from heliograph.capture.spec import CaptureSpec, EntrySpec, Example
from heliograph.errors import UsageError
from heliograph.models.load import LoadedModel, load_model
from heliograph.models.serving import Serving
from tiny_models import random_model, write_hf

SERVING = Serving(context=70, decode_rows=(1, 2, 5, 8), prefill_tokens=(16, 64, 256), masks=3)
NUMBERS = {"i32": np.int32, "i64": np.int64, "f32": np.float32}
SEEDS = range(6)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("model")
    write_hf(folder, random_model("llama"))
    return load_model(folder, serving=SERVING)


def every(spec: CaptureSpec) -> list[tuple[EntrySpec, dict[str, int], Example]]:
    assert spec.examples is not None
    return [
        (entry, dict(bucket), spec.examples(entry.name, bucket, seed))
        for entry in spec.entries
        for bucket in entry.buckets
        for seed in SEEDS
    ]


def arrays(spec: CaptureSpec, entry: EntrySpec, bucket: dict[str, int], example: Example) -> dict[str, np.ndarray]:
    shapes = {**entry.inputs, **spec.shared}
    assert example.inputs.keys() == shapes.keys()
    return {
        name: np.frombuffer(data, NUMBERS[shapes[name].dtype]).reshape(shapes[name].resolve(bucket))
        for name, data in example.inputs.items()
    }


def test_buckets_larger_than_the_context_are_left_out(loaded: LoadedModel) -> None:
    buckets = {entry.name: [dict(bucket) for bucket in entry.buckets] for entry in loaded.spec.entries}
    assert buckets["prefill"] == [{"tokens": 16}, {"tokens": 64}]
    assert buckets["decode"] == [{"rows": 1}, {"rows": 2}, {"rows": 5}, {"rows": 8}]


def test_buckets_of_serving_are_those_of_the_design(loaded: LoadedModel) -> None:
    serving = Serving(context=8192)
    assert serving.decode_rows == (1, 2, 3, 4, 6, 8, 12, 16)
    assert serving.prefill_buckets == (16, 64, 256)
    assert (serving.concurrency, serving.blocks) == (16, 512)


def test_examples_are_within_their_bounds(loaded: LoadedModel) -> None:
    spec, config = loaded.spec, loaded.model.config
    for entry, bucket, example in every(spec):
        made = arrays(spec, entry, bucket, example)
        (dimension, size), *_ = bucket.items()
        real = example.real_rows[dimension] if example.real_rows else size
        assert 1 <= real <= size
        positions, tables = made["positions"], made["tables"]
        assert ((positions[:real] >= 0) & (positions[:real] < SERVING.context)).all()
        assert (positions[real:] == -1).all()
        assert ((made["ids"] >= -1) & (made["ids"] < config.vocabulary)).all()
        assert ((tables >= 0) & (tables < spec.units)).all()
        rows = real if entry.name == "decode" else 1
        slots = made["slots"]
        assert len(set(slots[:rows].tolist())) == rows
        assert ((slots[:rows] >= 0) & (slots[:rows] < SERVING.concurrency)).all()
        assert (slots[rows:] == -1).all()
        used: list[int] = []
        for row in range(rows):
            last = positions[row] if entry.name == "decode" else positions[:real].max()
            blocks = tables[row, : last // SERVING.block_tokens + 1].tolist()
            assert 0 not in blocks
            used += blocks
        assert len(set(used)) == len(used)
        assert ((made["mask_index"] >= -1) & (made["mask_index"] < SERVING.masks)).all()
        if entry.name == "prefill":
            assert made["last_row"].tolist() == [real - 1]
            assert np.diff(positions[:real]).tolist() == [1] * (real - 1)


def test_the_first_two_examples_have_few_real_rows_and_the_third_is_full(loaded: LoadedModel) -> None:
    spec = loaded.spec
    assert spec.examples is not None
    for entry in spec.entries:
        for bucket in entry.buckets:
            (dimension, size), *_ = bucket.items()
            made = [spec.examples(entry.name, bucket, seed) for seed in range(3)]
            real = [(example.real_rows or {})[dimension] for example in made]
            assert [arrays(spec, entry, dict(bucket), each)["real"].tolist() for each in made] == [[n] for n in real]
            assert max(real[:2]) <= 9
            assert real[2] == size


def test_examples_differ_by_seed_alone(loaded: LoadedModel) -> None:
    examples = [example.inputs for _, _, example in every(loaded.spec)]
    assert examples == [example.inputs for _, _, example in every(loaded.spec)]
    assert len({tuple(inputs.values()) for inputs in examples}) == len(examples)


def test_some_examples_have_padding_greedy_and_random_rows(loaded: LoadedModel) -> None:
    spec = loaded.spec
    seen = {"padding": False, "greedy": False, "random": False, "masked": False, "last token": False}
    for entry, bucket, example in every(spec):
        made = arrays(spec, entry, bucket, example)
        seen["padding"] |= bool((made["positions"] == -1).any())
        seen["greedy"] |= bool((made["temperature"][made["slots"] >= 0] == 0).any())
        seen["random"] |= bool((made["temperature"] > 0).any())
        seen["masked"] |= bool((made["mask_index"] >= 0).any())
        seen["last token"] |= bool((made["ids"] == -1).any())
    assert all(seen.values()), seen


@torch.no_grad()
def test_reference_ops_give_finite_outputs_of_the_stated_rows(loaded: LoadedModel) -> None:
    spec, model = loaded.spec, loaded.model
    for entry, bucket, example in every(spec)[::3]:
        inputs = {name: torch.from_numpy(a.copy()) for name, a in arrays(spec, entry, bucket, example).items()}
        state = {
            "kv": torch.full((spec.units, *spec.state["kv"].shape), 0.1, dtype=torch.float16),
            "history": torch.zeros(spec.state["history"].shape, dtype=torch.int32),
            "last_token": torch.zeros(spec.state["last_token"].shape, dtype=torch.int32),
        }
        outputs = entry.call(model, **inputs, **state)
        rows = example.real_rows["rows"] if example.real_rows and entry.name == "decode" else 1
        assert outputs.keys() == {"sampled", "accepted", "logprobs", "logprob_ids", "logits"}
        assert outputs["logits"][:rows].isfinite().all()
        assert ((outputs["sampled"][:rows] >= 0) & (outputs["sampled"][:rows] < model.config.vocabulary)).all()
        assert (outputs["sampled"][rows:] == -1).all()
        assert (outputs["accepted"] == 1).all()
        slots = inputs["slots"][:rows].long()
        assert torch.equal(state["last_token"][slots], outputs["sampled"][:rows])


def test_context_below_the_smallest_chunk_is_refused() -> None:
    with pytest.raises(UsageError):
        Serving(context=15)
    Serving(context=16)


def test_context_is_that_of_the_model_but_at_most_8192(loaded: LoadedModel, tmp_path: Path) -> None:
    write_hf(tmp_path / "a", random_model("llama", max_position_embeddings=100))
    assert load_model(tmp_path / "a").spec.text.context == 100
    write_hf(tmp_path / "b", random_model("llama", max_position_embeddings=32768))
    assert load_model(tmp_path / "b").spec.text.context == 8192


def test_context_above_that_of_the_model_is_refused_with_both_numbers(tmp_path: Path) -> None:
    write_hf(tmp_path, random_model("llama", max_position_embeddings=128))
    with pytest.raises(UsageError) as error:
        load_model(tmp_path, serving=Serving(context=129))
    assert "129" in error.value.found
    assert "128" in error.value.required
    assert load_model(tmp_path, serving=Serving(context=128)).spec.text.context == 128
