"""Runs the model without computing anything, and turns each op into launches on a stream.

The model runs under PyTorch's fake mode with :class:`HostRecorder` on top. Tensors have shapes and storages, no
values. Views cost nothing, each computing op becomes nodes through its lowering (``ops.launch.LOWERINGS``), and what
has no lowering is taken apart: the op without its write, PyTorch's core-ATen decompositions, composite ops.

A lowering sees ``args`` and ``kwargs`` as PyTorch bound them (trailing defaults left out), with tensors as views, types
as their names (``"f32"``), and other PyTorch values (layout, device, memory format) as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import heliograph.ops.lowerings  # noqa: F401  fills the table of lowerings
from heliograph.capture.foreign import foreign_memory
from heliograph.capture.functional import functional_form, written_arguments
from heliograph.capture.storages import DTYPES, Storages
from heliograph.capture.tape import OpTape, Tape
from heliograph.capture.trail import Trail, full_line, model_frame, stored_line
from heliograph.capture.values import value_read
from heliograph.errors import CaptureError, UnsupportedOpError
from heliograph.ops.launch import LOWERINGS, View

Arguments = tuple[object, ...]
Keywords = Mapping[str, object]
Decompositions = Mapping[OpOverload, Callable[..., object]]

_aten = torch.ops.aten
# Memory without values: the storage gets its place when it is first written.
_EMPTY = {
    _aten.empty.memory_format,
    _aten.empty_like.default,
    _aten.empty_strided.default,
    _aten.empty_permuted.default,
    _aten.new_empty.default,
    _aten.new_empty_strided.default,
}
_LIFTS = {_aten.lift_fresh.default, _aten.lift_fresh_copy.default, _aten.lift.default}
_STORAGE_CHANGES = ("aten.resize_", "aten.resize_as_", "aten.set_")
_NOTHING_TO_DO = {_aten._assert_tensor_metadata.default}


class HostRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records one run of the model on a tape. Entered above its fake mode.

    ``written`` collects the names of parameters and buffers that the model writes to, ``constants`` the real values
    of tensors made from Python numbers, by buffer.
    """

    def __init__(
        self,
        fake_mode: FakeTensorMode,
        tape: Tape,
        storages: Storages,
        trail: Trail,
        label: str,
        decompositions: Decompositions,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.written: set[str] = set()
        self.constants: dict[int, Tensor] = {}
        self._fake_mode = fake_mode
        self._tape = tape
        self._storages = storages
        self._trail = trail
        self._label = label
        self._decompositions = decompositions

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if func in _LIFTS and not isinstance(args[0], FakeTensor):
            return self._lift(func, args[0])
        for tensor in _tensors((args, kwargs)):
            if not isinstance(tensor, FakeTensor) or not self._storages.knows(tensor):
                raise foreign_memory(tensor, str(func), model_frame())
        self._check_mixture(func, args, kwargs)
        try:
            return self._dispatch(func, args, kwargs)
        except DataDependentOutputException as error:
            raise value_read(str(error.func), full_line(model_frame())) from error
        except DynamicOutputShapeException as error:
            what = f"{error.func}, whose output's shape depends on values,"
            raise value_read(what, full_line(model_frame())) from error

    def _dispatch(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        """The ways to record an op, best first."""
        if str(func) in LOWERINGS:
            return self._lower(func, args, kwargs)
        if _moves_no_data(func):
            return self._announce(func(*args, **kwargs))
        if func is _aten._local_scalar_dense.default:
            return self._known_value(func, args, kwargs)
        if func in self._decompositions and not written_arguments(func):
            return self._again(self._decompositions[func], args, kwargs)
        if func._can_decompose():
            return self._again(func.decompose, args, kwargs)
        if written_arguments(func):
            return self._write_through_copy(func, args, kwargs)
        if not any(str(returned.type).count("Tensor") for returned in func._schema.returns) and func._schema.returns:
            return func(*args, **kwargs)  # a question about shapes or types
        instead = getattr(func, "impl_aten", None)
        if instead is not None:
            return self._again(instead, args, kwargs)
        with suppress(NotImplementedError, UnsupportedFakeTensorException, UnsupportedOperatorException):
            func(*args, **kwargs)  # raises if its result depends on values, which is what has to be told then
        raise self._unsupported(func, args, kwargs)

    # ---- computing ops ---------------------------------------------------------------------------------------------
    def _lower(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        result = func(*args, **kwargs)
        path, origin = self._trail.number(_short(func)), self._origin(func)
        fresh = [tensor for tensor in _tensors(result) if not self._storages.knows(tensor)]
        written = _values_of(func, args, kwargs, written_arguments(func))
        self._check_types(func, [*_tensors((args, kwargs)), *fresh], args, kwargs)
        self._announce(result)
        for tensor in written:
            self._before_write(tensor, path, origin)
        for i, tensor in enumerate(_tensors((args, kwargs))):
            self._before_read(tensor, f"{path}/in{i}")
        for i, tensor in enumerate(fresh):
            self._place_scratch(tensor, f"{path}/out{i}")
        if all(tensor.numel() == 0 for tensor in [*fresh, *written]):
            return result
        recorder = OpTape(self._tape, path, origin, self._label)
        views = tuple(self._storages.view(tensor) for tensor in fresh)
        try:
            LOWERINGS[str(func)](recorder, self._plain(args), self._plain(kwargs), views)
        except UnsupportedOpError as error:
            found = f"{error.found}, at {full_line(model_frame())}"
            raise UnsupportedOpError(error.doing, found=found, required=error.required, hint=error.hint) from error
        finally:
            recorder.close()
        return result

    def _write_through_copy(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        """A writing op without a lowering: its values in fresh tensors, then copied to where they belong."""
        name = str(func)
        fresh_form = functional_form(func)
        random = torch.Tag.nondeterministic_seeded in func.tags
        if name.startswith((*_STORAGE_CHANGES, "aten.copy_.")) or random or fresh_form is None:
            if func in self._decompositions and not random:
                return self._again(self._decompositions[func], args, kwargs)
            raise self._unsupported(func, args, kwargs)
        result = func(*args, **kwargs)  # checks shapes and types as PyTorch does
        names = written_arguments(func)
        written = _values_of(func, args, kwargs, names)
        kept = {key: value for key, value in kwargs.items() if key not in names}
        values = _tensors(self._again(fresh_form, args, kept))
        for target, value in zip(written, values, strict=True):
            if target.shape != value.shape:
                raise self._unsupported(func, args, kwargs)
            self._again(target.copy_, (value,), {})
        return result

    def _again(self, function: Callable[..., object], args: Arguments, kwargs: Keywords) -> object:
        """Calls a function whose ops are recorded in their turn."""
        with self:
            return function(*args, **kwargs)

    # ---- storages --------------------------------------------------------------------------------------------------
    def _announce(self, result: object) -> object:
        for tensor in _tensors(result):
            if not self._storages.knows(tensor):
                self._storages.announce(tensor)
        return result

    def _lift(self, func: OpOverload, real: object) -> object:
        """A tensor that the model just made from Python numbers or an array: a constant, until it is written."""
        if not isinstance(real, Tensor):
            return func(real)
        with no_dispatch():
            values = real.detach().clone(memory_format=torch.contiguous_format)
        result = func(values)
        self._storages.announce(result, constant=values)
        return result

    def _before_read(self, tensor: Tensor, name: str) -> None:
        """Memory for what has none yet: the values of a constant, or nothing if the model reads what it never wrote."""
        if self._storages.placed(tensor):
            return
        values = self._storages.known_values(tensor)
        if values is None:
            self._place_scratch(tensor, name)
        else:
            self._storages.place(tensor, self._constant(values, name), scratch=False)

    def _before_write(self, tensor: Tensor, path: str, origin: str) -> None:
        """Weights that are written are noted; constants that are written become copies of their own."""
        weight = self._storages.weight(tensor)
        if weight:
            self.written.add(weight)
        values = self._storages.known_values(tensor)
        if values is not None:
            self._before_read(tensor, f"{path}/value")
            source = self._storages.view(tensor)
            self._place_scratch(tensor, f"{path}/copy")
            size = values.numel() * values.element_size()
            self._tape.copy(origin, _start(self._storages.view(tensor), tensor), _start(source, tensor), size)
        elif not self._storages.placed(tensor):
            self._place_scratch(tensor, f"{path}/written")

    def _place_scratch(self, tensor: Tensor, name: str) -> None:
        size = max(1, tensor.untyped_storage().nbytes())
        buffer = self._tape.buffers.take(
            f"scratch/{name}/{self._label}", size, DTYPES[tensor.dtype], tuple(tensor.shape)
        )
        self._storages.place(tensor, buffer, scratch=True)

    def _constant(self, values: Tensor, name: str) -> int:
        size = max(1, values.numel() * values.element_size())
        name = f"constants/{name}/{self._label}"
        buffer = self._tape.buffers.add(name, "constants", size, DTYPES[values.dtype], values.shape)
        self.constants[buffer] = values
        return buffer

    # ---- values and refusals ---------------------------------------------------------------------------------------
    def _known_value(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> object:
        tensor = args[0]
        if isinstance(tensor, Tensor):
            values = self._storages.constant(tensor)
            if values is not None:
                with no_dispatch():
                    return values.item()
        return func(*args, **kwargs)  # raises, unless fake mode knows the value itself

    def _origin(self, func: OpOverload) -> str:
        return f"{func} {self._trail.module or '-'} {stored_line(model_frame())}"

    def _plain(self, value: Any) -> Any:
        """Arguments as lowerings see them."""
        return tree_map(self._plain_leaf, value)

    def _plain_leaf(self, value: object) -> object:
        if isinstance(value, Tensor):
            return self._storages.view(value)
        if isinstance(value, torch.dtype):
            return DTYPES[value]
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return str(value)
        return value

    def _check_types(self, func: OpOverload, tensors: Sequence[Tensor], args: Arguments, kwargs: Keywords) -> None:
        for tensor in tensors:
            if tensor.dtype not in DTYPES or tensor.layout is not torch.strided:
                raise self._unsupported(func, args, kwargs)

    def _check_mixture(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> None:
        """Runs an op on zeros if its tensors have several types: only so is it known whether PyTorch takes them.

        Without values, and in decompositions, PyTorch promotes types that its kernels refuse.
        """
        types = {tensor.dtype for tensor in _tensors((args, kwargs))} - {torch.bool}
        if func.namespace != "aten" or len(types) < 2 or not any(each.is_floating_point for each in types):
            return
        with no_dispatch():
            given, named = tree_map(_zeros, (args, dict(kwargs)))
            try:
                func(*given, **named)
            except RuntimeError as error:
                raise CaptureError(
                    "recording the model",
                    found=f"{_described(func, args, kwargs)}, which PyTorch does not run: {error}",
                    required="types that PyTorch runs the op with",
                    hint="convert one of the tensors (.to), or the whole model, to the type of the other",
                ) from error

    def _unsupported(self, func: OpOverload, args: Arguments, kwargs: Keywords) -> UnsupportedOpError:
        random = torch.Tag.nondeterministic_seeded in func.tags
        return UnsupportedOpError(
            "recording the model",
            found=_described(func, args, kwargs),
            required="ops without random numbers" if random else "ops that have a kernel on this device",
            hint="put the model into eval mode, or draw outside the graph"
            if random
            else "write it with supported ops (docs/capture.md), or add a lowering for it",
        )


def _moves_no_data(func: OpOverload) -> bool:
    """Views, in place or not, memory without values, and checks of shapes and types."""
    if func in _EMPTY or func in _NOTHING_TO_DO:
        return True
    if torch.Tag.inplace_view in func.tags:
        return not str(func).startswith(_STORAGE_CHANGES)
    return bool(func.is_view) and not func._can_decompose()


def _short(func: OpOverload) -> str:
    """``addmm`` of ``aten.addmm.default``."""
    return func._schema.name.rpartition("::")[2]


def _described(func: OpOverload, args: Arguments, kwargs: Keywords) -> str:
    """The op, its tensors, and the model's line."""
    tensors = [f"{tuple(t.shape)} {DTYPES.get(t.dtype, t.dtype)}" for t in _tensors((args, kwargs))]
    return f"{func} of {', '.join(tensors) or 'no tensor'} at {full_line(model_frame())}"


def _zeros(value: object) -> object:
    """A tensor with memory for one without, of the same type and layout; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    items = value.untyped_storage().nbytes() // value.element_size()
    return torch.zeros(items, dtype=value.dtype).as_strided(value.shape, value.stride(), value.storage_offset())


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _values_of(func: OpOverload, args: Arguments, kwargs: Keywords, names: Sequence[str]) -> list[Tensor]:
    """The tensors given for the named arguments, in the order of the schema."""
    given = dict(zip((a.name for a in func._schema.arguments if not a.kwarg_only), args, strict=False)) | dict(kwargs)
    return _tensors([given.get(name) for name in names])


def _start(view: View, tensor: Tensor) -> View:
    """A view on the beginning of the tensor's storage."""
    return View(view.address - int(tensor.storage_offset()) * tensor.element_size(), (), (), view.dtype, view.storage)
