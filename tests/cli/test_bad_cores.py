"""H9: a core that is not what was signed, or was not signed by anybody trusted, ends every command alike."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heliograph import errors
from heliograph.cli.group import run
from heliograph.core.format import BLOBS, CORE_JSON, GRAPHS, PROVENANCE_JSON, SIGNATURE
from tiny_models import capture_small, random_model, write_hf

COMMANDS = {
    "verify": (), "inspect": (), "replay": (), "generate": ("Hi", "--max-tokens", "1"), "doctor": (),
    "serve": ("--port", "0"),
}  # fmt: skip


@pytest.fixture(scope="module")
def core(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = tmp_path_factory.mktemp("model")
    write_hf(model, random_model("llama"))
    return capture_small(model, tmp_path_factory.mktemp("cores"))


def write(path: Path, data: bytes) -> None:
    if path.exists():
        path.chmod(0o644)
    path.write_bytes(data)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    write(path, data)


def flip_kernels(core: Path) -> None:
    flip(core / BLOBS / json.loads((core / CORE_JSON).read_text())["modules"][0]["blob"])


def sign(core: Path, change: Callable[[dict[str, Any]], None]) -> None:
    envelope = json.loads((core / SIGNATURE).read_text())
    change(envelope)
    write(core / SIGNATURE, json.dumps(envelope, separators=(",", ":"), sort_keys=True).encode())


FAULTS: dict[str, tuple[Callable[[Path], object], type[errors.CoreError]]] = {
    "the key is not trusted": (lambda core: None, errors.UntrustedError),
    "core.json is altered": (lambda core: flip(core / CORE_JSON), errors.SignatureError),
    "provenance.json is altered": (lambda core: flip(core / PROVENANCE_JSON), errors.SignatureError),
    "the graphs are altered": (lambda core: flip(core / GRAPHS), errors.TamperedError),
    "the kernels are altered": (flip_kernels, errors.TamperedError),
    "nobody signed": (lambda core: sign(core, lambda signed: signed.update(signatures=[])), errors.SignatureError),
    "the signature is another": (
        lambda core: sign(core, lambda signed: signed["signatures"][0].update(sig=b64encode(bytes(64)).decode())),
        errors.SignatureError,
    ),
    "the signature is missing": (lambda core: (core / SIGNATURE).unlink(), errors.MissingFileError),
    "a file is missing": (lambda core: (core / GRAPHS).unlink(), errors.MissingFileError),
    "a file is extra": (lambda core: write(core / "README", b""), errors.ExtraFileError),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_core_ends_every_command_with_the_exit_code_of_cores(
    core: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    fault: str, command: str,
) -> None:  # fmt: skip
    alter, error = FAULTS[fault]
    bad = shutil.copytree(core, tmp_path / core.name)
    bad.chmod(0o755)
    alter(bad)
    if error is errors.UntrustedError:
        monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path / "home"))
    arguments = [command, str(bad), *COMMANDS[command], "--json"]
    if command == "serve":  # it takes the process for its own
        program = str(Path(sys.executable).parent / "heliograph")
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
        code, said = done.returncode, done.stderr
    else:
        with pytest.raises(SystemExit) as ended:
            run(arguments)
        code, said = ended.value.code, capfd.readouterr().err
    assert (code, json.loads(said.splitlines()[-1])["error"]) == (5, error.__name__)
