"""Memory that the recording does not own: a tensor made outside it, found and named."""

from __future__ import annotations

from types import FrameType

from torch import Tensor, nn

from heliograph.capture.trail import full_line
from heliograph.errors import ForeignMemoryError


def foreign_memory(tensor: Tensor, op: str, frame: FrameType | None) -> ForeignMemoryError:
    kind = type(tensor).__name__ if type(tensor) is not Tensor else "tensor"
    name = _name_of(tensor, frame)
    named = f" {name!r}" if name else ""
    return ForeignMemoryError(
        f"recording {op} at {full_line(frame)}",
        found=f"{kind}{named} of shape {tuple(tensor.shape)}, {tensor.dtype}, whose memory is not this recording's",
        required="parameters and buffers of the model, inputs, state, and tensors made while it runs",
        hint="register it (register_buffer, nn.Parameter), or declare it as input or state; "
        "a tensor of another run or recording cannot be used",
    )


def _name_of(tensor: Tensor, frame: FrameType | None) -> str:
    """What the model's code calls the tensor: a variable that the line can see, or an attribute of a module there."""
    while frame is not None and not frame.f_globals.get("__name__", "").startswith("heliograph.capture"):
        for scope in (frame.f_locals, frame.f_globals):
            for name, value in scope.items():
                if value is tensor:
                    return name
                attribute = _attribute_of(value, tensor)
                if attribute:
                    return f"{name}.{attribute}"
        frame = frame.f_back
    return ""


def _attribute_of(owner: object, tensor: Tensor) -> str:
    if not isinstance(owner, nn.Module):
        return ""
    for path, module in owner.named_modules():
        for name, value in vars(module).items():
            if value is tensor:
                return f"{path}.{name}" if path else name
    return ""
