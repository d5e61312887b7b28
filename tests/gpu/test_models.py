"""The three models: a plain PyTorch decoder, transformers' Llama, our Llama on Triton kernels. Each bucket is replayed
with changing data in shuffled order; every replay equals that of the process that captured it, and the model as PyTorch
runs it there without a graph, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu.runs import HERE, prepared, replayed
from heliograph.core.policy import Policy
from heliograph.core.templates import KernelNode, Node, decode_catalogue
from heliograph.core.verify import verify
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
    assert len(told["digests"]) == said["eager"]["steps"] == REPLAYS * len(said["nodes"])
    assert not told["torch"]
    assert told["after_ready"] == {"modules_loaded": 0, "bytes_mapped": 0}
    origins = {origin for origin, _ in said["functions"]}
    if name != "llama":
        assert any("cublas" in origin for origin in origins), origins
        assert any("cudnn" in function for _, function in said["functions"]), said["functions"]
    print(json.dumps({"model": name, "nodes": said["nodes"], "functions": len(said["functions"]),
                      "told": told["phases"], "eager": said["eager"], "outputs": said["outputs"]}))  # fmt: skip


def test_both_ways_to_retain_give_one_core_digest(tmp_path: Path) -> None:
    cores = []
    for retain in ("template", "executable"):
        said = captured(tmp_path, "llama", retain=retain, replays=1)
        assert (said["counters"]["executables_created"] > 0) == (retain == "executable")
        cores.append((tmp_path / "cores").rename(tmp_path / retain) / Path(said["core"]).name)
    assert different(*cores) == []
    assert cores[0].joinpath("core.json").read_bytes() == cores[1].joinpath("core.json").read_bytes()


def different(first: Path, second: Path) -> list[str]:
    """Where two cores differ: nodes with the bytes of their parameters, and fields of the manifest."""
    with verify(first, Policy.local()) as one, verify(second, Policy.local()) as two:
        names = [function.name for function in one.core.functions]
        catalogues = decode_catalogue(one.columns), decode_catalogue(two.columns)
        found = []
        for graph, (ours, theirs) in zip(one.core.graphs, zip(*catalogues, strict=True), strict=True):
            if ours.edges != theirs.edges:
                found.append(f"edges of {graph.name}")
            for number, (node, twin) in enumerate(zip(ours.nodes, theirs.nodes, strict=True)):
                if node != twin:
                    found.append(f"node {number} of {graph.name}, {told(node, twin, names)}")
        fields = [name for name in one.core.__struct_fields__ if getattr(one.core, name) != getattr(two.core, name)]
    return [*found[:20], *([f"{len(found)} nodes or edges"] if found else []), *fields]


def told(node: Node, twin: Node, names: list[str]) -> str:
    if not isinstance(node, KernelNode) or not isinstance(twin, KernelNode):
        return f"{node} and {twin}"
    bytes_of = zip(node.params, twin.params, strict=True)
    differing = [f"{at}: {one:#04x} {two:#04x}" for at, (one, two) in enumerate(bytes_of) if one != two]
    other = [name for name in ("origin", "function", "grid", "block", "shared", "form", "refs", "attrs")
             if getattr(node, name) != getattr(twin, name)]  # fmt: skip
    return f"{names[node.function]} of {node.origin}: bytes {', '.join(differing[:12])}; {', '.join(other)}"
