"""What one capture hands to the census: its graphs as the driver holds them, and the content of its memory.

The second capture of an exact census runs in a process of its own, in another slot, and hands its words over in a
file: a header (MAGIC, VERSION, length of the rest), then one msgpack value. It is read by the same version of the
package, once, and is no part of a core.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final

import msgspec

from heliograph.core.format import MAX_NAME, MAX_PARAM_BYTES, ROLES, SLOTS
from heliograph.errors import CaptureError

MAGIC: Final = b"HGwords\0"
VERSION: Final = 2
MAX_BYTES: Final = 4 << 30  # of a file
MAX_CONTENT: Final = 1 << 30  # of one place
MAX_PLACES: Final = 1 << 20  # of one region
MAX_GRAPHS: Final = 1 << 14
MAX_NODES: Final = 1 << 20  # of one graph
MAX_GIVEN: Final = 1 << 12
_HEADER: Final = struct.Struct("<8sIQ")

Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Address = Annotated[int, msgspec.Meta(ge=0)]
Small = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_NAME)]
Place = Annotated[int, msgspec.Meta(ge=0, le=MAX_PARAM_BYTES)]
Content = Annotated[bytes, msgspec.Meta(max_length=MAX_CONTENT)]
Kept = Annotated[tuple[tuple[Size, Content], ...], msgspec.Meta(max_length=MAX_PLACES)]  # by offset in the region
Extent = tuple[Small, Small, Small]


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """Base of the records below: immutable, stored without field names."""


class RecordedKernel(_Part, frozen=True):
    """A launch. ``layout`` is (offset, size) of each parameter in ``params``, as the driver states it."""

    function: Text  # name, unique in its image
    image: Text  # digest of the kernel image
    params: Annotated[bytes, msgspec.Meta(max_length=MAX_PARAM_BYTES)]
    layout: Annotated[tuple[tuple[Place, Place], ...], msgspec.Meta(max_length=MAX_PARAM_BYTES)]
    grid: Extent = (1, 1, 1)
    block: Extent = (1, 1, 1)
    shared: Small = 0  # bytes of dynamic shared memory


class RecordedNode(_Part, frozen=True):
    """A node. ``given`` are the buffers that its op was given, where the caller knows them; ``path`` is the op's."""

    kind: Small  # core.templates.KIND_*
    origin: Text = ""  # what recorded it: op, module, line
    kernel: RecordedKernel | None = None
    address: Address = 0  # destination of a memset or copy
    source: Address = 0  # of a copy
    size: Size = 0  # bytes that lie between the first and the last byte touched, both included
    form: tuple[Address, ...] = ()  # of a memset: value, element, width, height, pitch
    path: Text = ""  # "model.layers.0/mm.1": buffers of the op are named scratch/{path}/...
    given: Annotated[tuple[Small, ...], msgspec.Meta(max_length=MAX_GIVEN)] = ()


class RecordedNodes(_Part, frozen=True):
    """A graph by its name, ``decode/8``, and its nodes in the order of capture."""

    name: Text
    nodes: Annotated[tuple[RecordedNode, ...], msgspec.Meta(max_length=MAX_NODES)]


class Words(_Part, frozen=True):
    """One capture in one slot. ``content`` is all that is kept by value, by role."""

    slot: Annotated[int, msgspec.Meta(ge=0, lt=SLOTS)]
    graphs: Annotated[tuple[RecordedNodes, ...], msgspec.Meta(max_length=MAX_GRAPHS)]
    content: Annotated[dict[Text, Kept], msgspec.Meta(max_length=len(ROLES))] = {}


def encode(words: Words) -> bytes:
    """The file. CaptureError if it were larger than MAX_BYTES."""
    data = msgspec.msgpack.encode(words)
    if len(data) > MAX_BYTES:
        raise _refused("writing the words of a capture", f"{len(data)} bytes", f"at most {MAX_BYTES} bytes")
    return _HEADER.pack(MAGIC, VERSION, len(data)) + data


def decode(data: bytes) -> Words:
    """The words of a file. CaptureError for a file that is cut short, foreign, of another version or out of bounds."""
    doing = "reading the words of the second capture"
    if data[: len(MAGIC)] != MAGIC[: len(data)]:
        raise _refused(doing, f"a file that begins with {data[: len(MAGIC)]!r}", f"one that begins with {MAGIC!r}")
    if len(data) < _HEADER.size:
        raise _refused(doing, f"{len(data)} bytes", f"a header of {_HEADER.size} bytes: the file is cut short")
    _, version, length = _HEADER.unpack_from(data)
    if version != VERSION:
        raise _refused(doing, f"version {version}", f"version {VERSION}")
    if length > MAX_BYTES:
        raise _refused(doing, f"{length} bytes stated", f"at most {MAX_BYTES} bytes")
    if len(data) - _HEADER.size != length:
        raise _refused(doing, f"{len(data) - _HEADER.size} bytes behind the header", f"{length} bytes, as it states")
    try:
        return msgspec.msgpack.decode(memoryview(data)[_HEADER.size :], type=Words)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(doing, str(error), "the words of a capture") from error


def _refused(doing: str, found: str, required: str) -> CaptureError:
    return CaptureError(
        doing, found=found, required=required, hint="run both captures with one version of the package, to their ends"
    )
