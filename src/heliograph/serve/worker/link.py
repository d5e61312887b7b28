"""Frames to and from the front on a non-blocking socket. What the front has not taken is kept up to a bound.

The socket is a bare descriptor: the module ``socket`` would be 4 ms of the start, and nothing of it is needed.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

from heliograph.serve.frames import Decoder, FromFront, FromWorker, encode
from heliograph.serve.limits import LIMITS, Limits

PIECE = 1 << 18  # bytes asked of the socket at a time


class FrontGone(Exception):
    """The front has closed its end, or died."""


class Link:
    """One connection. Owns the descriptor."""

    def __init__(self, descriptor: int, limits: Limits = LIMITS) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._limits = limits
        self._decoder: Decoder[FromFront] = Decoder(FromFront)  # type: ignore[arg-type]
        self._unsent = bytearray()
        self._poll = select.poll()

    @property
    def full(self) -> bool:
        """Whether the front has left so much that nothing more should be made."""
        return len(self._unsent) > self._limits.unsent

    def send(self, message: FromWorker) -> None:
        """Sends what the socket takes and keeps the rest. Never waits."""
        self._unsent += encode(message)
        self.flush()

    def flush(self) -> None:
        try:
            while self._unsent:
                sent = os.write(self._descriptor, self._unsent)
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError) as error:
            raise FrontGone from error

    def receive(self, wait: float | None) -> Iterator[FromFront]:
        """The messages that have come. Waits up to ``wait`` seconds (None: without end) until some have, or until
        the front takes what it was sent; while it has left too much, nothing more is taken from it either."""
        left = False
        for message in self._decoder.feed(b""):  # what an earlier call left
            left = True
            yield message
        if not left and self._wait(wait):
            self.flush()
            if not self.full:
                yield from self._decoder.feed(self._read())

    def drain(self, wait: float) -> None:
        """Waits up to ``wait`` seconds for the front to take everything."""
        end = time.monotonic() + wait
        while self._unsent and (left := end - time.monotonic()) > 0:
            self._poll.register(self._descriptor, select.POLLOUT)
            self._poll.poll(left * 1000)
            self.flush()

    def _wait(self, wait: float | None) -> bool:
        wanted = (select.POLLOUT if self._unsent else 0) | (0 if self.full else select.POLLIN)
        self._poll.register(self._descriptor, wanted)
        return bool(self._poll.poll(None if wait is None else wait * 1000))

    def _read(self) -> bytes:
        try:
            data = os.read(self._descriptor, PIECE)
        except BlockingIOError:
            return b""
        except ConnectionResetError as error:
            raise FrontGone from error
        if not data:
            raise FrontGone
        return data

    def close(self) -> None:
        os.close(self._descriptor)
