"""Shared by all tests: the last line of the run, and the interpreter without torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# CI draws the same examples every time; elsewhere they are random, and a failure prints how to repeat it.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("local", deadline=None, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
torch.set_num_threads(1)  # its threads spin while they wait, which starves what runs beside them

ROOT = Path(__file__).parent.parent
pytest_plugins = ["fake_cuda.fixtures", "fake_cupti.fixtures"]


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys and trust of this run, for it and every process it starts; never those of the person who runs it."""
    folder = tmp_path_factory.mktemp("home")
    os.environ["HELIOGRAPH_HOME"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """SmolLM2-135M-Instruct as published, from the cache."""
    fetched = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fetch_model.py")], check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(fetched.stdout.strip())


@pytest.fixture(scope="session")
def smollm2_core(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2's core, captured once a run by the command that users have."""
    cores = tmp_path_factory.mktemp("cores")
    command = [sys.executable, "-m", "heliograph", "capture", str(smollm2), "--cores", str(cores), "--name", "smollm2"]
    subprocess.run(command, check=True)
    return cores / "smollm2"


@pytest.fixture(scope="session")
def torch_free_python() -> Path:
    """The interpreter of an environment that has the package and no torch (made by `make test`)."""
    python = ROOT / ".venv-serve" / "bin" / "python"
    if not python.is_file():
        pytest.fail(f"{python} is missing: run `make test`, which makes the environment without torch")
    return python


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """The last line of a run: N passed, N failed, N skipped."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or config.option.collectonly:
        return
    count = {kind: len(reporter.stats.get(kind, ())) for kind in ("passed", "failed", "error", "skipped")}
    print(f"{count['passed']} passed, {count['failed'] + count['error']} failed, {count['skipped']} skipped")
