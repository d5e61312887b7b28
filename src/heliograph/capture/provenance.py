"""The record of how a core was made: what a reviewer needs to match two exports, and nothing that says who or where.

Nothing here reaches the core digest. Paths in the command are replaced by digests of what they hold; of the
environment only listed variables are kept.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from importlib import metadata
from pathlib import Path

import msgspec
from blake3 import blake3

import heliograph
from heliograph import _native
from heliograph.capture.environment import recorded_environment
from heliograph.core.encoding import utf8_text
from heliograph.core.format import FORMAT
from heliograph.core.manifest import Item, Phase, Provenance
from heliograph.core.provenance import own_names, tells_name
from heliograph.core.write import utc_text
from heliograph.errors import UsageError

PACKAGE = Path(heliograph.__file__).parent
VERSIONS = ("heliograph", "torch", "blake3", "msgspec", "safetensors", "cryptography", "numpy", "gguf")
OWN_FILES = ("src", "native", "CMakeLists.txt", "pyproject.toml")  # what decides behaviour in a source checkout
PIECE = 8 << 20  # bytes a read while a file is hashed
NOTHING_READ: Mapping[str, str] = {}
# ``--option=``, a path, and the function of ``path/to/file.py:function``.
_WORD = re.compile(r"([^=/]*=)?(.*?)((?<=\.py):\w+)?", re.DOTALL)


@dataclass(slots=True)
class Notes:
    """What is noted while a capture goes on. ``sources``: the model's files, path to BLAKE3;
    ``families``: of the kernels that the graphs use."""

    retain: str
    sources: Mapping[str, str] = field(default_factory=dict)
    families: tuple[str, ...] = ()
    device: dict[str, str] = field(default_factory=dict)
    costs: dict[str, str] = field(default_factory=dict)
    phases: dict[str, int] = field(default_factory=dict)
    census: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()


def provenance(notes: Notes) -> Provenance:
    """The record so far; ``completed`` brings it up to date."""
    commit, uncommitted = source_state(PACKAGE.parent.parent)
    read = {os.path.realpath(path): digest for path, digest in notes.sources.items()}
    return Provenance(
        format=FORMAT,
        created=utc_text(datetime.now(UTC)),
        command=tuple(without_paths(part, partial(path_digest, read=read)) for part in (sys.executable, *sys.argv)),
        commit=commit,
        uncommitted=uncommitted,
        environment=_items({name: without_paths(value) for name, value in recorded_environment().items()}),
        compiler=_items({name: without_paths(value.strip()) for name, value in _native.BUILD.items()}),
        versions=_items(_versions()),
        libraries=_items(native_libraries()),
        sources=_items(kernel_sources(notes.families)),
        device=_items(notes.device),
        source_files=_items(_named(notes.sources)),
        tuning_cache="",
        seed=0,
        retain=notes.retain,
        costs=(),
        phases=(),
        tuning_log=(),
        findings=(),
    )


def completed(record: Provenance, notes: Notes) -> Provenance:
    """The record with what was noted since."""
    return msgspec.structs.replace(
        record,
        costs=_items(notes.costs),
        phases=tuple(Phase(name=name, nanoseconds=spent) for name, spent in notes.phases.items()),
        findings=(*notes.census, *notes.findings),
    )


def _items(values: Mapping[str, str]) -> tuple[Item, ...]:
    return tuple(Item(name=name, value=value) for name, value in sorted(values.items()))


# ---- the command ---------------------------------------------------------------------------------------------------
def check_command() -> None:
    """UsageError if the command or a recorded variable names this user or this host, other than in a path."""
    for text in (*sys.argv, *recorded_environment().values()):
        if tells_name(without_paths(text, lambda path: "path"), own_names()):
            raise UsageError(
                "reading the command",
                found=f"{text!r}, which names this user or this host",
                required="words that a core's record can keep",
                hint="choose another word; if it is a path, write ./ before it: paths are replaced by digests",
            )


def without_paths(argument: str, told: Callable[[Path], str] | None = None) -> str:
    """The argument with every path replaced by what is ``told`` of it, by default its digest; words are looked at one
    by one if they are no path together."""
    words = [argument] if os.path.lexists(_parts(argument)[1]) else argument.split(" ")
    return utf8_text(" ".join(_without_path(word, told or path_digest) for word in words))


def _without_path(word: str, told: Callable[[Path], str]) -> str:
    option, path, function = _parts(word)
    if os.sep not in path and not os.path.lexists(path):
        return word
    return f"{option}{told(Path(path))}{function}"


def _parts(word: str) -> tuple[str, str, str]:
    """Option, path and function, of which one or two may be empty."""
    found = _WORD.fullmatch(word)
    if found is None or os.path.lexists(word):
        return "", word, ""
    option, path, function = found.groups("")
    return option, path, function


def path_digest(path: Path, read: Mapping[str, str] = NOTHING_READ) -> str:
    """``file:BLAKE3`` of a file's bytes, ``folder:BLAKE3`` of the names and digests of the files in it, ``path`` of
    nothing that can be read. ``read``: digests of files that were read before, by real path; not read again."""
    try:
        if path.is_file():
            return f"file:{_file_digest(path, read)}"
        if path.is_dir():
            digests = {file.name: _file_digest(file, read) for file in path.iterdir() if file.is_file()}
            listing = "".join(f"{name}\0{digest}\0" for name, digest in sorted(digests.items()))
            return f"folder:{blake3(os.fsencode(listing)).hexdigest()}"
    except OSError:
        pass
    return "path"


def _file_digest(path: Path, read: Mapping[str, str]) -> str:
    """Through reads: a mapped file that is cut short would end the process."""
    known = read.get(os.path.realpath(path))
    if known is not None:
        return known
    digest = blake3()
    with path.open("rb", buffering=0) as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


# ---- the model's files ---------------------------------------------------------------------------------------------
def factory_sources(factory: str) -> dict[str, str]:
    """BLAKE3 of the file of ``path/to/file.py:function`` and of the modules that were imported from its folder, by
    path. Nothing of another factory."""
    file = Path(factory.rpartition(":")[0]).resolve()
    if file.suffix != ".py" or not file.is_file():
        return {}
    found = [file]
    for name, module in sys.modules.copy().items():
        place = file.parent.joinpath(*name.split("."))
        if getattr(module, "__file__", None) in (f"{place}.py", f"{place}/__init__.py"):
            found.append(Path(module.__file__ or ""))
    return {str(path): _file_digest(path, NOTHING_READ) for path in found}


def _named(sources: Mapping[str, str]) -> dict[str, str]:
    """Digests by the files' names below the folder of the first; elsewhere without a folder."""
    top = next(map(Path, sources), Path()).parent
    named = {}
    for path, digest in sources.items():
        below = Path(path).is_relative_to(top)
        named[utf8_text(str(Path(path).relative_to(top)) if below else Path(path).name)] = digest
    return named


# ---- versions, libraries, sources ----------------------------------------------------------------------------------
def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "libc": " ".join(platform.libc_ver()), "system": platform.system()}
    for name in VERSIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


@cache
def native_libraries() -> dict[str, str]:
    """SHA-256 of our extension and of PyTorch's libraries that are mapped into this process; read once."""
    extension = Path(_native.__file__).resolve()  # beside the package or, in a source checkout, elsewhere
    folders = [PACKAGE, *(Path(path) for path in getattr(sys.modules.get("torch"), "__path__", ()))]
    mapped = {line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    found: dict[str, str] = {}
    for path in sorted(Path(name) for name in mapped):
        ours = path == extension or any(folder in path.parents for folder in folders)
        if ours and path.is_file() and ".so" in path.name:
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def kernel_sources(families: Iterable[str]) -> dict[str, str]:
    """BLAKE3 of the kernel families' sources and of the headers they share, where they are at hand."""
    folder = PACKAGE.parent.parent / "native" / "host" / "kernels"
    if not folder.is_dir():
        return {}
    files = [folder / f"{family}.cpp" for family in families] + sorted(folder.glob("*.h"))
    return {path.name: blake3(path.read_bytes()).hexdigest() for path in files if path.is_file()}


def processor_name() -> str:
    """The processor's name as it states it, without marks and spaces at its ends."""
    for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


# ---- the source commit ---------------------------------------------------------------------------------------------
def source_state(checkout: Path) -> tuple[str, str]:
    """The commit of a source checkout and the SHA-256 of what differs from it; empty outside one, or where equal."""
    if not (checkout / ".git").exists():
        return "", ""
    commit = _git(checkout, "rev-parse", "HEAD").decode().strip()
    if not commit:
        return "", ""
    changes = _git(checkout, "diff", "--binary", "HEAD", "--", *OWN_FILES)
    others = _git(checkout, "ls-files", "-z", "--others", "--exclude-standard", "--", *OWN_FILES)
    digest = hashlib.sha256(changes)
    for name in sorted(filter(None, others.split(b"\0"))):
        file = checkout / os.fsdecode(name)
        digest.update(name + b"\0" + (file.read_bytes() if file.is_file() else b""))
    return commit, digest.hexdigest() if changes or others else ""


def _git(checkout: Path, *arguments: str) -> bytes:
    try:
        ended = subprocess.run(  # noqa: S603 - fixed arguments, no shell
            ["git", "-C", str(checkout), *arguments],  # noqa: S607 - the user's git
            capture_output=True,
            timeout=60,
            check=False,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return b""
    return ended.stdout if ended.returncode == 0 else b""
