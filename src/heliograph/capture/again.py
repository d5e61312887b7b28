"""The second capture of an exact census: the same model, in another slot, in a process that ends with it.

The model is made there anew by the same factory. What comes back are words; the memory is free again by then.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import msgspec
from torch import nn

from heliograph.capture.environment import child_environment
from heliograph.capture.spec import CaptureSpec
from heliograph.capture.trail import first_line, told_with_line
from heliograph.capture.words import Words, decode, encode
from heliograph.core.format import SLOTS
from heliograph.device.ending import end_with
from heliograph.errors import CaptureError, HeliographError, UsageError

LIMIT_SECONDS = 3600
REFUSED = 3  # exit status: an error of ours, which is in the file
Made = tuple[nn.Module, CaptureSpec]


class Again(msgspec.Struct, frozen=True):
    """How a model is made: ``factory`` is ``package.module:function`` or ``path/to/file.py:function``, called with
    ``arguments``; it returns the model (on the CPU) and its CaptureSpec. A file is run as ``python file.py`` runs it:
    it can import what lies beside it."""

    factory: str
    arguments: tuple[str, ...] = ()

    def make(self) -> Made:
        """The model and its spec. UsageError if there is no such factory, or it returns something else; CaptureError
        for what the factory raises."""
        function = _function(self.factory)
        with _told(self.factory, first_line(function)):
            made = function(*self.arguments)
        if not (
            isinstance(made, tuple)
            and len(made) == 2
            and isinstance(made[0], nn.Module)
            and isinstance(made[1], CaptureSpec)
        ):
            raise _refused(self.factory, f"a {type(made).__name__}", "a model and its CaptureSpec")
        return made


class _Request(msgspec.Struct, frozen=True):
    again: Again
    slot: int
    index: int
    file: str
    parent: int


def second_capture(again: Again, slot: int, index: int = 0) -> Words:
    """Captures the model in the slot after ``slot``, in a fresh process, and raises what was raised there.

    CaptureError if that process ends in another way.
    """
    doing = "capturing the model a second time, in another slot"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "words")
        request = _Request(again, (slot + 1) % SLOTS, index, str(file), os.getpid())
        try:
            ended = subprocess.run(
                [sys.executable, "-m", "heliograph.capture.again"],
                input=msgspec.json.encode(request),
                stderr=subprocess.PIPE,
                env=child_environment(),
                timeout=LIMIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise CaptureError(
                doing, found=f"no end in {LIMIT_SECONDS} seconds", required="an end", hint="run the factory by itself"
            ) from error
        if ended.returncode == REFUSED:
            refused: HeliographError = pickle.loads(file.read_bytes())  # noqa: S301 - written by our own process
            raise refused
        if ended.returncode != 0:
            said = ended.stderr.decode(errors="replace").strip() or "nothing said"
            raise CaptureError(
                doing,
                found=f"exit status {ended.returncode}: {said.splitlines()[-1]}",
                required="a capture like the first one",
                hint="the factory has to make the same model in a fresh process",
            )
        return decode(file.read_bytes())


def main() -> int:
    """The second process. Its words are in the request's file, or the error that it ended with."""
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    end_with(request.parent)
    try:
        Path(request.file).write_bytes(_words(request))
    except HeliographError as error:
        Path(request.file).write_bytes(pickle.dumps(error))
        return REFUSED
    return 0


def _words(request: _Request) -> bytes:
    from heliograph.capture.cuda.record import CudaCapture  # noqa: PLC0415 - not needed by who only makes a model
    from heliograph.capture.cuda.session import CudaSession  # noqa: PLC0415

    model, spec = request.again.make()
    spec = replace(spec, slot=request.slot)
    run = CudaCapture(model, spec, CudaSession(request.slot, request.index), lambda doing, done, total: None)
    try:
        run.capture("template", 0)
        return encode(run.words())
    finally:
        run.close()


def _function(factory: str) -> Callable[..., object]:
    where, _, name = factory.rpartition(":")
    if not where or not name:
        raise _refused(factory, "no function in it", "package.module:function or path/to/file.py:function")
    with _told(factory, where):
        module = _file(factory, Path(where)) if where.endswith(".py") else _module(factory, where)
    function = getattr(module, name, None)
    if not callable(function):
        raise _refused(factory, f"no function {name!r} in it", "a function that makes the model")
    found: Callable[..., object] = function
    return found


def _file(factory: str, path: Path) -> ModuleType:
    """The module of a file, under a name that no import finds in its place, with its folder first in the path."""
    spec = importlib.util.spec_from_file_location(f"_heliograph_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise _refused(factory, "no such file", "the path of a Python file")
    folder = os.fspath(path.resolve().parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def _module(factory: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise _refused(factory, str(error), "a module that can be imported") from error


def _told(factory: str, otherwise: str) -> AbstractContextManager[None]:
    hint = "it has to run by itself: call it in Python"
    return told_with_line(f"making the model by {factory!r}", otherwise, hint)


def _refused(factory: str, found: str, required: str) -> UsageError:
    return UsageError(
        f"making the model by {factory!r}",
        found=found,
        required=required,
        hint="for example examples/decoder.py:make",
    )


if __name__ == "__main__":
    sys.exit(main())
