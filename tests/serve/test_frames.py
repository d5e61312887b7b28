"""What front and worker may say: every message, every bound, frames in any pieces, and bytes that are none."""

from __future__ import annotations

import struct
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import ProtocolError
from heliograph.serve.frames import (
    MAX_FRAME,
    MAX_LIST,
    MAX_PROMPT,
    MAX_ROWS,
    PREFIX,
    PROTOCOL,
    Cancel,
    Decoder,
    Ended,
    Failed,
    FromFront,
    FromWorker,
    Gain,
    Hello,
    Launched,
    Load,
    Loaded,
    Message,
    Phase,
    Proceed,
    Ready,
    Settings,
    Start,
    Stop,
    Submit,
    check_protocol,
    encode,
)

SETTINGS = Settings(
    temperature=0.5, top_k=3, top_p=0.25, min_p=0.125, presence=-1.5, frequency=2.5, repetition=1.25,
    bias=((0, -1.0), (2**31 - 1, 100.0)),
)  # fmt: skip
LAUNCHED = Launched(
    entry="decode", bucket=4, real=3, nanoseconds=12345678,
    gains=(Gain(1, (5,)), Gain(2, (), "stop"), Gain(3, (9,), "length")),
    load=Load(3, 2, 100), prepared=7,
)  # fmt: skip
FRONT: list[Message] = [
    Start(PROTOCOL, "/cores/smollm2"),
    Start(PROTOCOL, "ü", device=1, threads=2, units=100, memory=1 << 40, wait_all=True),
    Submit(rows=((0, -(2**63)), (2**53, 2**63 - 1)), prompt=(0, 2**31 - 1), limit=2**31),
    Submit(rows=((7, 1),), prompt=(1,), limit=1, least=1, stops=(2, 3), settings=SETTINGS),
    Cancel(rows=(1, 2, 3)),
    Proceed(),
    Stop(),
]
WORKER: list[Message] = [
    Hello(PROTOCOL, "ab" * 32, "smollm2"),
    Phase("verify", 1 << 53),
    Loaded(concurrency=16, blocks=8191, block_tokens=16, biases=32),
    Ready(),
    LAUNCHED,
    msgspec.structs.replace(LAUNCHED, entry="prefill", gains=()),
    Ended(3, "cancelled", Load(0, 0, 7)),
    Ended(4, "refused", Load(1, 2, 7), "too long"),
    Failed("CoreError", "doing", "found", "required", "hint"),
]
SUBMIT: dict[str, Any] = {"type": "submit", "rows": [[1, 2]], "prompt": [1], "limit": 1}


def name(message: Message) -> str:
    return type(message).__name__


def decoder_of(message: Message) -> Decoder[Any]:
    return Decoder(FromFront if message in FRONT else FromWorker)


def frame(body: bytes) -> bytes:
    return PREFIX.pack(len(body)) + body


def decoded(value: object, kind: Any = FromFront) -> Message:
    (message,) = Decoder(kind).feed(frame(msgspec.msgpack.encode(value)))
    return message


# ---- whole messages --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("message", [*FRONT, *WORKER], ids=name)
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    decoder = decoder_of(message)
    assert list(decoder.feed(encode(message))) == [message]
    decoder.finish()


@pytest.mark.parametrize("message", [*FRONT, *WORKER], ids=name)
def test_a_frame_cut_at_any_byte_is_no_message_yet_and_no_end(message: Message) -> None:
    data = encode(message)
    for cut in range(1, len(data)):
        decoder = decoder_of(message)
        assert list(decoder.feed(data[:cut])) == []
        with pytest.raises(ProtocolError):
            decoder.finish()
        assert list(decoder.feed(data[cut:])) == [message]
        decoder.finish()


@given(st.lists(st.sampled_from(FRONT), max_size=8), st.data())
def test_messages_come_out_whatever_the_pieces(messages: list[Message], data: st.DataObject) -> None:
    stream = b"".join(map(encode, messages))
    decoder: Decoder[Any] = Decoder(FromFront)
    out: list[Message] = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        out += decoder.feed(stream[:size])
        stream = stream[size:]
    assert out == messages
    decoder.finish()


def test_messages_that_were_not_taken_come_with_the_next_call() -> None:
    decoder: Decoder[Any] = Decoder(FromFront)
    assert next(iter(decoder.feed(b"".join(map(encode, FRONT))))) == FRONT[0]
    assert list(decoder.feed(b"")) == FRONT[1:]


@pytest.mark.parametrize("message", WORKER, ids=name)
def test_the_front_may_not_say_what_a_worker_says(message: Message) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder(FromFront).feed(encode(message)))


@pytest.mark.parametrize("message", FRONT, ids=name)
def test_a_worker_may_not_say_what_the_front_says(message: Message) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder(FromWorker).feed(encode(message)))


@pytest.mark.parametrize("theirs", [PROTOCOL - 1, PROTOCOL + 1, -1, 2**63])
def test_another_protocol_version_is_one_clear_error(theirs: int) -> None:
    with pytest.raises(ProtocolError) as raised:
        check_protocol(theirs)
    assert (raised.value.found, raised.value.required) == (f"protocol {theirs}", f"protocol {PROTOCOL}")
    check_protocol(PROTOCOL)


# ---- bounds ----------------------------------------------------------------------------------------------------------
def bounds() -> list[Any]:
    """A field, the last value that passes, the first that does not."""
    count = (1 << 53, (1 << 53) + 1)
    token = (2**31 - 1, 2**31)
    return [
        ("rows", [[1, 1]] * MAX_ROWS, [[1, 1]] * (MAX_ROWS + 1)),
        ("rows", [[1, 1]], []),
        ("rows", [[count[0], 0]], [[count[1], 0]]),
        ("rows", [[0, 0]], [[-1, 0]]),
        ("rows", [[0, 2**63 - 1]], [[0, 2**63]]),
        ("rows", [[0, 1]], [[0, 1.5]]),
        ("rows", [[0, 1]], [[0]]),
        ("prompt", [1] * MAX_PROMPT, [1] * (MAX_PROMPT + 1)),
        ("prompt", [1], []),
        ("prompt", [token[0]], [token[1]]),
        ("prompt", [0], [-1]),
        ("prompt", [0], ["0"]),
        ("limit", 1, 0),
        ("limit", 2**31, 2**31 + 1),
        ("least", 0, -1),
        ("least", count[0], count[1]),
        ("stops", [1] * MAX_LIST, [1] * (MAX_LIST + 1)),
        ("stops", [token[0]], [token[1]]),
        ("settings", {"bias": [[1, 1.0]] * MAX_LIST}, {"bias": [[1, 1.0]] * (MAX_LIST + 1)}),
        ("settings", {"bias": [[token[0], 1.0]]}, {"bias": [[token[1], 1.0]]}),
        ("settings", {"top_k": 0}, {"top_k": -1}),
        ("settings", {"temperature": 1.0}, {"temperature": "1.0"}),
        ("settings", {}, {"warmth": 1.0}),
        ("settings", {}, None),
    ]


@pytest.mark.parametrize(("field", "good", "bad"), bounds())
def test_a_field_of_submit_beyond_its_bound_is_refused(field: str, good: object, bad: object) -> None:
    assert isinstance(decoded(SUBMIT | {field: good}), Submit)
    with pytest.raises(ProtocolError):
        decoded(SUBMIT | {field: bad})


@pytest.mark.parametrize(
    ("good", "bad", "kind"),
    [
        ({"type": "cancel", "rows": [1] * MAX_ROWS}, {"type": "cancel", "rows": [1] * (MAX_ROWS + 1)}, FromFront),
        ({"type": "cancel", "rows": [1]}, {"type": "cancel", "rows": []}, FromFront),
        ({"type": "stop"}, {"type": "halt"}, FromFront),
        ({"type": "stop"}, {}, FromFront),
        ({"type": "stop"}, {"type": "stop", "now": True}, FromFront),
        ({"type": "stop"}, ["stop"], FromFront),
        ({"type": "start", "protocol": 9, "core": "c"}, {"type": "start", "protocol": 9}, FromFront),
        (
            {"type": "start", "protocol": 9, "core": "c", "threads": 0},
            {"type": "start", "protocol": 9, "core": "c", "threads": -1},
            FromFront,
        ),
        (
            {"type": "ended", "row": 1, "end": "refused", "load": [0, 0, 1]},
            {"type": "ended", "row": 1, "end": "stop", "load": [0, 0, 1]},
            FromWorker,
        ),
        (
            {"type": "phase", "name": "a", "nanoseconds": 1},
            {"type": "phase", "name": "a", "nanoseconds": -1},
            FromWorker,
        ),
    ],
)
def test_a_message_that_is_not_in_the_schema_is_refused(good: object, bad: object, kind: Any) -> None:
    decoded(good, kind)
    with pytest.raises(ProtocolError):
        decoded(bad, kind)


@pytest.mark.parametrize(("gain", "passes"), [
    ([1, [2], "stop"], True), ([1, [2]], True), ([1], False), ([1, [2], "cancelled"], False), ([1, [2], "", 0], False),
])  # fmt: skip
def test_a_gain_has_a_row_tokens_and_perhaps_an_end(gain: list[object], passes: bool) -> None:
    value = msgspec.to_builtins(LAUNCHED) | {"gains": [gain]}
    if passes:
        assert isinstance(decoded(value, FromWorker), Launched)
    else:
        with pytest.raises(ProtocolError):
            decoded(value, FromWorker)


@pytest.mark.parametrize("size", [0, MAX_FRAME + 1, 2**32 - 1])
def test_a_frame_of_a_size_that_cannot_be_is_refused_before_it_has_come(size: int) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder(FromFront).feed(struct.pack("<I", size)))


def test_a_frame_of_the_largest_size_is_waited_for() -> None:
    decoder: Decoder[Any] = Decoder(FromFront)
    assert list(decoder.feed(struct.pack("<I", MAX_FRAME) + b"\x80")) == []


def test_a_message_longer_than_a_frame_is_not_sent() -> None:
    room = MAX_FRAME - len(encode(Ended(1, "refused", Load(0, 0, 0), "x" * 100_000))) + PREFIX.size + 100_000
    assert len(encode(Ended(1, "refused", Load(0, 0, 0), "x" * room))) == PREFIX.size + MAX_FRAME
    with pytest.raises(ProtocolError):
        encode(Ended(1, "refused", Load(0, 0, 0), "x" * (room + 1)))


def test_the_largest_submit_fits_into_a_frame() -> None:
    token = 2**31 - 1
    largest = Submit(
        rows=((2**53, 2**63 - 1),) * MAX_ROWS, prompt=(token,) * MAX_PROMPT, limit=2**31, least=2**53,
        stops=(token,) * MAX_LIST, settings=msgspec.structs.replace(SETTINGS, bias=((token, 0.1),) * MAX_LIST),
    )  # fmt: skip
    assert list(Decoder(FromFront).feed(encode(largest))) == [largest]


# ---- bytes that are no message ---------------------------------------------------------------------------------------
def test_of_a_key_that_comes_twice_the_last_counts() -> None:
    encoded = [msgspec.msgpack.encode(each) for each in ("type", "stop", "type", "cancel", "rows", [1], "rows", [2])]
    body = b"\x84" + b"".join(encoded)
    with pytest.raises(ProtocolError):
        list(Decoder(FromFront).feed(frame(body)))
    twice = b"\x83" + b"".join(msgspec.msgpack.encode(each) for each in ("type", "cancel", "rows", [1], "rows", [2]))
    assert list(Decoder(FromFront).feed(frame(twice))) == [Cancel((2,))]


@pytest.mark.parametrize("nest", [b"\x91", b"\x81\xa1a", b"\x81\xa4type"], ids=["lists", "maps", "types"])
def test_deep_nesting_is_refused(nest: bytes) -> None:
    for depth in (10, 1_000, 200_000):
        with pytest.raises(ProtocolError):
            list(Decoder(FromFront).feed(frame(nest * depth + b"\xc0")))


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",  # never used
        b"\xdd\xff\xff\xff\xff",  # a list of 2^32 - 1
        b"\x81\xa4type\xdb\xff\xff\xff\xff",  # a string of 2^32 - 1
        b"\x81\xa4type\xa1\xff",  # not UTF-8
        b"\x81\xa1\xff\xa1a",
        b"\xd6\xff\x00\x00\x00\x00",  # a timestamp
        b"\xc7\x0c\xff" + b"\xff" * 12,
        b"\x81\xa4type\xa4stop\x00",  # a byte too many
    ],
)
def test_bytes_that_are_no_message_are_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(Decoder(FromFront).feed(frame(body)))


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_are_messages_or_a_protocol_error(data: bytes, framed: bool) -> None:
    for kind in (FromFront, FromWorker):
        with suppress(ProtocolError):
            list(Decoder(kind).feed(frame(data) if framed and data else data))


@given(st.sampled_from([*FRONT, *WORKER]), st.data())
def test_a_frame_with_a_wrong_byte_is_a_message_or_a_protocol_error(message: Message, data: st.DataObject) -> None:
    body = bytearray(encode(message))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolError):
        list(decoder_of(message).feed(bytes(body)))
