"""Files that are written once and are there whole or not at all: synced writes, holes, rename without replacing."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from heliograph.errors import StorageError

_HINTS: Final = {
    errno.ENOSPC: "free space, or choose another folder",
    errno.EDQUOT: "your quota is used up: free space, or choose another folder",
    errno.EFBIG: "the file system or a limit (ulimit -f) allows no file of this size: choose a smaller --cap",
    errno.EROFS: "choose a folder that can be written",
    errno.EACCES: "choose a folder that can be written",
    errno.EPERM: "choose a folder that can be written",
    errno.EEXIST: "something else has this name: choose another one",
    errno.ENOTDIR: "a part of the path is a file: choose another one",
    errno.ENOENT: "it was removed meanwhile, or a link leads nowhere: check the path",
}
_PATHS: Final = {errno.EEXIST, errno.ENOTDIR, errno.ENOENT}  # errors that no other file system would help against
_BLOCK: Final = 64 << 10  # zeros are left out of a file in multiples of this
_ZEROS: Final = bytes(_BLOCK)
_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1


@contextmanager
def storing(doing: str) -> Iterator[None]:
    """Turns the file system's errors into StorageError."""
    try:
        yield
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "OSError")
        raise StorageError(
            doing,
            found=f"{name}: {error.strerror}",
            required="a path that is free for it" if error.errno in _PATHS else "room in a file system to write to",
            hint=_HINTS.get(error.errno or 0, "see the system's log"),
        ) from error


class NewFile:
    """A file under construction. ``finish`` makes it read-only and durable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)

    def append(self, data: memoryview) -> None:
        """Writes ``data``; blocks of zeros become holes."""
        for at in range(0, len(data), _BLOCK):
            piece = bytes(data[at : at + _BLOCK])
            if piece != _ZEROS[: len(piece)]:
                self._write(piece)
            self.size += len(piece)

    def _write(self, piece: bytes) -> None:
        done = 0
        while done < len(piece):
            done += os.pwrite(self._descriptor, piece[done:], self.size + done)

    def finish(self) -> None:
        os.ftruncate(self._descriptor, self.size)
        os.fchmod(self._descriptor, 0o444)
        os.fsync(self._descriptor)
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def write_file(path: Path, data: bytes | memoryview) -> None:
    """A whole new file, read-only and durable."""
    file = NewFile(path)
    try:
        file.append(memoryview(data))
        file.finish()
    finally:
        file.close()


def replace_file(path: Path, data: bytes) -> None:
    """``path`` with new content; before and after it is whole."""
    draft = path.with_name(f".new-{path.name}")
    draft.unlink(missing_ok=True)
    write_file(draft, data)
    draft.rename(path)


def sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_new(source: Path, target: Path) -> None:
    """Renames a folder. FileExistsError if ``target`` is there: nothing is ever replaced."""
    libc = ctypes.CDLL(None, use_errno=True)
    if hasattr(libc, "renameat2"):
        if libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in {errno.EINVAL, errno.ENOSYS}:
            raise OSError(code, os.strerror(code), os.fspath(target))
    # A file system without NOREPLACE: an empty folder takes the name, and a rename replaces an empty folder whole.
    target.mkdir()
    source.rename(target)
