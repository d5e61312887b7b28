"""The model's parameters and buffers: named, swapped for tensors without values, moved into their region.

The order is that of the state dict, then buffers that are not part of it. A tensor under several names (tied weights)
is stored once, under its first name. A packed parameter says what it stands for by attributes: ``heliograph_layout``
(``q8_0``, ``q4_1``) and ``heliograph_shape``; any may carry ``heliograph_source``, the BLAKE3 of its source bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from heliograph._native import Reservation
from heliograph.capture.storages import DTYPES
from heliograph.core import manifest
from heliograph.errors import CaptureError, UsageError


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A tensor of the model, and every name it goes by."""

    name: str
    aliases: tuple[str, ...]
    tensor: Tensor
    size: int
    dtype: str
    shape: tuple[int, ...]


def model_weights(model: nn.Module) -> tuple[Weight, ...]:
    """Every parameter and buffer once. Refused: scripted modules, types without a name here, tensors of another
    device."""
    _check_modules(model)
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    order = [name for name in model.state_dict() if name in tensors]
    order += [name for name in tensors if name not in set(order)]
    names: dict[tuple[object, ...], list[str]] = {}
    for name in order:
        _check(name, tensors[name])
        names.setdefault(_identity(tensors[name]), []).append(name)
    return tuple(_weight(same, tensors[same[0]]) for same in names.values())


def _check_modules(model: object) -> None:
    scripted = isinstance(model, nn.Module) and any(
        isinstance(each, torch.jit.ScriptModule) for each in model.modules()
    )
    if scripted or not isinstance(model, nn.Module):
        raise UsageError(
            "reading the model",
            found="a TorchScript module, whose code is not Python's" if scripted else f"a {type(model).__name__}",
            required="a torch.nn.Module",
            hint="capture the module that was scripted" if scripted else "wrap it in a module",
        )


def _weight(names: list[str], tensor: Tensor) -> Weight:
    size = tensor.numel() * tensor.element_size()
    return Weight(names[0], tuple(names[1:]), tensor, size, DTYPES[tensor.dtype], tuple(tensor.shape))


def _identity(tensor: Tensor) -> tuple[object, ...]:
    if tensor.numel() == 0:
        return (id(tensor),)
    storage = tensor.untyped_storage()._cdata
    return (storage, tensor.storage_offset(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)


def _check(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in DTYPES or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        raise UsageError(
            f"reading parameter {name!r}",
            found=f"{tensor.dtype}, {tensor.layout}, on device {tensor.device.type!r}",
            required=f"a strided tensor on the CPU, of type {', '.join(DTYPES.values())}",
            hint="move or convert the model before capturing it",
        )


def fake_weights(weights: tuple[Weight, ...], mode: FakeTensorMode) -> dict[str, Tensor]:
    """A contiguous tensor without values for each weight, by its first name."""
    fakes: dict[str, Tensor] = {}
    with mode, torch.no_grad():
        for weight in weights:
            fakes[weight.name] = standing_for(weight, torch.empty(weight.shape, dtype=weight.tensor.dtype))
    return fakes


def standing_for(weight: Weight, tensor: Tensor) -> Tensor:
    """A tensor as what the model has a weight as: a parameter or a plain tensor, with its marks."""
    if isinstance(weight.tensor, nn.Parameter):
        tensor = nn.Parameter(tensor, requires_grad=False)
    for name, value in vars(weight.tensor).items():
        if name.startswith("heliograph_"):
            setattr(tensor, name, value)
    return tensor


@contextmanager
def swapped(model: nn.Module, weights: tuple[Weight, ...], fakes: dict[str, Tensor]) -> Iterator[None]:
    """The model with its tensors replaced; put back on the way out, whatever happened inside."""
    places = [(path, weight) for weight in weights for path in (weight.name, *weight.aliases)]
    originals = {path: _get(model, path) for path, _ in places}
    try:
        for path, weight in places:
            _set(model, path, fakes[weight.name])
        yield
    finally:
        for path, _ in places:
            _set(model, path, originals[path])


@contextmanager
def without_traces(model: nn.Module, trace: Callable[[object], bool]) -> Iterator[None]:
    """Attributes of modules that hold a ``trace`` of the capture on the way out are what they were on the way in."""
    before = {module: dict(vars(module)) for module in model.modules()}
    try:
        yield
    finally:
        for module, attributes in before.items():
            for name, value in list(vars(module).items()):
                if trace(value):
                    if name in attributes:
                        vars(module)[name] = attributes[name]
                    else:
                        del vars(module)[name]


def _get(model: nn.Module, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    module = model.get_submodule(owner)
    found = module._parameters.get(name, module._buffers.get(name))
    if found is None:
        raise CaptureError(
            f"reading parameter {path!r}",
            found="no tensor of that name any more",
            required="a model that keeps its parameters while it is captured",
            hint="do not add or remove parameters in forward",
        )
    return found


def _set(model: nn.Module, path: str, value: Tensor) -> None:
    # Through setattr, since modules such as nn.LSTM keep a second list of their parameters.
    owner, _, name = path.rpartition(".")
    setattr(model.get_submodule(owner), name, value)


def store(weight: Weight, region: Reservation, offset: int, *, consume: bool) -> manifest.Tensor:
    """Copies a weight into its region and describes it. ``consume``: the model lets go of its own copy."""
    copy_in(weight.tensor, region, offset)
    digest = blake3(region.view(offset, weight.size), max_threads=blake3.AUTO).hexdigest()
    described = describe(weight, offset, digest)
    if consume:
        weight.tensor.data = torch.empty(0, dtype=weight.tensor.dtype)
    return described


def describe(weight: Weight, offset: int, digest: str) -> manifest.Tensor:
    """A weight at an offset of its region. ``digest``: BLAKE3 of its bytes there."""
    tensor = weight.tensor
    return manifest.Tensor(
        name=weight.name,
        offset=offset,
        size=weight.size,
        dtype=weight.dtype,
        shape=tuple(getattr(tensor, "heliograph_shape", weight.shape)),
        layout=getattr(tensor, "heliograph_layout", "plain"),
        source=getattr(tensor, "heliograph_source", digest),
        stored=digest,
    )


def copy_in(tensor: Tensor, region: Reservation, offset: int) -> None:
    """Copies a tensor's elements into a region, row-major."""
    size = tensor.numel() * tensor.element_size()
    if size:
        memory = torch.frombuffer(region.view(offset, size), dtype=tensor.dtype)
        with torch.no_grad():
            memory.view(tensor.shape).copy_(tensor)
