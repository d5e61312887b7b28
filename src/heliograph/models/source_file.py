"""A model's file: opened once, only read, every read checked against the size it had when it was opened."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from blake3 import blake3

from heliograph.errors import ModelFileError, StorageError

DIGEST_READ = 8 << 20  # bytes a read while the whole file is hashed


@dataclass(frozen=True, slots=True)
class Source:
    """A file that a model came from: its name in the model's folder and the BLAKE3 of its bytes."""

    name: str
    digest: str


class SourceFile:
    """A regular file behind one descriptor. Close it, or use it as a context.

    Reads go through ``pread``: a mapped file that shrinks would kill the process, and large sequential reads are
    what network file systems are fast at.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe would wait for a writer
        except OSError as error:
            raise StorageError(
                f"opening {path.name}", found=error.strerror or str(error), required="a readable file",
                hint="check the path and its permissions",
            ) from error  # fmt: skip
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise self.malformed("something that is no regular file", "a regular file")
        self.size = found.st_size
        self._stamp = (found.st_size, found.st_mtime_ns, found.st_ino)

    def read(self, offset: int, size: int) -> bytearray:
        """Exactly ``size`` bytes from ``offset``."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise self.malformed(
                f"{self.size} bytes", f"{offset + size} bytes", "the file is truncated: fetch it again"
            )
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            got = os.preadv(self._fd, [view[done:]], offset + done)
            if got == 0:
                raise self.malformed(f"its end at byte {offset + done}", f"{self.size} bytes as when it was opened")
            done += got
        return data

    def digest(self) -> str:
        """BLAKE3 of the whole file. Refuses a file that was changed since it was opened."""
        hasher = blake3()
        for offset in range(0, self.size, DIGEST_READ):
            hasher.update(self.read(offset, min(DIGEST_READ, self.size - offset)))
        now = os.fstat(self._fd)
        if (now.st_size, now.st_mtime_ns, now.st_ino) != self._stamp:
            raise self.malformed("a file that changed while it was read", "a file that stays as it is")
        return hasher.hexdigest()

    def malformed(
        self, found: str, required: str, hint: str = "fetch the file again, or ask its publisher"
    ) -> ModelFileError:
        """The error for a file that is not what it should be."""
        return ModelFileError(f"reading {self.path.name}", found=found, required=required, hint=hint)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> SourceFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
