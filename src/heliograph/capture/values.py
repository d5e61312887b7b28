"""Reading a tensor's value while the model is captured is refused, with the model's line.

A graph is recorded once and replayed for other inputs: what Python does with a value now would be frozen into it.
Values of tensors that the model just made from Python numbers are known and may be read; see ``record_host``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.overrides import TorchFunctionMode

from heliograph.capture.trail import full_line, model_frame
from heliograph.errors import ValueReadError

# Reads that never reach an op. All others (item, tolist, bool, int ...) end in one and are refused there.
_MEMORY_READS = ("numpy", "__array__", "data_ptr", "__dlpack__")
# How PyTorch words a read of a tensor without memory that took another way (storage objects, DLPack, torch.tensor).
_WITHOUT_MEMORY = ("Cannot access data pointer of Tensor", "The tensor has a non-zero number of elements, but its data")


class ValueReads(TorchFunctionMode):
    """Refuses methods that hand out a tensor's memory."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = getattr(func, "__name__", "")
        if name in _MEMORY_READS and args and isinstance(args[0], torch.Tensor):
            raise value_read(f"Tensor.{name}()", full_line(model_frame()))
        return func(*args, **(kwargs or {}))


def value_read(what: str, line: str) -> ValueReadError:
    return ValueReadError(
        "recording the model",
        found=f"{what} at {line}",
        required="code that does not look at values of tensors",
        hint="keep the value in a tensor (torch.where, index_select), or pass it in as a dimension of the bucket",
    )


def reads_memory(error: RuntimeError) -> bool:
    """Whether PyTorch raised because memory of a tensor was read that has none."""
    return str(error).startswith(_WITHOUT_MEMORY)
