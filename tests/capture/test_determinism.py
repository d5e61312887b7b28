"""R10: the core digest is a function of the model, the spec and the kernels, and of nothing around the capture."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("small_models.py")
HOST = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh")


def digest_of(
    folder: Path, retain: str, environment: Mapping[str, str], *, threads: int = 1, prefix: tuple[str, ...] = ()
) -> str:
    """The core digest of a capture by a process of its own, in a folder of its own."""
    folder.mkdir()
    command = [*prefix, sys.executable, str(SCRIPT), str(folder / "cores"), retain, str(threads)]
    variables = {**os.environ, "HELIOGRAPH_HOME": str(folder / "home"), **environment}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=variables)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()[-1]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp("plain") / "run"
    return digest_of(folder, "template", {"PYTHONHASHSEED": "1", "TZ": "UTC"}), folder


@pytest.mark.timeout(600)
def test_another_process_folder_hash_seed_time_zone_host_and_thread_count_give_the_same_core(
    plain: tuple[str, Path], tmp_path: Path
) -> None:
    surroundings = {"PYTHONHASHSEED": "4242", "TZ": "Asia/Tokyo", "OMP_NUM_THREADS": "2", "LC_ALL": "C"}
    other = digest_of(tmp_path / "a folder of another name", "template", surroundings, threads=2, prefix=HOST)
    assert other == plain[0]
    times = [records(folder)["created"] for folder in (plain[1], tmp_path / "a folder of another name")]
    assert times[0] != times[1]


@pytest.mark.timeout(600)
def test_both_ways_to_retain_graphs_give_the_same_core(plain: tuple[str, Path], tmp_path: Path) -> None:
    other = digest_of(tmp_path / "run", "executable", {})
    assert other == plain[0]
    assert records(tmp_path / "run")["retain"] == "executable"
    costs = {item["name"]: int(item["value"]) for item in records(tmp_path / "run")["costs"]}
    assert costs["executables"] == 3
    assert costs["executables_host_bytes"] > 0


def records(folder: Path) -> dict:
    (core,) = [path for path in (folder / "cores").iterdir() if not path.name.startswith(".")]
    return json.loads((core / "provenance.json").read_text())


def test_no_path_and_no_host_is_in_the_core(plain: tuple[str, Path]) -> None:
    (core,) = [path for path in (plain[1] / "cores").iterdir() if not path.name.startswith(".")]
    forbidden = [str(SCRIPT.parent).encode(), str(plain[1]).encode(), os.uname().nodename.encode()]
    for file in (core / "core.json", core / "provenance.json", core / "graphs.safetensors"):
        data = file.read_bytes()
        assert not [text for text in forbidden if text in data]
    assert b"small_models.py:" in (core / "graphs.safetensors").read_bytes()
