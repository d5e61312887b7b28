"""Loading a Hugging Face folder: configuration, index, files and model are compared both ways."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from eager_llama import teacher_forced
from safetensors.torch import load_file, save_file
from test_llama import CHUNKS, IDS, check, expected
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from heliograph.errors import ModelError, ModelFileError, UnsupportedModelError
from heliograph.models.load import load_model
from heliograph.models.load_hf import INDEX, load_hf
from heliograph.runtime.text import Text
from tiny_models import TEMPLATE, edit_json, random_model, write_hf

Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("written")
    return folder, write_hf(folder, random_model("llama"))


@pytest.fixture(scope="module")
def written_shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    folder = tmp_path_factory.mktemp("shards")
    return folder, write_hf(folder, random_model("llama"), shard="120KB")


@pytest.fixture
def single(tmp_path: Path, written: tuple[Path, torch.nn.Module]) -> Path:
    return Path(shutil.copytree(written[0], tmp_path / "model"))


@pytest.fixture
def shards(tmp_path: Path, written_shards: tuple[Path, torch.nn.Module]) -> Path:
    folder = Path(shutil.copytree(written_shards[0], tmp_path / "model"))
    assert len(list(folder.glob("*.safetensors"))) >= 3
    return folder


def rewrite(folder: Path, change: Callable[[Tensors], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_shards_give_the_logits_of_the_model(shards: Path, written_shards: tuple[Path, torch.nn.Module]) -> None:
    model, _, sources = load_hf(shards)
    check(teacher_forced(model, IDS, CHUNKS), expected(written_shards[1]))
    assert {source.name for source in sources} >= {path.name for path in shards.glob("*.safetensors")}


def test_folder_is_neither_changed_nor_needs_to_be_writable(single: Path) -> None:
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in single.iterdir()}
    for path in single.iterdir():
        path.chmod(0o444)
    single.chmod(0o555)
    try:
        load_model(single)
    finally:
        single.chmod(0o755)
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in single.iterdir()} == before


def test_pickle_beside_the_weights_is_not_opened(single: Path) -> None:
    (single / "pytorch_model.bin").mkdir()  # opening it would fail
    load_model(single)


def test_folder_with_nothing_but_a_pickle_is_refused(single: Path) -> None:
    (single / "model.safetensors").rename(single / "pytorch_model.bin")
    with pytest.raises(ModelFileError) as error:
        load_model(single)
    assert "model.safetensors" in error.value.found


# ---- tied and untied, present and absent ---------------------------------------------------------------------------


def test_tied_head_that_is_absent_is_the_embedding(tmp_path: Path) -> None:
    reference = write_hf(tmp_path, random_model("llama", tie_word_embeddings=True))
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    model, _, _ = load_hf(tmp_path)
    check(teacher_forced(model, IDS, CHUNKS), expected(reference))


def test_tied_head_that_is_a_copy_is_the_embedding(tmp_path: Path) -> None:
    reference = write_hf(tmp_path, random_model("llama", tie_word_embeddings=True))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    model, _, _ = load_hf(tmp_path)
    check(teacher_forced(model, IDS, CHUNKS), expected(reference))


def test_tied_head_that_differs_from_the_embedding_is_refused(tmp_path: Path) -> None:
    write_hf(tmp_path, random_model("llama", tie_word_embeddings=True))
    rewrite(tmp_path, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    with pytest.raises(ModelFileError) as error:
        load_hf(tmp_path)
    assert "lm_head.weight" in error.value.found


def test_untied_head_that_is_absent_is_refused(single: Path) -> None:
    rewrite(single, lambda t: t.pop("lm_head.weight"))
    with pytest.raises(ModelFileError) as error:
        load_hf(single)
    assert "lm_head.weight" in error.value.found


def test_untied_head_that_is_present_is_used(single: Path) -> None:
    model, _, _ = load_hf(single)
    assert torch.equal(model.output.weight, load_file(single / "model.safetensors")["lm_head.weight"])


# ---- files, index, tensors -----------------------------------------------------------------------------------------


def test_missing_shard_is_refused_by_its_name(shards: Path) -> None:
    victim = sorted(shards.glob("*.safetensors"))[1]
    data = victim.read_bytes()
    victim.unlink()
    with pytest.raises(ModelFileError) as error:
        load_hf(shards)
    assert victim.name in error.value.found
    victim.write_bytes(data)
    load_hf(shards)


def test_renamed_shard_is_refused(shards: Path) -> None:
    victim = sorted(shards.glob("*.safetensors"))[0]
    victim.rename(shards / "other.safetensors")
    with pytest.raises(ModelFileError) as error:
        load_hf(shards)
    assert victim.name in error.value.found


def test_extra_shard_is_refused_by_its_name(shards: Path) -> None:
    save_file({"x": torch.zeros(2)}, shards / "extra.safetensors")
    with pytest.raises(ModelFileError) as error:
        load_hf(shards)
    assert "extra.safetensors" in error.value.found
    (shards / "extra.safetensors").unlink()
    load_hf(shards)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index.update({"model.layers.7.mlp.up_proj.weight": index["model.norm.weight"]}),
        lambda index: index.pop("model.norm.weight"),
        lambda index: index.update({"model.norm.weight": ({*index.values()} - {index["model.norm.weight"]}).pop()}),
        lambda index: index.update({"model.norm.weight": "../model.safetensors"}),
        lambda index: index.update({"model.norm.weight": "pytorch_model.bin"}),
        lambda index: index.update({"model.norm.weight": 3}),
        lambda index: index.clear(),
    ],
    ids=["extra tensor", "missing tensor", "wrong file", "outside", "pickle", "number", "empty"],
)  # fmt: skip
def test_index_that_does_not_fit_the_files_is_refused(
    shards: Path, change: Callable[[dict[str, object]], None]
) -> None:
    index = json.loads((shards / INDEX).read_text())["weight_map"]
    change(index)
    edit_json(shards / INDEX, weight_map=index)
    with pytest.raises(ModelFileError):
        load_hf(shards)


def test_tensor_in_two_shards_is_refused_by_its_name(shards: Path) -> None:
    first = sorted(shards.glob("*.safetensors"))[0]
    last = sorted(shards.glob("*.safetensors"))[-1]
    tensors = load_file(first)
    name = next(iter(load_file(last)))
    save_file({**tensors, name: load_file(last)[name]}, first)
    with pytest.raises(ModelFileError) as error:
        load_hf(shards)
    assert name in error.value.found


def test_single_file_beside_an_index_is_refused(shards: Path) -> None:
    save_file({"x": torch.zeros(2)}, shards / "model.safetensors")
    with pytest.raises(ModelFileError) as error:
        load_hf(shards)
    assert INDEX in error.value.found


@pytest.mark.parametrize("size", [0, 7, 8, 1000, -64 * 4, -1])
def test_truncated_weights_are_refused(single: Path, size: int) -> None:
    path = single / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    with pytest.raises(ModelFileError) as error:
        load_hf(single)
    assert "model.safetensors" in error.value.doing
    path.write_bytes(whole)
    load_hf(single)


def test_tensor_that_the_model_does_not_use_is_refused_by_its_name(single: Path) -> None:
    rewrite(single, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    with pytest.raises(ModelFileError) as error:
        load_hf(single)
    assert "rotary_emb" in error.value.found


def test_tensor_of_another_shape_is_refused_by_its_name(single: Path) -> None:
    rewrite(single, lambda t: t.update({"model.norm.weight": torch.ones(63)}))
    with pytest.raises(ModelFileError) as error:
        load_hf(single)
    assert "model.norm.weight" in error.value.found


# ---- configuration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"architectures": ["MistralForCausalLM"]}, "MistralForCausalLM"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"num_experts": 64}, "num_experts"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {"rope_theta": 10000.0, "rope_type": "yarn", "factor": 4.0}}, "yarn"),
        ({"rope_parameters": None, "rope_scaling": {"type": "dynamic", "factor": 2.0}}, "dynamic"),
        ({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default", "partial_rotary_factor": 0.5}}, "rotary"),
        ({"is_causal": False}, "is_causal"),
        ({"model_type": "gemma"}, "gemma"),
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "mistral"}, "mistral"),
    ],
)
def test_feature_that_is_not_built_is_refused_by_its_name(single: Path, changes: dict[str, object], named: str) -> None:
    load_hf(single)
    edit_json(single / "config.json", **changes)
    with pytest.raises(UnsupportedModelError) as error:
        load_hf(single)
    assert named in error.value.found


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 65}, {"hidden_size": -64}, {"hidden_size": 2**63}, {"hidden_size": "64"}, {"hidden_size": None},
        {"hidden_size": True}, {"num_hidden_layers": 3}, {"num_hidden_layers": 1}, {"num_hidden_layers": 0},
        {"num_attention_heads": 0}, {"num_key_value_heads": 3}, {"vocab_size": 3}, {"vocab_size": 2**31},
        {"rms_norm_eps": "small"}, {"rms_norm_eps": 2.0}, {"head_dim": 15}, {"tie_word_embeddings": "no"},
        {"rope_parameters": [1]}, {"rope_parameters": {"rope_type": "linear", "factor": 0}},
        {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, {"rope_parameters": {"rope_theta": 0.5}},
        {"bos_token_id": 9999}, {"eos_token_id": "x"}, {"eos_token_id": [2, 9999]},
    ],
    ids=str,
)  # fmt: skip
def test_configuration_that_makes_no_sense_is_refused(single: Path, changes: dict[str, object]) -> None:
    edit_json(single / "config.json", **changes)
    with pytest.raises(ModelError):
        load_hf(single)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"{" * 100_000, b'{"a":' * 100_000])
def test_configuration_that_is_no_json_object_is_refused(single: Path, data: bytes) -> None:
    (single / "config.json").write_bytes(data)
    with pytest.raises(ModelFileError):
        load_hf(single)


def test_settings_of_before_transformers_5_are_read(single: Path, written: tuple[Path, torch.nn.Module]) -> None:
    edit_json(single / "config.json", rope_parameters=..., rope_theta=10000.0, rope_scaling=None)
    model, _, _ = load_hf(single)
    check(teacher_forced(model, IDS, CHUNKS), expected(written[1]))


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 5e5},
        {"rope_scaling": {"rope_type": "default", "rope_theta": 5e5}},
        {"rope_scaling": {}},
        {"rope_scaling": None, "rope_theta": 5e5},
    ],
    ids=str,
)
def test_rope_scaling_goes_before_rope_parameters_as_in_transformers(single: Path, changes: dict[str, object]) -> None:
    edit_json(single / "config.json", rope_parameters={"rope_type": "default", "rope_theta": 2e4}, **changes)
    reference = AutoModelForCausalLM.from_pretrained(single).eval()
    model, _, _ = load_hf(single)
    check(teacher_forced(model, IDS, CHUNKS), expected(reference))


# ---- text ----------------------------------------------------------------------------------------------------------


def test_template_file_goes_before_the_one_in_the_tokenizer_configuration(single: Path) -> None:
    assert load_hf(single)[1].chat_template == TEMPLATE
    (single / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert load_hf(single)[1].chat_template == "{{ messages[0].content }}"


def test_template_that_is_no_text_is_refused(single: Path) -> None:
    (single / "chat_template.jinja").write_bytes(b"\xff{{ messages }}")
    with pytest.raises(ModelFileError) as error:
        load_hf(single)
    assert "byte 0" in error.value.found


def test_default_of_several_templates_is_taken(single: Path) -> None:
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}]
    edit_json(single / "tokenizer_config.json", chat_template=named)
    assert load_hf(single)[1].chat_template == "y"


def test_end_tokens_of_both_configurations_count(single: Path) -> None:
    edit_json(single / "generation_config.json", eos_token_id=[0, 2])
    text = load_hf(single)[1]
    assert (text.bos, text.eos, text.eos_text) == (1, (0, 2), "<|im_end|>")


def test_end_token_of_the_tokenizer_counts_too(single: Path) -> None:
    """A chat fine-tune of a base model often has it nowhere else."""
    for name in ("config.json", "generation_config.json"):
        edit_json(single / name, eos_token_id=0)
    text = load_hf(single)[1]
    assert (text.eos, text.eos_text) == ((0, 2), "<|im_end|>")


ADDED = {"__type": "AddedToken", **dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)}
BOTH = "{{ bos_token }}|{{ eos_token }}{{ messages[0].content }}"


@pytest.mark.parametrize(
    "stated",
    [
        {"bos_token": None, "eos_token": None},
        {"bos_token": "<|im_start|>", "eos_token": ADDED | {"content": "<|endoftext|>"}},
        {"bos_token": ..., "eos_token": "<|im_end|>"},
    ],
    ids=str,
)
def test_special_tokens_in_prompts_are_those_of_transformers(single: Path, stated: dict[str, object]) -> None:
    """Qwen2's configuration names a begin token that its tokenizer does not have."""
    edit_json(single / "tokenizer_config.json", **stated, chat_template=BOTH)
    made = load_hf(single)[1]
    face = Text(made, made.tokenizer, made.chat_template)
    messages = [{"role": "user", "content": "Hi"}]
    theirs = PreTrainedTokenizerFast.from_pretrained(single).apply_chat_template(messages, tokenize=False)
    try:
        assert face.render(messages) == theirs
    finally:
        face.close()


def test_special_tokens_without_a_tokenizer_configuration_are_those_of_the_ids(single: Path) -> None:
    (single / "tokenizer_config.json").unlink()
    text = load_hf(single)[1]
    assert (text.bos, text.eos, text.bos_text, text.eos_text) == (1, (2,), "<|im_start|>", "<|im_end|>")


@pytest.mark.parametrize(
    ("stated", "put_right"),
    [
        ({"added_tokens_decoder": {"264": {"content": "<|user|>"}}}, {"added_tokens_decoder": {}}),
        (
            {"added_tokens_decoder": {"1": {"content": "<|im_end|>"}}},
            {"added_tokens_decoder": {"1": {"content": "<|im_start|>"}}},
        ),
        ({"additional_special_tokens": ["<|user|>"]}, {"additional_special_tokens": ["<|im_start|>"]}),
        ({"extra_special_tokens": [{"content": "<|user|>"}]}, {"extra_special_tokens": [{"content": "<|im_end|>"}]}),
        ({"extra_special_tokens": {"user_token": "<|user|>"}}, {"extra_special_tokens": {"a_token": "<|im_end|>"}}),
        ({"eos_token": "<|user|>"}, {"eos_token": "<|im_end|>"}),
        ({"bos_token": {"content": "<|user|>"}}, {"bos_token": {"content": "<|im_start|>"}}),
        ({"bos_token": "he"}, {"bos_token": None}),
    ],
    ids=str,
)
def test_token_that_only_the_tokenizer_configuration_names_is_refused(
    single: Path, stated: dict[str, object], put_right: dict[str, object]
) -> None:
    """transformers adds it to the tokenizer; left out, it would be plain text."""
    edit_json(single / "tokenizer_config.json", **stated)
    with pytest.raises(ModelFileError) as error:
        load_hf(single)
    assert "tokenizer.json" in error.value.required
    edit_json(single / "tokenizer_config.json", **put_right)
    load_hf(single)


@pytest.mark.parametrize(
    "stated",
    [
        {"added_tokens_decoder": [1]}, {"added_tokens_decoder": {"1": {"content": 1}}}, {"eos_token": 3},
        {"additional_special_tokens": "<|im_end|>"}, {"extra_special_tokens": [3]},
    ],
    ids=str,
)  # fmt: skip
def test_tokenizer_configuration_that_makes_no_sense_is_refused(single: Path, stated: dict[str, object]) -> None:
    edit_json(single / "tokenizer_config.json", **stated)
    with pytest.raises(ModelFileError):
        load_hf(single)


ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("template", ["{% if %}", "{{ messages.nothing.more }}", ENDLESS])
def test_template_that_cannot_render_is_refused(single: Path, template: str) -> None:
    (single / "chat_template.jinja").write_text(template)
    with pytest.raises(ModelError):
        load_hf(single)


def test_tokenizer_that_cannot_be_read_is_refused(single: Path) -> None:
    (single / "tokenizer.json").write_text('{"model": 1}')
    with pytest.raises(ModelFileError):
        load_hf(single)


def test_tokenizer_with_more_ids_than_the_vocabulary_is_refused(single: Path) -> None:
    edit_json(single / "config.json", vocab_size=263)
    with pytest.raises(ModelFileError):
        load_hf(single)
