"""The second capture of an exact census: the same model, in another slot, in a process that ends with it.

The model is made there anew by the same factory. What comes back are words; the memory is free again by then.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
from torch import nn

from heliograph.capture.environment import child_environment
from heliograph.capture.spec import CaptureSpec
from heliograph.capture.words import Words, decode, encode
from heliograph.core.format import SLOTS
from heliograph.errors import CaptureError, UsageError

LIMIT_SECONDS = 3600
Made = tuple[nn.Module, CaptureSpec]


class Again(msgspec.Struct, frozen=True):
    """How a model is made: ``factory`` is ``package.module:function`` or ``path/to/file.py:function``, called with
    ``arguments``; it returns the model (on the CPU) and its CaptureSpec."""

    factory: str
    arguments: tuple[str, ...] = ()

    def make(self) -> Made:
        """The model and its spec. UsageError if there is no such factory, or it returns something else."""
        made = _function(self.factory)(*self.arguments)
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


def second_capture(again: Again, slot: int, index: int = 0) -> Words:
    """Captures the model in the slot after ``slot``, in a fresh process. CaptureError with what it said if it fails."""
    doing = "capturing the model a second time, in another slot"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "words")
        request = _Request(again, (slot + 1) % SLOTS, index, str(file))
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
        if ended.returncode != 0:
            said = ended.stderr.decode(errors="replace").strip()
            raise CaptureError(
                doing,
                found=said or f"exit status {ended.returncode}",
                required="a capture like the first one",
                hint="the factory has to make the same model in a fresh process",
            )
        return decode(file.read_bytes())


def main() -> None:
    """The second process."""
    from heliograph.capture.cuda.record import CudaCapture  # noqa: PLC0415 - after the request was read
    from heliograph.capture.cuda.session import CudaSession  # noqa: PLC0415

    request = msgspec.json.decode(sys.stdin.buffer.read(), type=_Request)
    model, spec = request.again.make()
    spec = replace(spec, slot=request.slot)
    run = CudaCapture(model, spec, CudaSession(request.slot, request.index), lambda doing, done, total: None)
    try:
        run.capture("template", 0)
        Path(request.file).write_bytes(encode(run.words()))
    finally:
        run.close()


def _function(factory: str) -> Callable[..., object]:
    where, _, name = factory.rpartition(":")
    if not where or not name:
        raise _refused(factory, "no function in it", "package.module:function or path/to/file.py:function")
    if where.endswith(".py"):
        path = Path(where)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise _refused(factory, "no such file", "the path of a Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    else:
        try:
            module = importlib.import_module(where)
        except ModuleNotFoundError as error:
            raise _refused(factory, str(error), "a module that can be imported") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise _refused(factory, f"no function {name!r} in it", "a function that makes the model")
    found: Callable[..., object] = function
    return found


def _refused(factory: str, found: str, required: str) -> UsageError:
    return UsageError(
        f"making the model by {factory!r}",
        found=found,
        required=required,
        hint="for example examples/decoder.py:make",
    )


if __name__ == "__main__":
    main()
