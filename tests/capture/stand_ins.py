"""A stream that keeps what is submitted, and lowerings that turn any op into one launch: the recorder alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from heliograph.ops.launch import Kernel, Lowering, ParamBlock, Recorder, View


@dataclass
class KeptFunction:
    name: str
    param_bytes: int
    pointer_offsets: tuple[int, ...]


@dataclass
class KeptStream:
    """Takes the calls of ``_native.Stream`` that the recorder makes."""

    launches: list[tuple[str, int, bytes]] = field(default_factory=list)
    copies: list[tuple[int, int, int]] = field(default_factory=list)
    fills: list[tuple[int, int, int]] = field(default_factory=list)

    def launch(self, function: KeptFunction, grid: tuple[int, int, int], params: bytes) -> None:
        self.launches.append((function.name, grid[0], params))

    def memset(self, address: int, value: int, size: int) -> None:
        self.fills.append((address, value, size))

    def memcpy(self, to: int, source: int, size: int) -> None:
        self.copies.append((to, source, size))


def function(kernel: Kernel) -> KeptFunction:
    return KeptFunction(kernel.name, kernel.params.size, kernel.params.pointer_offsets)


def views(value: object) -> list[View]:
    if isinstance(value, View):
        return [value]
    if isinstance(value, (list, tuple)):
        return [view for item in value for view in views(item)]
    return []


def one_launch(name: str, seen: list[tuple[str, tuple[object, ...], Mapping[str, object]]] | None = None) -> Lowering:
    """A lowering that launches one kernel with a pointer for each tensor it was given or has to fill."""

    def lower(
        recorder: Recorder, args: tuple[object, ...], kwargs: Mapping[str, object], outs: tuple[View, ...]
    ) -> None:
        if seen is not None:
            seen.append((name, args, kwargs))
        pointers = {f"p{i}": view for i, view in enumerate([*views(list(args)), *views(list(kwargs.values())), *outs])}
        block = ParamBlock(*((key, "ptr") for key in pointers), ("count", "u64"))
        count = outs[0].numel if outs else 0
        recorder.launch(Kernel("stand_in", name, block), 1, **pointers, count=count)

    return lower


def copying(recorder: Recorder, args: tuple[object, ...], kwargs: Mapping[str, object], outs: tuple[View, ...]) -> None:
    """``aten.copy_``: a memcpy where one does, else a launch."""
    to, source = args[0], args[1]
    assert isinstance(to, View)
    assert isinstance(source, View)
    if to.contiguous and source.contiguous and to.dtype == source.dtype and to.shape == source.shape:
        recorder.copy(to, source)
    else:
        one_launch("copy_")(recorder, args[:2], {}, ())
