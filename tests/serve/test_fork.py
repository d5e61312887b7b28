"""The copies that a start makes of itself: of a process with one thread and nothing open, and each on its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = """
import json, os, sys
import heliograph.serve.fork as fork
before = {"tasks": len(os.listdir("/proc/self/task")), "open": sorted(map(int, os.listdir("/proc/self/fd")))[:-1]}
copies = fork.make_copies()
print(json.dumps(before | {"worker": copies.worker.pid, "renderer": copies.renderer.pid}), flush=True)
sys.stdin.readline()
os.kill(os.getpid(), 9)
"""
RENDER = """
import json, os
from heliograph.errors import TemplateError
from heliograph.runtime.template import ChatTemplate
from heliograph.serve.fork import make_copies

first = make_copies().renderer
template = ChatTemplate("{% if long %}{{ '{:>999999999}'.format(1) }}{% endif %}ok {{ n }}", first)
said = [template.render({"n": 1}), template._process is first]
try:
    template.render({"n": 2, "long": True})
except TemplateError as error:
    said.append(error.found)
said += [template.render({"n": 3}), template._process is first]
template.close()
print(json.dumps(said))
"""
LIMIT = 30.0


class Started:
    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.said = json.loads(self.process.stdout.readline())
        self.worker, self.renderer = int(self.said["worker"]), int(self.said["renderer"])


@pytest.fixture
def started() -> Iterator[Started]:
    made = Started()
    with made.process:
        yield made
        made.process.kill()


def until(condition: object, what: str) -> None:
    end = time.monotonic() + LIMIT
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, what
        time.sleep(0.01)


def name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


def imported(started: Started) -> None:
    until(lambda: name(started.worker) == "helio-worker", "the worker has begun")
    until(lambda: "minijinja" in Path(f"/proc/{started.renderer}/maps").read_text(), "the renderer has begun")


def files(pid: int) -> list[str]:
    folder = Path(f"/proc/{pid}/fd")
    return [os.readlink(folder / each) for each in sorted(os.listdir(folder), key=int) if int(each) > 2]


def test_the_process_that_is_copied_has_one_thread_and_nothing_open(started: Started) -> None:
    assert started.said["tasks"] == 1
    assert started.said["open"] == [0, 1, 2]


def test_a_copy_holds_its_own_end_alone(started: Started) -> None:
    imported(started)
    assert files(started.renderer) == []
    (end,) = files(started.worker)
    assert end.startswith("socket:")
    assert end not in files(started.process.pid)


def test_a_copy_has_nothing_in_memory_that_only_the_others_need(started: Started) -> None:
    imported(started)
    until(lambda: "blake3" in Path(f"/proc/{started.worker}/maps").read_text(), "the worker has its imports")
    worker = Path(f"/proc/{started.worker}/maps").read_text()
    assert not any(name in worker for name in ("tokenizers", "minijinja", "uvloop", "httptools", "numpy"))
    renderer = Path(f"/proc/{started.renderer}/maps").read_text()
    assert not any(name in renderer for name in ("tokenizers", "uvloop", "httptools", "numpy"))


def test_the_terminals_interrupt_is_for_the_front_alone(started: Started) -> None:
    for pid in (started.worker, started.renderer):
        until(lambda pid=pid: os.getpgid(pid) == pid, "a group of its own")
        os.kill(pid, signal.SIGINT)
    imported(started)


def test_copies_end_with_the_front_however_it_ends(started: Started) -> None:
    assert started.process.stdin is not None
    started.process.stdin.write(b"\n")
    started.process.stdin.flush()
    assert started.process.wait(LIMIT) == -signal.SIGKILL
    for pid in (started.worker, started.renderer):
        until(lambda pid=pid: not Path(f"/proc/{pid}").exists() or state(pid) == "Z", "the end of a copy")


def test_a_copy_renders_within_the_bounds_and_another_process_after_it() -> None:
    done = subprocess.run([sys.executable, "-c", RENDER], capture_output=True, text=True, check=True, timeout=LIMIT)
    assert json.loads(done.stdout) == ["ok 1", True, "more than 512 MiB of memory", "ok 3", False]


def test_a_renderer_that_gets_no_template_ends_quietly() -> None:
    code = "from heliograph.serve.fork import make_copies\nr = make_copies().renderer\nr.stdin.close()\nprint(r.wait())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=LIMIT)
    assert (done.stdout, done.stderr) == ("0\n", "")


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return "Z"
