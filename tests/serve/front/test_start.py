"""The first milliseconds: a worker, an address, and nothing heavy before them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from served import Heard

from heliograph.errors import CoreError, FileKindError, MissingFileError, UsageError
from heliograph.serve.front.spawn import Process, spawn
from heliograph.serve.front.start import Options, listen, serve, tell_start, url_of


def test_any_free_port_is_found_and_told() -> None:
    with listen("127.0.0.1", 0) as listener:
        host, port = listener.getsockname()
        assert url_of(listener) == f"http://{host}:{port}"
        socket.create_connection((host, port), timeout=5).close()


def test_an_address_of_six_bytes_groups_is_in_brackets() -> None:
    with listen("::1", 0) as listener:
        assert url_of(listener).startswith("http://[::1]:")


def test_a_port_in_use_is_refused_and_another_one_is_not() -> None:
    with listen("127.0.0.1", 0) as listener:
        with pytest.raises(UsageError):
            listen("127.0.0.1", listener.getsockname()[1])
        listen("127.0.0.1", 0).close()


@pytest.mark.parametrize("host", ["203.0.113.1", "no.such.host.invalid"])
def test_an_address_of_another_machine_is_refused(host: str) -> None:
    with pytest.raises(UsageError):
        listen(host, 0)


def started() -> Process:
    process = spawn()
    tell_start(process, Options(core=Path("nowhere")))
    return process


def ended(process: Process) -> int:
    async def wait() -> int:
        async with asyncio.timeout(30):
            return await process.ended()

    return asyncio.run(wait())


def test_a_worker_is_a_process_that_can_be_killed_and_is_reaped() -> None:
    process = started()
    process.kill()
    assert ended(process) == -signal.SIGKILL
    process.kill()  # no effect: the number may be another process's by now
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    process.socket.close()


def test_a_worker_ends_with_its_front() -> None:
    process = started()
    process.socket.close()
    assert ended(process) in (0, 1)  # 1 if it got as far as the core that is not there


def test_a_server_whose_port_is_taken_leaves_no_worker() -> None:
    heard = Heard()
    with listen("127.0.0.1", 0) as listener:
        options = Options(core=Path("nowhere"), port=listener.getsockname()[1])
        process = spawn()
        with pytest.raises(UsageError):
            serve(options, heard, process)
    assert ended(process) == -signal.SIGKILL
    assert heard.listened == []


@pytest.mark.parametrize(("core", "error"), [("nowhere", MissingFileError), (__file__, FileKindError)])
def test_a_server_of_no_core_says_so_before_it_says_that_it_listens(core: str, error: type[CoreError]) -> None:
    heard, process = Heard(), spawn()
    with pytest.raises(error):
        serve(Options(core=Path(core)), heard, process)
    assert ended(process) in (-signal.SIGKILL, 1)  # 1 if it found that out as well
    assert heard.listened == []


def loaded(code: str) -> set[str]:
    """The modules that a fresh process has after some code."""
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_only_what_its_copies_need_too_is_imported_before_they_are_made() -> None:
    modules = loaded("import heliograph.cli.main, heliograph.serve.fork")
    assert modules.isdisjoint({"asyncio", "click", "uvicorn", "starlette", "tokenizers", "minijinja", "logging"})


def test_the_front_needs_neither_torch_nor_numpy_nor_the_device() -> None:
    modules = loaded("import heliograph.serve.front.server, heliograph.serve.front.exposition")
    assert modules.isdisjoint({"torch", "numpy", "heliograph.device", "heliograph.runtime.load", "heliograph.capture"})
    assert "uvicorn" in modules


def test_what_only_metrics_and_version_need_is_not_imported_at_the_start() -> None:
    modules = loaded("import heliograph.serve.front.server")
    assert modules.isdisjoint({"prometheus_client", "importlib.metadata"})
