"""A published study core, and scripts run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from heliograph.core.sign import SigningKey, scratch_key
from study import Script, Study, loads, make

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def fresh_key() -> SigningKey:
    return scratch_key()


@pytest.fixture(scope="session")
def fresh_core(tmp_path_factory: pytest.TempPathFactory, fresh_key: SigningKey) -> Path:
    return make(tmp_path_factory.mktemp("fresh"), Study(), fresh_key)


@pytest.fixture
def script(fresh_core: Path, fresh_key: SigningKey) -> Script:
    """Runs a script of this folder with the core, its public key and more arguments; gives its last line as JSON."""

    def run(
        name: str, *arguments: str, core: Path = fresh_core, environment: Mapping[str, str] | None = None
    ) -> dict[str, object]:
        command = [sys.executable, str(HERE / name), str(core), fresh_key.public_bytes.hex(), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, **(environment or {})}
        )
        assert done.returncode == 0, done.stderr
        return loads(done.stdout)

    return run
