"""The three models: a plain PyTorch decoder, transformers' Llama, our Llama on Triton kernels. Each bucket is replayed
with changing data in shuffled order; every replay equals that of the process that captured it, bit for bit."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpu.runs import HERE, prepared, replayed
from tiny_models import random_model, write_gguf

pytestmark = pytest.mark.gpu
EXAMPLES = HERE.parent.parent / "examples"
MODELS = {
    "decoder": (f"{EXAMPLES / 'decoder.py'}:make", ("small",)),
    "transformers": (f"{EXAMPLES / 'hf_llama.py'}:make", ()),
    "llama": ("heliograph.models.load_cuda:make", ("{folder}/m.gguf",)),
}
REPLAYS = 50


def captured(tmp_path: Path, name: str, **more: object) -> dict[str, Any]:
    factory, arguments = MODELS[name]
    if name == "llama":
        write_gguf(tmp_path / "m.gguf", random_model("llama"), matrices="Q4_1", embedding="Q8_0")
    return prepared(tmp_path / "cores", factory, *(each.format(folder=tmp_path) for each in arguments), **more)


@pytest.mark.parametrize("name", MODELS)
def test_replays_with_the_same_bits(tmp_path: Path, name: str) -> None:
    said = captured(tmp_path, name, retain="executable", replays=REPLAYS)
    told = replayed(said)
    assert told["digests"] == said["digests"]
    assert len(told["digests"]) == REPLAYS * len(said["nodes"])
    assert not told["torch"]
    assert told["after_ready"] == {"modules_loaded": 0, "bytes_mapped": 0}
    origins = {origin for origin, _ in said["functions"]}
    if name != "llama":
        assert any("cublas" in origin for origin in origins), origins
        assert any("cudnn" in function for _, function in said["functions"]), said["functions"]
    print(
        json.dumps({"model": name, "nodes": said["nodes"], "functions": len(said["functions"]), "told": told["phases"]})
    )


def test_both_ways_to_retain_give_one_core_digest(tmp_path: Path) -> None:
    cores = []
    for retain in ("template", "executable"):
        said = captured(tmp_path, "llama", retain=retain, replays=1)
        cores.append(json.loads((Path(said["core"]) / "core.json").read_text()))
        assert (said["counters"]["executables_created"] > 0) == (retain == "executable")
        shutil.rmtree(tmp_path / "cores")
    assert [name for name in cores[0] if cores[0][name] != cores[1][name]] == []
