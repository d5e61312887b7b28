"""Weights from their files into their region, by several threads, checked where they were read to.

A thread takes the next 4 MiB chunk of the region image; ``VerifiedCore.read_chunk`` reads it to where the thread's
``Lane`` says and hashes the bytes that lie there. What was checked is what the graphs will read, and a file that
changes after its bytes were read changes nothing. On the host a lane is the region itself: there is no buffer between,
so a load needs no memory beyond the region. On a device of its own memory it is pinned (``pinned``): what was checked
there is what the device copies. ``preadv``, BLAKE3 and the copy release the interpreter lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

import msgspec

from heliograph.core.format import CHUNK_BYTES
from heliograph.core.layout import chunk_count, chunk_pieces
from heliograph.core.manifest import Slice, Weights
from heliograph.errors import TamperedError

MAX_THREADS = 8


class WeightSource(Protocol):
    """What staging needs of a verified core."""

    def read_chunk(self, chunk: int, into: memoryview) -> int: ...
    def open_weights(self, slice: int) -> int: ...


class Lane(Protocol):
    """One thread's way into the region; used by that thread alone."""

    def open(self, offset: int, size: int) -> memoryview:
        """Where to read ``size`` bytes that belong at ``offset``. The caller releases it."""

    def sent(self, offset: int, size: int) -> None:
        """The bytes are there and checked."""

    def close(self) -> None:
        """When this returns all bytes sent are in the region, and nothing writes to it any more. Idempotent."""


class Target(Protocol):
    """The weights region."""

    def lane(self) -> Lane: ...
    def release(self) -> None:
        """Nobody stages any more."""


class InPlace:
    """A region that the host can address: a chunk is read into it. Its own lane, for any number of threads."""

    def __init__(self, region: memoryview) -> None:
        """``region`` begins at the region's base and is writable; it is released when the pass ends."""
        self._region = region

    def lane(self) -> InPlace:
        return self

    def open(self, offset: int, size: int) -> memoryview:
        return self._region[offset : offset + size]

    def sent(self, offset: int, size: int) -> None: ...

    def close(self) -> None: ...

    def release(self) -> None:
        self._region.release()


class Staged(msgspec.Struct, frozen=True):
    """What was done, for the log."""

    bytes_read: int
    threads: int


def staging_threads(requested: int = 0) -> int:
    """Threads to stage with: as many as this process may run on, at most eight."""
    return requested or min(MAX_THREADS, len(os.sched_getaffinity(0)))


class Staging:
    """One pass over the weights. ``start`` returns at once; ``finish`` waits and raises what went wrong first."""

    def __init__(
        self, source: WeightSource, weights: Weights, target: Target, *, threads: int = 0, check: bool = True
    ) -> None:
        """``check=False`` leaves the digests out. It exists to measure what they cost and has no other user."""
        self._source = source
        self._weights = weights
        self._target = target
        self._check = check
        self._chunks = chunk_count(weights.size)
        self._next = self._bytes = 0
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        count = min(staging_threads(threads), self._chunks)
        self._threads = [threading.Thread(target=self._work, name=f"staging-{i}", daemon=True) for i in range(count)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def finish(self) -> Staged:
        """Waits for the last chunk. Raises TamperedError or the file system's error; the region is then worthless."""
        self._join()
        if self._failure is not None:
            raise self._failure
        return Staged(self._bytes, len(self._threads))

    def abandon(self) -> None:
        """Stops after the chunks in hand; nothing touches the region afterwards. Idempotent."""
        with self._lock:
            self._next = self._chunks
        self._join()

    def _join(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._target.release()

    def _work(self) -> None:
        try:
            lane = self._target.lane()
            try:
                while (chunk := self._take()) is not None:
                    self._stage(chunk, lane)
            finally:
                lane.close()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits, which raises it
            _let_go(error)
            with self._lock:
                self._failure = self._failure or error
                self._next = self._chunks

    def _take(self) -> int | None:
        with self._lock:
            if self._next >= self._chunks:
                return None
            self._next += 1
            return self._next - 1

    def _stage(self, chunk: int, lane: Lane) -> None:
        begin = chunk * CHUNK_BYTES
        with lane.open(begin, min(CHUNK_BYTES, self._weights.size - begin)) as into:
            if self._check:
                count = self._source.read_chunk(chunk, into)
            else:
                count = _read_unchecked(self._source, self._weights.slices, chunk, self._weights.size, into)
        lane.sent(begin, count)
        with self._lock:
            self._bytes += count


def _let_go(error: BaseException) -> None:
    """An error's frames would hold views of the region for as long as somebody holds the error."""
    at = error.__traceback__
    while at is not None:
        with suppress(RuntimeError):  # a frame that still runs: it lets go by itself
            at.tb_frame.clear()
        at = at.tb_next


def _read_unchecked(source: WeightSource, slices: Sequence[Slice], chunk: int, size: int, into: memoryview) -> int:
    done = 0
    for piece in chunk_pieces(slices, chunk, size):
        with into[done : done + piece.size] as part:
            if os.preadv(source.open_weights(piece.slice), [part], piece.at) != piece.size:
                raise TamperedError(
                    "reading weights",
                    found=f"slice {piece.slice} ends before byte {piece.at + piece.size}",
                    required=f"{slices[piece.slice].size} bytes",
                    hint="the file was cut short: get the core again",
                )
        done += piece.size
    return done
