"""Where in the model an op comes from: the module that is running and the line of the model's code.

Both are part of stable names, so they never hold a folder: a file is named by its module, ``package/file.py:12``.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from threading import get_ident
from types import CodeType, FrameType, TracebackType
from typing import TypeVar

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from heliograph.core.encoding import utf8_text
from heliograph.errors import CaptureError, HeliographError

T = TypeVar("T")

# Frames of these packages carry out the model's calls; the line wanted is the one that called them.
_MACHINERY = ("torch", "importlib", "heliograph.capture", "heliograph.ops", "heliograph.device")
_OUTPUTS = "the model's outputs"


class Trail:
    """Follows the modules that are running in this thread, and numbers the ops in each. Used as a context manager.

    PyTorch calls its hooks for the modules of every thread.
    """

    def __init__(self, model: nn.Module) -> None:
        self._names = {id(module): name for name, module in model.named_modules()}
        self._stack: list[str] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        self._handles: list[RemovableHandle] = []
        self._thread = get_ident()

    @property
    def module(self) -> str:
        """Path of the running module, ``model.layers.0.mlp``; empty in the model itself."""
        return self._stack[-1] if self._stack else ""

    def number(self, op: str) -> str:
        """The stable path of the next call of an op: module path, op name, how many came before it there."""
        count = self._counts[self.module, op]
        self._counts[self.module, op] += 1
        path = f"{op}.{count}"
        return f"{self.module}/{path}" if self.module else path

    def __enter__(self) -> Trail:
        self._handles.append(register_module_forward_pre_hook(self._enter))
        self._handles.append(register_module_forward_hook(self._leave, always_call=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._handles:
            self._handles.pop().remove()

    def _enter(self, module: nn.Module, inputs: object) -> None:
        if get_ident() == self._thread:
            self._stack.append(self._names.get(id(module), f"<{type(module).__name__}>"))

    def _leave(self, module: nn.Module, inputs: object, outputs: object) -> None:
        if get_ident() == self._thread:
            self._stack.pop()


def run_model(call: Callable[[], T]) -> T:
    """Runs the model's code. Frames outside this one are not the model's."""
    return call()


def model_frame() -> FrameType | None:
    """The innermost running frame that is the model's own code; None outside it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _machinery(frame):
        if frame.f_code is run_model.__code__:
            return None
        frame = frame.f_back
    return frame


@contextmanager
def told_with_line(doing: str, otherwise: str, hint: str) -> Iterator[None]:
    """What the model's code raises, as a CaptureError that it caused; ``otherwise`` is told if no line of it ran.

    Errors of ours stay as they are, and PyTorch's OutOfMemoryError: the pool that has no more memory tells of it.
    """
    try:
        yield
    except (HeliographError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise CaptureError(
            doing,
            found=f"{type(error).__name__}: {error}, at {raising_line(error.__traceback__, otherwise)}",
            required="code that runs to its end",
            hint=hint,
        ) from error


def raising_line(trace: TracebackType | None, otherwise: str = _OUTPUTS) -> str:
    """The model's line, as ``file:line``, that an exception came through last."""
    line = otherwise
    while trace is not None:
        if not _machinery(trace.tb_frame):
            line = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        trace = trace.tb_next
    return line


def full_line(frame: FrameType | None) -> str:
    """``/path/to/file.py:12``, for a person to open. Never stored."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else _OUTPUTS


def first_line(function: Callable[..., object]) -> str:
    """Where a function is defined, as ``file:line``."""
    code = getattr(function, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if isinstance(code, CodeType) else repr(function)


def stored_line(frame: FrameType | None) -> str:
    """``package/file.py:12``, the same in every folder."""
    if frame is None:
        return "-"
    return f"{_file(frame.f_globals.get('__name__', ''), frame.f_code)}:{frame.f_lineno}"


def _file(module: str, code: CodeType) -> str:
    name = utf8_text(PurePath(code.co_filename).name)
    if module in ("", "__main__") or os.sep in module:
        return name
    parent = module if name == "__init__.py" else module.rpartition(".")[0]
    return "/".join([*filter(None, parent.split(".")), name])


def _machinery(frame: FrameType) -> bool:
    name = frame.f_globals.get("__name__", "")
    return any(name == package or name.startswith(package + ".") for package in _MACHINERY)
