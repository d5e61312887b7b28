"""``make mutants``: removes each line that holds a lifetime, and wants the test named beside it to fail.

Such a line carries ``# holds: R4 tests/...::test_name`` (``//`` in C++), behind it or alone on the line before it. The
line is replaced by an empty statement in a copy of the sources; Python copies are used through PYTHONPATH, C++ copies
are compiled into an extension of their own. Exit 1 if a test passes without its line, fails with it, cannot run, or
does not end by itself: every run has a time limit, and what a hung one started is killed with it.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parent.parent
WORK = ROOT / "build" / "mutants"
MARK = re.compile(r"(#|//) holds: (R\d+) (tests/\S+\.py::\S+)\s*$")
LOOSE = re.compile(r"(#|//)\s*holds: R\d+")
JOBS = 2
TEST_SECONDS = 60  # of one test, by pytest; it may be unable to interrupt native code,
RUN_SECONDS = 2 * TEST_SECONDS  # so its process group has a limit as well
UNCHANGED_SECONDS = 600  # of all named tests together

# The editable install finds the package before PYTHONPATH does; a copy takes its place.
SITE = """import sys
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__name__ != "ScikitBuildRedirectingFinder"]
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    file: Path  # below ROOT
    line: int  # the one that is removed, from 1
    requirement: str
    test: str

    @property
    def native(self) -> bool:
        return self.file.suffix != ".py"

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}"


class Broken(Exception):
    """A mutant that says nothing: it cannot be made, or its test cannot be run."""


def find() -> Iterator[Mutant]:
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("native/**/*.cpp"), *ROOT.glob("native/**/*.h")]
    for path in sorted(sources):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if not LOOSE.search(line):
                continue
            mark = MARK.search(line)
            if mark is None:
                raise Broken(f"{path.relative_to(ROOT)}:{number}: write `holds: R<number> tests/<file>.py::<test>`")
            alone = not line[: mark.start()].strip()
            yield Mutant(path.relative_to(ROOT), number + alone, mark[2], mark[3])


def without_line(mutant: Mutant, text: str) -> str:
    """The source with an empty statement in place of the line. The line must be one whole statement."""
    lines = text.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    indent = line[: len(line) - len(line.lstrip())]
    if mutant.native:
        if not re.sub(r"\s*//.*", "", line).rstrip().endswith(";"):
            raise Broken(f"{mutant.place}: not one whole statement")
        lines[mutant.line - 1] = f"{indent};\n"
        return "".join(lines)
    whole = {(node.lineno, node.end_lineno) for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)}
    if (mutant.line, mutant.line) not in whole:
        raise Broken(f"{mutant.place}: not one whole statement")
    lines[mutant.line - 1] = f"{indent}pass\n"
    return "".join(lines)


class Package:
    """A copy of the Python package that tests import instead of the installed one."""

    def __init__(self, name: str) -> None:
        self.path = WORK / name
        shutil.rmtree(self.path, ignore_errors=True)
        package, caches = ROOT / "src" / "heliograph", shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, self.path / "heliograph", ignore=caches)
        (self.path / "sitecustomize.py").write_text(SITE)
        where = "import heliograph._native as n; print(n.__file__)"
        self.extension = Path(subprocess.check_output([sys.executable, "-c", where], text=True, cwd=ROOT).strip())
        self.use(self.extension)
        (self.path / "heliograph" / "_kernels").symlink_to(self.extension.parent / "_kernels")
        imported = self._run(
            ["-c", "import heliograph.device.graph as g; print(g.__file__)"], RUN_SECONDS
        ).stdout.strip()
        if not imported.startswith(str(self.path)):
            raise Broken(f"tests would import {imported} instead of the copy in {self.path}")

    def use(self, extension: Path) -> None:
        link = self.path / "heliograph" / self.extension.name
        link.unlink(missing_ok=True)
        link.symlink_to(extension)

    def test(self, tests: list[str], seconds: int = RUN_SECONDS) -> subprocess.CompletedProcess[str]:
        """Broken if the run does not end in time."""
        options = ["-q", "-x", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}"]
        return self._run(["-m", "pytest", *options, *tests], seconds)

    def _run(self, arguments: list[str], seconds: int) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.path), "PYTHONDONTWRITEBYTECODE": "1"}
        return bounded([sys.executable, *arguments], environment, seconds)


def bounded(command: list[str], environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """A run with all its output. Broken if it does not end in time; its whole process group is killed then."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            raise Broken(f"no end in {seconds} s") from error
    return subprocess.CompletedProcess(command, process.returncode, output)


class Extension:
    """A build of the extension from a copy of native/, without kernels and without optimisation."""

    def __init__(self) -> None:
        self._source, self._build = WORK / "native-source", WORK / "native-build"
        for path in [ROOT / "CMakeLists.txt", *(ROOT / "native").rglob("*")]:
            if path.is_file():
                self._write(self._source / path.relative_to(ROOT), path.read_bytes())
        configure = ["cmake", "-S", str(self._source), "-B", str(self._build), "-G", "Ninja"]
        options = ["-DHELIOGRAPH_HOST_KERNELS=OFF", "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_CXX_FLAGS_DEBUG=-O0"]
        options += [f"-DPython_EXECUTABLE={sys.executable}"]
        self._call([*configure, *options])

    def build(self, mutant: Mutant | None) -> Path:
        """The library with this mutant, or without any."""
        text = (ROOT / mutant.file).read_text() if mutant else ""
        if mutant:
            self._write(self._source / mutant.file, without_line(mutant, text).encode())
        try:
            self._call(["cmake", "--build", str(self._build)])
        finally:
            if mutant:
                self._write(self._source / mutant.file, text.encode())
        (built,) = self._build.glob("_native*.so")
        copy = WORK / f"{'unchanged' if mutant is None else f'{mutant.file.stem}-{mutant.line}'}.so"
        shutil.copy(built, copy)
        return copy

    @staticmethod
    def _write(path: Path, data: bytes) -> None:
        if path.exists() and path.read_bytes() == data:
            return  # an unchanged time of change: nothing to compile
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    @staticmethod
    def _call(command: list[str]) -> None:
        tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(command, env={**os.environ, "PATH": tools}, capture_output=True, text=True)
        if done.returncode:
            raise Broken(f"{' '.join(command[:3])} failed:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")


def verdict(done: subprocess.CompletedProcess[str]) -> str:
    """pytest ends with 1 when a test failed; a crash of the process is a failure as well."""
    if done.returncode == 0:
        return "SURVIVED"
    if done.returncode == 1 or done.returncode < 0:
        return "killed"
    return f"BROKEN (pytest ended with {done.returncode})\n{done.stdout[-2000:]}"


def try_python(mutant: Mutant, package: Package) -> str:
    copy = package.path / mutant.file.relative_to("src")
    text = (ROOT / mutant.file).read_text()
    try:
        copy.write_text(without_line(mutant, text))
        return verdict(package.test([mutant.test]))
    finally:
        copy.write_text(text)


def try_native(mutant: Mutant, package: Package, library: Path) -> str:
    try:
        package.use(library)
        return verdict(package.test([mutant.test]))
    finally:
        package.use(package.extension)


def check_unchanged(package: Package, mutants: list[Mutant], library: Path | None) -> None:
    """Broken if a named test fails with all lines in place."""
    for tests, extension in (
        ({m.test for m in mutants if not m.native}, package.extension),
        ({m.test for m in mutants if m.native}, library),
    ):
        if not tests or extension is None:
            continue
        package.use(extension)
        done = package.test(sorted(tests), UNCHANGED_SECONDS)
        package.use(package.extension)
        if done.returncode:
            raise Broken(f"a named test fails with its line in place:\n{done.stdout[-6000:]}")


def run(mutants: list[Mutant]) -> list[str]:
    """The verdict on each mutant, printed as it comes."""
    packages: Queue[Package] = Queue()
    for number in range(JOBS):
        packages.put(Package(f"python-{number}"))
    native = [mutant for mutant in mutants if mutant.native]
    extension = Extension() if native else None
    first = packages.get()
    check_unchanged(first, mutants, extension.build(None) if extension else None)
    packages.put(first)
    libraries = {mutant: extension.build(mutant) for mutant in native} if extension else {}

    def judge(mutant: Mutant) -> str:
        package = packages.get()
        started = time.monotonic()
        try:
            found = try_native(mutant, package, libraries[mutant]) if mutant.native else try_python(mutant, package)
        except Broken as error:
            found = f"BROKEN ({error})"
        finally:
            packages.put(package)
        took = f"{time.monotonic() - started:.1f} s"
        print(f"{found:9} {mutant.requirement:4} {mutant.place:48} {mutant.test} ({took})", flush=True)
        return found

    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(judge, mutants))


def main(wanted: list[str]) -> int:
    """``wanted``: parts of paths; only mutants of such files. None: all."""
    try:
        mutants = [m for m in find() if not wanted or any(part in str(m.file) for part in wanted)]
        verdicts = run(mutants)
    except Broken as error:
        print(error)
        return 1
    killed, survived = verdicts.count("killed"), verdicts.count("SURVIVED")
    broken = len(verdicts) - killed - survived
    print(f"{killed} killed, {survived} survived" + (f", {broken} broken" if broken else ""))
    return 0 if verdicts and killed == len(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
