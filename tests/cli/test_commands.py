"""Every command on the real model's core, as a person and as a script would run it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from test_main import heliograph

import independent_reader
from heliograph.core.policy import Policy

BUCKETS = 11


def trusted(home: Path) -> list[bytes]:
    return [key.public_bytes_raw() for key in Policy.local(home).keys.values()]


def test_inspect_says_what_the_independent_reader_says(smollm2_core: Path, home: Path) -> None:
    ours = json.loads(heliograph("inspect", smollm2_core, "--json").stdout)
    assert ours.pop("fits")["ok"] is True
    assert ours == independent_reader.read(smollm2_core, trusted(home), weights=False)


def test_inspect_shows_a_person_what_they_would_want(smollm2_core: Path) -> None:
    shown = heliograph("inspect", smollm2_core).stdout
    for part in (
        "decode",
        "prefill",
        "rows 16",
        "tokens 256",
        "linear",
        "Memory map",
        "signed by",
        "fits this machine",
    ):
        assert part in shown


def test_verify_accepts_the_core_without_options_and_reads_every_weight_byte(smollm2_core: Path) -> None:
    result = json.loads(heliograph("verify", smollm2_core, "--json").stdout)
    weights = json.loads((smollm2_core / "core.json").read_text())["weights"]["size"]
    assert result["ok"] is True
    assert result["weights_bytes"] == weights > 96_000_000


@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_verify_refuses_a_core_with_one_flipped_weight_byte(smollm2_core: Path, tmp_path: Path, place: str) -> None:
    core = tmp_path / "core"
    shutil.copytree(smollm2_core, core)
    heliograph("verify", core)
    blob = max((core / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    blob.chmod(0o644)
    at = {"first": 0, "middle": blob.stat().st_size // 2, "last": blob.stat().st_size - 1}[place]
    with blob.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    error = json.loads(heliograph("verify", core, "--json", check=5).stderr)
    assert error["error"] == "TamperedError"


def test_replay_passes_every_graph(smollm2_core: Path) -> None:
    result = json.loads(heliograph("replay", smollm2_core, "--times", "1", "--json").stdout)
    assert result["ok"] is True
    assert [graph["passed"] for graph in result["graphs"]] == [1] * BUCKETS


def test_generate_answers_sensibly_without_torch(smollm2_core: Path) -> None:
    question = "What is the capital of France?"
    result = json.loads(heliograph("generate", smollm2_core, question, "--max-tokens", "24", "--json").stdout)
    assert "Paris" in result["answer"]
    assert result["torch"] is False
    assert result["weights_bytes"] == json.loads((smollm2_core / "core.json").read_text())["weights"]["size"]


def test_generate_streams_the_same_text_to_a_person(smollm2_core: Path) -> None:
    arguments = ("generate", smollm2_core, "Name a colour.", "--max-tokens", "12")
    whole = json.loads(heliograph(*arguments, "--json").stdout)
    assert heliograph(*arguments, "--stats").stdout == whole["answer"] + "\n"


def test_generate_with_a_seed_is_reproducible_and_another_seed_differs(smollm2_core: Path) -> None:
    def tokens(seed: int) -> list[int]:
        arguments = ("generate", smollm2_core, "Tell me a story.", "--temperature", "1.5", "--max-tokens", "12")
        answer: list[int] = json.loads(heliograph(*arguments, "--seed", str(seed), "--json").stdout)["tokens"]
        return answer

    assert tokens(1) == tokens(1) != tokens(2)


def test_generate_works_where_torch_is_not_installed(smollm2_core: Path, torch_free_python: Path) -> None:
    command = [str(torch_free_python.parent / "heliograph"), "generate", str(smollm2_core), "Say hello."]
    run = subprocess.run([*command, "--max-tokens", "4", "--stats"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "torch: not loaded" in run.stderr


def test_doctor_says_how_many_tokens_fit(smollm2_core: Path) -> None:
    result = json.loads(heliograph("doctor", smollm2_core, "--json").stdout)
    assert result["ok"] is True
    assert result["core"]["tokens"] == result["core"]["units"] * 16 > 8192


def test_a_core_whose_key_lost_its_trust_is_refused(
    smollm2_core: Path, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "home"
    shutil.copytree(home, other)
    monkeypatch.setenv("HELIOGRAPH_HOME", str(other))
    heliograph("inspect", smollm2_core, "--json")
    for entry in (other / "trust").iterdir():
        entry.unlink()
    error = json.loads(heliograph("inspect", smollm2_core, "--json", check=5).stderr)
    assert error["error"] == "UntrustedError"


def test_capture_of_something_that_is_no_model_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    heliograph("capture", tmp_path / "model.gguf", "--cores", tmp_path / "cores", check=4)
    assert not (tmp_path / "cores").exists() or not [p for p in (tmp_path / "cores").iterdir() if p.name[0] != "."]
