"""Which line of the model each node comes from: nearly all are known, and they are lines of the model's own files."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from gpu.runs import HERE, prepared
from gpu.test_models import MODELS
from heliograph.models import llama
from tiny_models import random_model, write_gguf

pytestmark = pytest.mark.gpu
LINE = re.compile(r".* (?P<file>\S+\.py):(?P<line>\d+)\Z")  # "layers.0/mm.1 decoder.py:12"
OUTPUT = re.compile(r"copy_\.\d+ -\Z")  # what the capture adds behind the model: a result to where callers read it
# A file that many nodes come from, and where lines of it are.
FILES = {
    "decoder": ("decoder.py", HERE.parent.parent / "examples" / "decoder.py"),
    "transformers": ("transformers/models/llama/modeling_llama.py", None),
    "llama": ("heliograph/models/llama.py", Path(llama.__file__)),
}


@pytest.mark.parametrize("name", FILES)
def test_nodes_are_attributed_to_lines_of_the_model(tmp_path: Path, name: str) -> None:
    factory, arguments = MODELS[name]
    if name == "llama":
        write_gguf(tmp_path / "m.gguf", random_model("llama"), matrices="Q4_1", embedding="Q8_0")
    given = (each.format(folder=tmp_path) for each in arguments)
    said = prepared(tmp_path / "cores", factory, *given, exact=False)
    every = [node["line"] for graph in said["graphs"].values() for node in graph]
    origins = [origin for origin in every if not OUTPUT.match(origin)]
    found = [match for match in map(LINE.match, origins) if match]
    share = len(found) / len(origins)
    files = Counter(match["file"] for match in found)
    told = {"nodes": len(every), "of the model": len(origins), "attributed": share, "files": files.most_common(6)}
    print(json.dumps({"model": name, **told}))
    assert share > 0.95, [origin for origin in origins if not LINE.match(origin)][:20]
    file, source = FILES[name]
    assert files[file] > 0.3 * len(found)
    assert not any(match["file"].startswith(("/", "torch/")) for match in found)
    if source is not None:
        code = source.read_text().splitlines()
        lines = {int(match["line"]) for match in found if match["file"] == file}
        assert all(code[line - 1].strip() and not code[line - 1].strip().startswith("#") for line in lines)
