"""Writing the weights image as slices, in one pass and with one chunk of memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from heliograph.core.digest import hasher
from heliograph.core.format import CHUNK_BYTES
from heliograph.core.manifest import Slice
from heliograph.core.storage import NewFile
from heliograph.core.store import Store

Bytes = bytes | bytearray | memoryview


class SliceWriter:
    """Takes the image from front to back and cuts it every ``step`` bytes. Close it when it was not finished."""

    def __init__(self, draft: Path, blobs: Path, store: Store, step: int) -> None:
        self._path = draft / "new-slice"
        self._blobs = blobs
        self._store = store
        self._step = step
        self._offset = 0  # of the slice in hand
        self._file: NewFile | None = None
        self._hash = hasher(step)
        self.slices: list[Slice] = []

    def append(self, data: memoryview) -> None:
        while data:
            if self._file is None:
                self._file = NewFile(self._path)
                self._hash = hasher(self._step)
            piece = data[: self._step - self._file.size]
            self._hash.update(piece)
            self._file.append(piece)
            data = data[len(piece) :]
            if self._file.size == self._step:
                self._end_slice(self._file)

    def finish(self) -> tuple[Slice, ...]:
        if self._file is not None:
            self._end_slice(self._file)
        return tuple(self.slices)

    def _end_slice(self, file: NewFile) -> None:
        file.finish()
        self._file = None
        digest = self._hash.hexdigest()
        target = self._blobs / digest
        if target.exists():  # equal slices are one file
            self._path.unlink()
        else:
            self._store.adopt(self._path, digest, file.size, target)
        self.slices.append(Slice(offset=self._offset, size=file.size, blob=digest))
        self._offset += file.size

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._path.unlink()
            self._file = None


def chunks(image: Iterable[Bytes]) -> Iterator[memoryview]:
    """The image cut every 4 MiB. A chunk is only valid until the next one is taken."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    filled = 0
    for data in image:
        piece = memoryview(data).cast("B")
        while piece:
            count = min(len(piece), CHUNK_BYTES - filled)
            buffer[filled : filled + count] = piece[:count]
            piece = piece[count:]
            filled += count
            if filled == CHUNK_BYTES:
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]
