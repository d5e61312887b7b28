"""What to capture of a model: its entries, their buckets, what the caller fills and reads, what survives.

A bucket is one shape of an entry. Shapes of inputs are written with the names of the bucket's dimensions::

    EntrySpec("classify", buckets=({"rows": 1}, {"rows": 8}),
              inputs={"image": TensorSpec(("rows", 3, 32, 32), "f32")},
              call=lambda model, image: {"scores": model(image)})
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor

from heliograph.core.format import SLOTS
from heliograph.core.provenance import tells_path
from heliograph.errors import UsageError
from heliograph.ops.launch import ITEM_BYTES

Shape = Mapping[str, int]  # a bucket: {"rows": 8}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
NUMERICS = ("row-invariant", "fast")


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input. ``shape`` holds extents and names of bucket dimensions; ``low`` and ``high`` (inclusive for whole
    numbers) bound valid values, from which self-test inputs are drawn when the spec has no ``examples``."""

    shape: tuple[int | str, ...]
    dtype: str
    low: float | None = None
    high: float | None = None

    def resolve(self, bucket: Shape) -> tuple[int, ...]:
        """The shape in a bucket."""
        return tuple(bucket[extent] if isinstance(extent, str) else extent for extent in self.shape)


@dataclass(frozen=True, slots=True)
class StateSpec:
    """Memory that survives between launches. ``grows``: ``shape`` is that of one unit; the tensor that the model
    sees has the units as a leading dimension, and the number of units is chosen when a core is loaded."""

    shape: tuple[int, ...]
    dtype: str
    grows: bool = False


@dataclass(frozen=True, slots=True)
class EntrySpec:
    """A named family of graphs. ``call(model, **inputs, **shared, **state)`` returns the outputs by name."""

    name: str
    buckets: tuple[Shape, ...]  # smallest first
    inputs: Mapping[str, TensorSpec]
    call: Callable[..., Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Example:
    """Valid inputs of a bucket as raw bytes, shared ones included. ``real_rows`` says how many of each dimension's
    rows are no padding; outputs and inputs of the others are left out of comparisons and poisoned. ``units`` says how
    many of the first units of growing state it may touch, if not all that the spec states."""

    inputs: Mapping[str, bytes]
    real_rows: Mapping[str, int] | None = None
    units: int | None = None


@dataclass(frozen=True, slots=True)
class TextSpec:
    """What a language model's core says about text."""

    tokenizer: bytes
    chat_template: str
    bos: int
    eos: tuple[int, ...]
    vocabulary: int
    context: int
    block_tokens: int
    concurrency: int
    bos_text: str
    eos_text: str


@dataclass(frozen=True, slots=True)
class CaptureSpec:
    """Everything that is captured of a model. ``units`` is the number of units of growing state while capturing
    and self-testing. ``examples(entry, bucket, seed)`` gives valid inputs, the same for the same seed: a start runs on
    those of seeds 0 and 1, which had better be cheap, verification on those of seed 2 as well, which had better fill
    the bucket."""

    model: str
    entries: tuple[EntrySpec, ...]
    state: Mapping[str, StateSpec] = field(default_factory=dict)
    shared: Mapping[str, TensorSpec] = field(default_factory=dict)
    units: int = 0
    text: TextSpec | None = None
    numerics: str = "row-invariant"
    slot: int = 0
    examples: Callable[[str, Shape, int], Example] | None = None

    def __post_init__(self) -> None:
        _check(self)


def label(bucket: Shape) -> str:
    """A bucket's name within its entry: its extents, ``8`` or ``4x128``; ``fixed`` for a bucket without dimensions."""
    return "x".join(str(extent) for extent in bucket.values()) or "fixed"


def graph_name(entry: EntrySpec, bucket: Shape) -> str:
    return f"{entry.name}/{label(bucket)}"


def _check(spec: CaptureSpec) -> None:
    _require(isinstance(spec.entries, (tuple, list)), f"entries {spec.entries}", "a tuple of EntrySpec")
    _require(bool(spec.entries), "no entry", "at least one entry")
    _require(not tells_path(spec.model), f"model {spec.model!r}", "a name: a core holds no absolute path")
    _require(spec.numerics in NUMERICS, f"numerics {spec.numerics!r}", f"one of {', '.join(NUMERICS)}")
    _require(0 <= spec.slot < SLOTS, f"slot {spec.slot}", f"a slot from 0 to {SLOTS - 1}")
    _distinct("entries", (entry.name for entry in spec.entries))
    for name, state in spec.state.items():
        _tensor(f"state {name!r}", name, state.shape, state.dtype)
    growing = [name for name, state in spec.state.items() if state.grows]
    _require(len(growing) <= 1, f"growing states {', '.join(growing)}", "at most one state that grows")
    if growing:
        _require(spec.units > 0, f"units {spec.units}", "at least one unit of growing state at capture")
    else:
        _require(spec.units == 0, f"units {spec.units} and no state that grows", "units of 0")
    for name, tensor in spec.shared.items():
        fixed = all(isinstance(extent, int) for extent in tensor.shape)
        _require(fixed, f"shared input {name!r} of shape {tensor.shape}", "extents that no bucket changes")
        _tensor(f"shared input {name!r}", name, tensor.shape, tensor.dtype)
    for entry in spec.entries:
        _check_entry(spec, entry)


def _check_entry(spec: CaptureSpec, entry: EntrySpec) -> None:
    what = f"entry {entry.name!r}"
    _require(bool(_NAME.match(entry.name)), what, "a name of letters, digits and underscores")
    sequence = isinstance(entry.buckets, (tuple, list)) and all(isinstance(each, Mapping) for each in entry.buckets)
    _require(sequence, f"{what} with buckets {entry.buckets}", "a tuple of mappings, such as ({'rows': 1},)")
    _require(bool(entry.buckets), f"{what} without buckets", "at least one bucket")
    dimensions = tuple(entry.buckets[0])
    for bucket in entry.buckets:
        _require(tuple(bucket) == dimensions, f"{what} with bucket {dict(bucket)}", f"dimensions {dimensions}")
        positive = all(isinstance(extent, int) and extent > 0 for extent in bucket.values())
        _require(positive, f"{what} with bucket {dict(bucket)}", "extents of 1 or more")
    sizes = [tuple(bucket.values()) for bucket in entry.buckets]
    ascending = all(a < b for a, b in pairwise(sizes))
    _require(ascending, f"{what} with buckets {sizes}", "different buckets, smallest first")
    inputs = isinstance(entry.inputs, Mapping) and all(isinstance(each, TensorSpec) for each in entry.inputs.values())
    _require(inputs, f"{what} with inputs {entry.inputs}", "a mapping of names to TensorSpec")
    _distinct(f"{what}: inputs, shared inputs and states", (*entry.inputs, *spec.shared, *spec.state))
    for name, tensor in entry.inputs.items():
        _tensor(f"{what}, input {name!r}", name, tensor.shape, tensor.dtype)
        unknown = [extent for extent in tensor.shape if isinstance(extent, str) and extent not in dimensions]
        _require(not unknown, f"{what}, input {name!r} with extents {unknown}", f"dimensions {dimensions}")


def _tensor(what: str, name: str, shape: tuple[int | str, ...], dtype: str) -> None:
    _require(bool(_NAME.match(name)), what, "a name of letters, digits and underscores")
    _require(dtype in ITEM_BYTES, f"{what} of type {dtype!r}", f"one of {', '.join(ITEM_BYTES)}")
    _require(isinstance(shape, (tuple, list)), f"{what} of shape {shape}", "a tuple of extents")
    positive = all(isinstance(extent, str) or extent > 0 for extent in shape)
    _require(positive, f"{what} of shape {shape}", "extents of 1 or more")


def _distinct(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        _require(name not in seen, f"{what}: {name!r} twice", "each name once")
        seen.add(name)


def _require(holds: bool, found: str, required: str) -> None:
    if not holds:
        raise UsageError("reading the capture spec", found=found, required=required, hint="change the spec")
