"""``capture``: options that cannot work are told before the model is read. Here there is none to read."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from test_main import heliograph

from heliograph import errors
from heliograph.cli.group import exit_code

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTLESS = """
from torch import nn
from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec

def make():
    entry = EntrySpec("step", ({},), {"x": TensorSpec((8,), "f32")}, lambda m, x: 1 / 0)
    return nn.Linear(8, 2), CaptureSpec("linear", (entry,))
"""


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def refusal(*arguments: str | Path, code: int) -> dict[str, str]:
    error = json.loads(heliograph("capture", *arguments, "--json", check=code).stderr)
    kind = getattr(errors, error["error"])
    assert exit_code(kind("", found="", required="", hint="")) == code
    return error


@pytest.mark.parametrize("options", [("--cap", "0"), ("--cap", "10000000000GiB"), ("--name", "../x")])
def test_a_cap_or_a_name_that_cannot_be_is_told_first(options: tuple[str, ...], tmp_path: Path) -> None:
    refusal("no.gguf", "--cores", tmp_path / "cores", *options, code=2)


def test_a_home_without_a_key_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path / "file"))
    assert "development.pem" in refusal("no.gguf", "--cores", tmp_path / "cores", code=7)["doing"]


def test_a_port_that_is_taken_is_told_first(tmp_path: Path, taken: int) -> None:
    serve = ("--then", "serve", "--port", str(taken))
    assert str(taken) in refusal("no.gguf", "--cores", tmp_path / "cores", *serve, code=2)["doing"]


def test_a_server_of_what_has_no_text_is_told_before_it_is_captured(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(TEXTLESS)
    error = refusal(f"{tmp_path / 'model.py'}:make", "--cores", tmp_path, "--then", "serve", "--port", "0", code=2)
    assert "--then serve" in error["found"]


def test_a_path_that_cannot_be_a_folder_is_told_first_and_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere" / "folder")
    for path, cause in (("file", "EEXIST"), ("file/cores", "ENOTDIR"), ("link", "EEXIST")):
        error = refusal("no.gguf", "--cores", tmp_path / path, code=7)
        assert error["found"].startswith(cause)
        assert "room" not in error["required"]
        assert "log" not in error["hint"]
    assert error["doing"].endswith("link")


def test_a_pytorch_without_cuda_is_told_first(tmp_path: Path) -> None:
    assert "no CUDA" in refusal("no.gguf", "--cores", tmp_path / "cores", "--target", "cuda", code=3)["found"]


@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice, as timeout does"])
def test_a_capture_that_is_terminated_leaves_nothing(tmp_path: Path, times: int) -> None:
    """R16"""
    program = [str(Path(sys.executable).parent / "heliograph"), "capture", f"{EXAMPLES / 'classifier.py'}:classifier"]
    capture = subprocess.Popen([*program, "--cores", str(tmp_path / "cores")], stdout=subprocess.DEVNULL)
    children = Path(f"/proc/{capture.pid}/task/{capture.pid}/children")
    started: list[str] = []
    checking = False
    while not checking:
        assert capture.poll() is None
        time.sleep(0.02)
        with suppress(FileNotFoundError, ProcessLookupError):  # a child that has just ended
            started = children.read_text().split()
            commands = [Path("/proc", pid, "cmdline").read_bytes() for pid in started]
            checking = any(b"heliograph.runtime.check" in command for command in commands)
    for _ in range(times):
        capture.terminate()
        time.sleep(0.01)
    assert capture.wait(60) in (143, -signal.SIGTERM)  # the latter for a second signal while the interpreter ends
    assert not (tmp_path / "cores").exists()
    end = time.monotonic() + 20  # a checker that had just started ends by itself
    while any(Path("/proc", pid).exists() for pid in started):
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize(("ending", "code"), [("--json >/dev/full", 7), (">&-", 0)])
def test_a_capture_that_cannot_print_tells_of_its_core_on_standard_error(
    tmp_path: Path, ending: str, code: int
) -> None:
    program = [Path(sys.executable).parent / "heliograph", "capture", f"{EXAMPLES / 'classifier.py'}:classifier"]
    command = ["sh", "-c", f'exec "$@" {ending}', "sh", *map(str, program), "--cores", str(tmp_path), "--name", "made"]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == code, ended.stderr
    assert str(tmp_path / "made") in ended.stderr
    assert "Traceback" not in ended.stderr
    assert (tmp_path / "made").is_dir()


def test_with_nothing_wrong_the_model_is_read(tmp_path: Path) -> None:
    refusal("no.gguf", "--cores", tmp_path / "cores", "--cap", "1MiB", "--name", "x", code=7)
    assert not (tmp_path / "cores").exists()
