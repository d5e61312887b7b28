"""What front and worker say to each other: length-prefixed msgpack frames over a unix stream socket.

A frame is its length (4 bytes, little endian, 1 to MAX_FRAME) and one message, a msgpack map whose ``type`` names its
class. Both sides are one version of one package, and say so first::

    front  ── Start(protocol, core, options) ─────▶ worker
    front  ◀── Hello(protocol, digest, ...) ────── worker   as soon as the core's signature and manifest are checked
    front  ◀── Phase* ─ Loaded ─────────────────── worker   or Failed, and the worker ends
    front  ── Submit | Cancel | Proceed ──────────▶ worker   Proceed once
    front  ◀── Phase* ─ Ready ──────────────────── worker   the buckets of the start have passed their self-tests
    front  ◀── Launched | Ended ────────────────── worker   one Launched a launch, with what it gave each row
    front  ── Stop ───────────────────────────────▶ worker   ends with exit code 0

A row is one sequence that is being generated: a request with ``n`` = 3 is three rows with one prompt. The front
numbers them; a number is never used again. Every row that was submitted ends exactly once: by the ``end`` of its last
Gain, or by an Ended.

Nothing here reads or writes a socket: :class:`Decoder` takes bytes as they come, whatever their pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from heliograph.errors import ProtocolError
from heliograph.runtime import sampling

PROTOCOL = 1
MAX_FRAME = 4 << 20  # bytes: a prompt of 2^17 tokens takes at most 5 bytes each
MAX_ROWS = 128  # rows of one Submit
MAX_PROMPT = 1 << 17  # tokens
MAX_LIST = 1024  # stop ids, biases
PREFIX = struct.Struct("<I")

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Row = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
Seed = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Few = msgspec.Meta(max_length=MAX_LIST)


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    """Base of all messages."""


# ---- from the front ----------------------------------------------------------------------------------------------
class Start(Frame, tag="start", frozen=True):
    """Load this core. Zeros mean what ``runtime.load`` means by leaving the argument out."""

    protocol: int
    core: str  # path
    device: Count = 0  # number of the CUDA device
    threads: Count = 0  # that run kernels
    units: Count = 0  # KV blocks, the padding block included
    memory: Count = 0  # bytes that may be used
    wait_all: bool = False  # build and test every bucket before Ready


class Settings(sampling.Settings, frozen=True, forbid_unknown_fields=True):
    """How a row's tokens are chosen."""

    bias: Annotated[tuple[tuple[Token, float], ...], Few] = ()


class Submit(Frame, tag="submit", frozen=True):
    """Rows that continue one prompt and share its whole blocks."""

    rows: Annotated[tuple[tuple[Row, Seed], ...], msgspec.Meta(min_length=1, max_length=MAX_ROWS)]
    prompt: Annotated[tuple[Token, ...], msgspec.Meta(min_length=1, max_length=MAX_PROMPT)]
    limit: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]  # tokens to generate at most
    least: Count = 0  # tokens before which no stop token is chosen
    stops: Annotated[tuple[Token, ...], Few] = ()  # tokens that end a row; they are not part of it
    settings: Settings = Settings()


class Cancel(Frame, tag="cancel", frozen=True):
    """Ends rows whose client has gone or has enough; unknown and ended ones are no error: the two may cross."""

    rows: Annotated[tuple[Row, ...], msgspec.Meta(min_length=1, max_length=MAX_ROWS)]


class Proceed(Frame, tag="proceed", frozen=True):
    """What clients asked before the front could hear them has been submitted: a start's other self-tests may go on.
    They would take the processors that the front needs to get there, and the first requests would wait for them."""


class Stop(Frame, tag="stop", frozen=True):
    """End now. Rows under way are dropped."""


# ---- from the worker ---------------------------------------------------------------------------------------------
class Hello(Frame, tag="hello", frozen=True):
    """The core that the worker verified, before it is loaded."""

    protocol: int
    digest: str
    name: str


class Phase(Frame, tag="phase", frozen=True):
    """A phase of the start has ended."""

    name: str
    nanoseconds: Count


class Loaded(Frame, tag="loaded", frozen=True):
    """From now on rows are taken in. Each begins as soon as the buckets that it needs have passed their self-tests."""

    concurrency: Count  # rows at a time
    blocks: Count  # KV blocks that may be handed out
    block_tokens: Count
    biases: Count  # bias entries of a row, those that hold stop tokens back included


class Ready(Frame, tag="ready", frozen=True):
    """The self-tests that a start needs have passed: of the smallest and the largest bucket of each entry."""


class Gain(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a launch gave one row. With an ``end`` it is the row's last; the tokens before it still count."""

    row: Row
    tokens: tuple[Token, ...]
    end: Literal["", "stop", "length"] = ""


class Load(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the rows hold of a worker."""

    running: Count  # rows that hold a slot
    waiting: Count  # rows that wait for one
    free_blocks: Count


class Launched(Frame, tag="launched", frozen=True):
    """A launch was read back.

    Nanoseconds run from the previous read-back, or from this launch's own submission if the device was idle, to its
    own read-back, so that the launches' times add up to the time in which the device was busy.
    """

    entry: Literal["decode", "prefill"]
    bucket: Count  # rows or tokens of the bucket
    real: Count  # of them not padding
    nanoseconds: Count
    gains: tuple[Gain, ...]
    load: Load  # after this launch
    prepared: Count  # buckets that are built and tested


class Ended(Frame, tag="ended", frozen=True):
    """A row ended otherwise than by its tokens."""

    row: Row
    end: Literal["cancelled", "refused"]
    load: Load  # after that
    message: str = ""


class Failed(Frame, tag="failed", frozen=True):
    """The worker's last words: the error that ends it, in the four parts of ``heliograph.errors``."""

    error: str
    doing: str
    found: str
    required: str
    hint: str


FromFront = Start | Submit | Cancel | Proceed | Stop
FromWorker = Hello | Phase | Loaded | Ready | Launched | Ended | Failed
Message = FromFront | FromWorker
M = TypeVar("M")

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """The frame of a message. ProtocolError if it would be longer than MAX_FRAME."""
    body = _encoder.encode(message)
    if len(body) > MAX_FRAME:
        raise _broken(f"a {type(message).__name__} of {len(body)} bytes", f"at most {MAX_FRAME}")
    return PREFIX.pack(len(body)) + body


class Decoder(Generic[M]):
    """Bytes of one direction to messages, whatever the pieces in which they come.

    After a ProtocolError the connection must be closed: there is no way to find the next frame.
    """

    def __init__(self, kind: type[M]) -> None:
        """``kind``: FromFront or FromWorker, the messages that this side may be sent."""
        self._decoder = msgspec.msgpack.Decoder(kind)
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """The messages that are complete now. Those that are not taken come with the next call."""
        self._bytes += data
        while len(self._bytes) >= PREFIX.size:
            (size,) = PREFIX.unpack_from(self._bytes)
            if not 1 <= size <= MAX_FRAME:
                raise _broken(f"a frame of {size} bytes", f"1 to {MAX_FRAME}")
            end = PREFIX.size + size
            if len(self._bytes) < end:
                break
            body = bytes(self._bytes[PREFIX.size : end])
            del self._bytes[:end]  # moves the start, not the rest
            try:
                message = self._decoder.decode(body)
            except (msgspec.DecodeError, RecursionError) as error:
                raise _broken(str(error), f"a message of protocol {PROTOCOL}") from error
            yield message

    def finish(self) -> None:
        """The other side has closed: ProtocolError if it did so inside a frame."""
        if self._bytes:
            raise _broken(f"the end of the stream after {len(self._bytes)} bytes of a frame", "whole frames")


def check_protocol(theirs: int) -> None:
    """Both sides must speak the same version."""
    if theirs != PROTOCOL:
        raise _broken(f"protocol {theirs}", f"protocol {PROTOCOL}")


def _broken(found: str, required: str) -> ProtocolError:
    return ProtocolError(
        "speaking between front and worker",
        found=found,
        required=required,
        hint="front and worker must be of one installation: install Heliograph again and restart the server",
    )
