"""Shared by all tests: the last line of the run, and the interpreter without torch."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytest_plugins = ["fake_cuda.fixtures"]


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
