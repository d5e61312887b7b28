"""Runs what only a GPU proves, in one call and within a time budget: python scripts/gpu_acceptance.py --out DIR

Tests run in several pytest processes at a time; what measures free memory or time runs alone, after the others. Each
test that begins, ends, or is stopped becomes a line of ``DIR/results.jsonl`` at once (the last line of a name counts),
so a run that is cut leaves every name. ``DIR/log.txt`` has what the processes printed, as they end. A process that dies
or stays in one test for too long costs that test: the rest goes on in another, as it does after a failure, which may
leave the device's addresses taken. ``--missing`` leaves out what passed before at this commit by the lines in DIR. Last
on stdout: a table of what did not pass. Exit status 0: all passed.

The processes run this file too: it then is pytest with a plugin that tells of each test through a pipe.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

AS_PYTEST = "as-pytest"  # first argument of those processes; then the pipe and pytest's arguments
ALWAYS = ("tests/gpu", "tests/device", "tests/conformance", "tests/capture")
IF_ASKED = {"accuracy": "tests/accuracy", "ops": "tests/ops"}
# What measures free memory, or time.
ALONE = re.compile(r"/(test_alone_\w+|test_catalogue)\.py::|::test_executable_states_what_it_costs\b")
LONGER = ("tests/accuracy/", 3)  # whose first tests wait for captures of SmolLM2: so many times as long
LONGEST_FIRST = (
    "test_cuda_gate",
    "test_kv_sizes",
    "test_gpu_handover",
    "test_models",
    "test_sanitizer",
    "test_lines",
    "test_edges",
)
SHARES = re.compile(r'scope="(module|session)"')  # a fixture that many tests of a file use
SPLIT = "tests/gpu/"  # files whose tests take long; cut into parts where they share no fixture
PART = 2  # tests
FRESH = 6  # processes that a file may have because of failures; then what is left fails together
DONE = ("passed", "skipped")
UNENDED = ("collected", "started", "not run", "cut")
TABLE_CHARACTERS = 9_000
ERROR_CHARACTERS = 2_000
LOG_BYTES = 200_000  # of one process, its end
LAST_WORDS_SECONDS = 3  # for the stacks of a process that is stopped
EXIT_SECONDS = 20
RESERVE_SECONDS = 8  # of the budget, to stop and to print


class Results:
    """Lines of DIR/results.jsonl, written as they come."""

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._run, self._lock = path, run, Lock()
        self.last: dict[str, dict[str, Any]] = {}

    def passed_before(self) -> set[str]:
        """Names that passed when they last ran to their end, by the lines of this run id."""
        lines = self._path.read_text().splitlines() if self._path.is_file() else []
        found = [line for line in map(json.loads, lines) if line["id"] == self._run]
        ended = {line["name"]: line["outcome"] for line in found if line["outcome"] not in UNENDED}
        return {name for name, outcome in ended.items() if outcome == "passed"}

    def add(self, name: str, outcome: str, seconds: float = 0, error: str = "") -> None:
        line = {"name": name, "outcome": outcome, "seconds": round(seconds, 2), "error": error, "id": self._run}
        with self._lock:
            self.last[name] = line
            with self._path.open("a") as file:
                file.write(json.dumps(line) + "\n")


@dataclass
class Part:
    """Tests for one process at a time."""

    title: str
    names: list[str]
    alone: bool = False  # on the machine
    shares: bool = True  # a fixture of the file; else what comes after a failure runs in a process of its own
    done: set[str] = field(default_factory=set)
    log: bytes = b""

    @property
    def left(self) -> list[str]:
        return [name for name in self.names if name not in self.done]


class Run:
    def __init__(self, root: Path, results: Results, log: Path, limits: argparse.Namespace) -> None:
        self.root, self.results, self._log, self._lock = root, results, log, Lock()
        self.until = time.monotonic() + limits.seconds - RESERVE_SECONDS
        self.test_seconds = limits.test_seconds

    def collect(self, places: list[str]) -> list[str]:
        """Names of the tests for a GPU in a folder, a file or a test."""
        part, names = Part(f"collecting {' '.join(places)}", places), []
        for event in self._pytest(part, ["--collect-only", "-q", *places]):
            if event["event"] == "collected":
                names = event["names"]
            elif event["event"] == "broken":
                self.results.add(event["name"], "error", error=event["error"])
        self._keep(part)
        return names

    def run(self, part: Part) -> None:
        """All tests of a part, in as many processes as it takes."""
        begin, fresh = time.monotonic(), 0 if part.shares else FRESH
        while part.left and time.monotonic() < self.until:
            running, since, before = "", time.monotonic(), len(part.done)
            for event in self._pytest(part, ["-v", "-s", *(["-x"] if fresh > 0 else []), *part.left]):
                name = event.get("name", "")
                if event["event"] == "started":
                    running, since = name, time.monotonic()
                    self.results.add(name, "started")
                elif event["event"] == "ended":
                    running = ""
                    part.done.add(name)
                    self.results.add(name, event["outcome"], time.monotonic() - since, event["error"])
                elif event["event"] in ("stopped", "exit") and running:
                    cut = time.monotonic() >= self.until
                    outcome = ("cut" if cut else "timeout") if event["event"] == "stopped" else "crashed"
                    part.done.add(running)
                    self.results.add(running, outcome, time.monotonic() - since, event["error"])
            fresh -= 1
            if len(part.done) == before:  # not one test began: a broken environment
                if time.monotonic() < self.until:
                    for name in part.left:
                        self.results.add(name, "error", error=last_line(part.log) or "the process began no test")
                    part.done.update(part.left)
                break
        for name in part.left:
            self.results.add(name, "not run", error="no time left")
        self._keep(part)
        count = Counter(self.results.last[name]["outcome"] for name in part.names)
        print(f"{time.monotonic() - begin:6.1f} s  {part.title}: {said(count)}", flush=True)

    def _pytest(self, part: Part, arguments: list[str]) -> Iterator[dict[str, Any]]:
        """What the plugin in one process tells; at its end ``stopped`` (by us: no time left) or ``exit``."""
        reader, writer = os.pipe()
        environment = os.environ | {"PYTHONFAULTHANDLER": "1", "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, __file__, AS_PYTEST, str(writer), "-m", "gpu", "-p", "no:cacheprovider"]
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [*command, "-o", "timeout=0", *arguments],
                cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                pass_fds=(writer,), start_new_session=True,
            )  # fmt: skip
            os.close(writer)
            limit = self.test_seconds * (LONGER[1] if part.title.startswith(LONGER[0]) else 1)
            stopped = yield from self._events(reader, limit)
            if stopped:
                os.kill(process.pid, signal.SIGABRT)  # pytest prints where each thread is
                time.sleep(LAST_WORDS_SECONDS)
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(EXIT_SECONDS)
            end_session(process.pid)  # also what it may have left running
            with suppress(subprocess.TimeoutExpired):  # in the driver it may be beyond reach
                process.wait(LAST_WORDS_SECONDS)
            os.close(reader)
            output.seek(0)
            log = output.read()
            part.log += log[-LOG_BYTES:]
        over = "the time of the run was over" if time.monotonic() >= self.until else f"no end in {limit:g} s"
        why = over if stopped else f"the process ended with status {process.returncode}"
        yield {"event": "stopped" if stopped else "exit", "error": why}

    def _events(self, reader: int, limit: float) -> Iterator[dict[str, Any]]:
        """Events until the process closes its end, or says nothing for too long: then it returns True."""
        rest = b""
        quiet = time.monotonic() + limit
        while (now := time.monotonic()) < min(quiet, self.until):
            if not select.select([reader], [], [], min(1, quiet - now))[0]:
                continue
            data = os.read(reader, 1 << 16)
            if not data:
                return False
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield json.loads(line)
            quiet = time.monotonic() + limit
        return True

    def _keep(self, part: Part) -> None:
        with self._lock, self._log.open("ab") as file:
            file.write(f"\n::: {part.title}\n".encode() + part.log)


def end_session(leader: int) -> None:
    """Kills what a process with a session of its own has started, in whatever process group, and the process."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            session = int(path.read_text().rpartition(")")[2].split()[3])
            if session == leader:
                os.kill(int(path.parent.name), signal.SIGKILL)


def last_line(log: bytes) -> str:
    lines = [line for line in log.decode(errors="replace").splitlines() if line.strip()]
    return lines[-1][:ERROR_CHARACTERS] if lines else ""


def parts(root: Path, names: list[str]) -> list[Part]:
    """The tests of each file, those that run alone apart, in the order in which they begin."""
    files: dict[tuple[bool, str], list[str]] = {}
    for name in names:
        files.setdefault((ALONE.search("/" + name) is not None, name.partition("::")[0]), []).append(name)
    made = []
    for alone, file in sorted(files, key=lambda key: (key[0], rank(key[1]))):
        found, shares = files[alone, file], SHARES.search((root / file).read_text()) is not None
        split = file.startswith(SPLIT) and not shares and not alone
        size = PART if split else len(found)
        for at in range(0, len(found), size):
            title = f"{file} from {at + 1}" if split else f"{file} alone" if alone else file
            made.append(Part(title, found[at : at + size], alone, shares))
    return made


def rank(file: str) -> int:
    stem = Path(file).stem
    return LONGEST_FIRST.index(stem) if stem in LONGEST_FIRST else len(LONGEST_FIRST) + (not file.startswith(SPLIT))


def said(count: Counter[str]) -> str:
    return ", ".join(f"{number} {outcome}" for outcome, number in sorted(count.items()))


def table(results: Results) -> str:
    """A line for each test that did not pass, then the sum; no longer than TABLE_CHARACTERS."""
    bad = [line for line in results.last.values() if line["outcome"] not in DONE]
    bad.sort(key=lambda line: line["outcome"] in UNENDED)  # those last
    room = max(120, TABLE_CHARACTERS // max(1, len(bad)) - 1)
    rows: list[str] = []
    for line in bad:
        row = f"{line['outcome']:8} {line['seconds']:6.1f} s  {line['name']}"
        error = " ".join(line["error"].split())
        rows.append(f"{row}  {error}"[: min(room, 400)])
    shown = list(_fitting(rows, TABLE_CHARACTERS))
    if len(shown) < len(rows):
        shown.append(f"... and {len(rows) - len(shown)} more: results.jsonl has them")
    return "\n".join([*shown, said(Counter(line["outcome"] for line in results.last.values())) or "no tests"])


def _fitting(rows: Iterable[str], characters: int) -> Iterator[str]:
    for row in rows:
        characters -= len(row) + 1
        if characters < 0:
            return
        yield row


def commit(root: Path) -> str:
    """Empty where there is no repository."""
    asked = subprocess.run(
        ["git", "rev-parse", "HEAD"],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    return asked.stdout.strip()


def arguments() -> argparse.Namespace:
    root = Path(__file__).parent.parent
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=root / "build" / "gpu", help="folder for the results (%(default)s)")
    parser.add_argument("--seconds", type=float, default=3600, help="end within so long (%(default)s)")
    parser.add_argument("--test-seconds", type=float, default=180, help="longest for one test (%(default)s)")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4), help="processes at a time")
    parser.add_argument("--only", nargs="+", metavar="FILE", help="these folders, files or tests (file.py::test)")
    parser.add_argument("--also", nargs="+", choices=IF_ASKED, default=[], help="the accuracy gate, the ops on Triton")
    parser.add_argument("--missing", action="store_true", help="leave out what passed before, by the lines in --out")
    parser.add_argument("--id", default="", help="what is tested, for --missing (default: the commit)")
    parser.add_argument("--root", type=Path, default=root, help="where tests/ lies (%(default)s)")
    given = parser.parse_args()
    given.id = given.id or commit(given.root)
    if given.missing and not given.id:
        parser.error("--missing needs --id where there is no repository")
    return given


def main() -> int:
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    results = Results(given.out / "results.jsonl", given.id)
    run = Run(given.root, results, given.out / "log.txt", given)
    signal.signal(signal.SIGTERM, lambda number, frame: setattr(run, "until", time.monotonic()))
    places = [given.only] if given.only else [[each] for each in ALWAYS]
    places += [[IF_ASKED[each]] for each in given.also]
    with ThreadPoolExecutor(given.jobs) as pool:
        names = list(dict.fromkeys(name for found in pool.map(run.collect, places) for name in found))
        passed = results.passed_before() if given.missing else set()
        wanted = [name for name in names if name not in passed]
        print(f"{len(names)} tests, {len(names) - len(wanted)} of them passed before", flush=True)
        for name in wanted:
            results.add(name, "collected")
        made = parts(given.root, wanted)
        list(pool.map(run.run, [part for part in made if not part.alone]))
    for part in made:
        if part.alone:
            run.run(part)
    print(table(results), flush=True)
    return 0 if names and all(line["outcome"] in DONE for line in results.last.values()) else 1


# ---- the plugin: one line of JSON for each event ----
class Teller:
    """Tells of the tests of this process."""

    def __init__(self, pipe: int) -> None:
        self._pipe, self._outcome, self._error = pipe, "", ""

    def _tell(self, **event: object) -> None:
        data = json.dumps(event).encode() + b"\n"
        while data:
            data = data[os.write(self._pipe, data) :]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._tell(event="broken", name=report.nodeid, error=_error(report))

    def pytest_collection_finish(self, session: Any) -> None:
        self._tell(event="collected", names=[item.nodeid for item in session.items])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._outcome, self._error = "passed", ""
        self._tell(event="started", name=nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.outcome == "passed" or self._outcome in ("failed", "error"):
            return
        broken = report.outcome == "failed" and report.when != "call"
        self._outcome, self._error = "error" if broken else report.outcome, _error(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._tell(event="ended", name=nodeid, outcome=self._outcome, error=self._error)


def _error(report: Any) -> str:
    """What a failed assertion or an exception says first."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash else str(report.longrepr)
    return text.strip()[:ERROR_CHARACTERS]


def as_pytest(pipe: str, *arguments: str) -> int:
    sys.path[0] = os.getcwd()  # as with python -m pytest; the folder of this file has modules of its own
    return int(pytest.main(list(arguments), plugins=[Teller(int(pipe))]))


if __name__ == "__main__":
    sys.exit(as_pytest(*sys.argv[2:]) if sys.argv[1:2] == [AS_PYTEST] else main())
