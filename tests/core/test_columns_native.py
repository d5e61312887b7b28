"""The native check under sanitizers: no altered column makes it read beyond a column or overflow."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

import pytest

from core.test_catalogue import cuda_parts
from heliograph.core.columns import read_columns
from heliograph.core.format import READ_ONLY_ROLES
from heliograph.core.layout import addresses, chunk_count
from tiny_core import TinyCore, tiny_core

NATIVE = Path(__file__).parents[2] / "native"
RUNS = 6_000


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("fuzz") / "columns_fuzz"
    flags = ["-std=c++20", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", f"-I{NATIVE}"]
    sources = [NATIVE / "columns.cpp", Path(__file__).with_name("columns_fuzz.cpp")]
    subprocess.run(["g++", *flags, "-o", program, *sources], check=True)
    return program


def facts(parts: TinyCore) -> bytes:
    """As ``catalogue.check_catalogue`` collects them, in the form that the program reads."""
    core = parts.core
    numbers = [int(core.target.device == "host"), len(core.functions)]
    for function in core.functions:
        numbers += [function.param_bytes, len(function.pointers), *function.pointers]
    numbers.append(len(core.buffers))
    for address, buffer in zip(addresses(core.regions, core.buffers), core.buffers, strict=True):
        numbers += [address, buffer.size, int(buffer.role not in READ_ONLY_ROLES)]
    numbers.append(len(core.graphs))
    for graph in core.graphs:
        numbers += [graph.nodes, graph.edges, graph.flags]
    numbers.append(chunk_count(core.weights.size))
    return struct.pack(f"<{len(numbers)}Q", *numbers)


@pytest.mark.parametrize("device", ["host", "cuda"])
def test_no_altered_column_is_read_out_of_bounds(fuzzer: Path, tmp_path: Path, device: str) -> None:
    """M70 to M85 (B3)"""
    parts = tiny_core(weight_bytes=64 << 10) if device == "host" else cuda_parts()
    records = {name: bytes(column) for name, column in read_columns(parts.graphs_bytes()).items()}
    records["facts"] = facts(parts)
    data = tmp_path / "columns"
    data.write_bytes(b"".join(f"{name} {len(value)}\n".encode() + value for name, value in records.items()))
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    result = subprocess.run(
        [fuzzer, data, str(seed), str(RUNS)], capture_output=True, text=True, timeout=280, check=False
    )
    assert result.returncode == 0, result.stderr[-4000:]
    accepted, refused = map(int, result.stdout.split())
    assert accepted >= 1  # the first run is of the unaltered columns
    assert refused > RUNS // 2
    assert accepted + refused == RUNS
