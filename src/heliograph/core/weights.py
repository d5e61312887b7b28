"""The weights' files: opened once, read by chunks, each chunk checked where it was read to (M12, M13, M46)."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING

from blake3 import blake3

from heliograph.core.digest import hasher
from heliograph.core.folder import CoreFolder
from heliograph.core.format import BLOBS, CHUNK_BYTES
from heliograph.core.layout import chunk_count, chunk_pieces
from heliograph.core.manifest import Weights
from heliograph.errors import StorageError, TamperedError

if TYPE_CHECKING:
    from concurrent.futures import Future

_DOING = "reading the weights"
_HINT = "fetch the core again from where it came"


class WeightFiles:
    """Any thread may read. Descriptors stay open until ``close``."""

    def __init__(self, folder: CoreFolder, weights: Weights, digests: memoryview) -> None:
        self._folder = folder
        self._weights = weights
        self._digests = digests
        self._descriptors: dict[str, int] = {}  # by blob: equal slices are one file
        self._lock = Lock()

    def close(self) -> None:
        with self._lock:
            while self._descriptors:
                os.close(self._descriptors.popitem()[1])

    def open(self, number: int) -> int:
        """The descriptor of a slice's file."""
        part = self._weights.slices[number]
        with self._lock:
            if part.blob not in self._descriptors:
                self._descriptors[part.blob] = self._folder.open_blob(part.blob, part.size)
            return self._descriptors[part.blob]

    def digest(self, chunk: int) -> bytes:
        return bytes(self._digests[32 * chunk : 32 * chunk + 32])

    def read_chunk(self, chunk: int, into: memoryview) -> int:
        """Reads a chunk into ``into`` and checks the bytes that are there then. Its size."""
        size = self.read(chunk, into)
        found = blake3(into[:size]).digest()
        if found != self.digest(chunk):
            raise TamperedError(
                f"{_DOING}, chunk {chunk} of {chunk_count(self._weights.size)}",
                found=f"BLAKE3 {found.hex()}",
                required=f"{self.digest(chunk).hex()}, as signed (M46)",
                hint=_HINT,
            )
        return size

    def read(self, chunk: int, into: memoryview) -> int:
        """Reads a chunk without checking it."""
        at = 0
        for piece in chunk_pieces(self._weights.slices, chunk, self._weights.size):
            end = at + piece.size
            place = piece.at
            while at < end:
                count = self._preadv(piece.slice, into[at:end], place)
                at, place = at + count, place + count
        return at

    def _preadv(self, number: int, into: memoryview, place: int) -> int:
        try:
            count = os.preadv(self.open(number), [into], place)
        except OSError as error:
            raise StorageError(
                _DOING, found=f"{error.strerror}", required="files that can be read", hint="see the system's log"
            ) from error
        if count == 0:
            raise TamperedError(
                f"{_DOING}, {BLOBS}/{self._weights.slices[number].blob}",
                found=f"a file that ends at {place}",
                required=f"{self._weights.slices[number].size} bytes (M12)",
                hint=_HINT,
            )
        return count

    def check_all(self, progress: Callable[[int], None] | None) -> None:
        """Every byte against chunk and file digests. One pass: threads read and check chunks, this one follows them
        with the digest of each file."""
        names = _FileDigests(self._weights)
        done = 0
        for chunk in self._checked_chunks():
            names.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done)

    def _checked_chunks(self) -> Iterator[memoryview]:
        """The image's chunks in order. A chunk is only valid until the next one is taken."""
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  5 ms, and a load does not come here

        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        idle = deque(memoryview(bytearray(CHUNK_BYTES)) for _ in range(threads + 1))
        ahead: deque[tuple[memoryview, Future[int]]] = deque()
        with ThreadPoolExecutor(threads) as pool:
            try:
                for chunk in range(chunk_count(self._weights.size)):
                    if not idle:
                        buffer, size = ahead.popleft()
                        yield buffer[: size.result()]
                        idle.append(buffer)
                    buffer = idle.popleft()
                    ahead.append((buffer, pool.submit(self.read_chunk, chunk, buffer)))
                for buffer, size in ahead:
                    yield buffer[: size.result()]
            finally:
                pool.shutdown(cancel_futures=True)


class _FileDigests:
    """Follows the image and compares each slice with the digest that names its file."""

    def __init__(self, weights: Weights) -> None:
        self._parts = iter(weights.slices)
        self._left = 0
        self._expected = ""
        self._hash = hasher(0)

    def update(self, data: memoryview) -> None:
        while data:
            if self._left == 0:
                part = next(self._parts)
                self._left, self._expected = part.size, part.blob
                self._hash = hasher(part.size)
            piece = data[: self._left]
            self._hash.update(piece)
            self._left -= len(piece)
            if self._left == 0 and self._hash.hexdigest() != self._expected:
                raise TamperedError(
                    f"{_DOING}, {BLOBS}/{self._expected}",
                    found=f"BLAKE3 {self._hash.hexdigest()}",
                    required="the digest that names the file (M13)",
                    hint=_HINT,
                )
            data = data[len(piece) :]
