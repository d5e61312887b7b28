"""Blobs shared by the cores of one folder: ``.store/<digest>``, hard links, so the link count is the reference count.

Nothing reads a core through the store; it only finds an equal file when the next core is written. Adding holds the
store's lock shared, removing holds it exclusively, so no link is lost between the look and the removal. A store that
this user may not use is none: cores keep copies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from heliograph.core.digest import hasher
from heliograph.core.format import STORE

# A link that cannot be made: other file system, too many links, not supported or not allowed. The core keeps a copy.
_NO_LINK: Final = {errno.EXDEV, errno.EMLINK, errno.EPERM, errno.EACCES, errno.EROFS, errno.EOPNOTSUPP}
_READ_BYTES: Final = 8 << 20


class Store:
    def __init__(self, cores: Path) -> None:
        self._path = cores / STORE

    def share(self, digest: str, size: int, target: Path) -> bool:
        """Makes ``target`` a link to the stored blob of this content; False if there is none that can be linked."""
        with suppress(PermissionError), self._locked(fcntl.LOCK_SH):
            return self._link(digest, size, target)
        return False

    def adopt(self, file: Path, digest: str, size: int, target: Path) -> None:
        """Moves a finished file to ``target``; from now on it, or an equal one that was there before, is shared.

        The target is there before the link, so that whoever is interrupted in between knows what to release.
        """
        file.rename(target)
        with suppress(PermissionError), self._locked(fcntl.LOCK_SH):
            for _ in range(2):  # again when what was there had other content
                try:
                    os.link(target, self._path / digest)
                    return
                except FileExistsError:
                    if self._link(digest, size, file):
                        file.rename(target)
                        return
                except OSError as error:
                    if error.errno not in _NO_LINK:
                        raise
                    return

    def release(self, digests: Iterable[str]) -> None:
        """Removes those blobs that no core uses any more, and the store when it is empty."""
        if not self._path.is_dir():
            return
        with suppress(PermissionError), self._locked(fcntl.LOCK_EX):
            for digest in digests:
                with suppress(FileNotFoundError, PermissionError):
                    if os.stat(self._path / digest, follow_symlinks=False).st_nlink == 1:
                        (self._path / digest).unlink()
            with suppress(OSError):  # not empty
                self._path.rmdir()

    def _link(self, digest: str, size: int, target: Path) -> bool:
        if not self._holds(digest, size):
            return False
        try:
            os.link(self._path / digest, target, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            return False
        return True

    def _holds(self, digest: str, size: int) -> bool:
        """Whether the store has this content. A file of other content under this name (a disk fault, a crash) is
        taken away: the caller's good one takes its place."""
        path = self._path / digest
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            path.unlink(missing_ok=True)
            return False
        try:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                return False
            if stat.S_ISREG(found.st_mode) and found.st_size == size and file_digest(descriptor, size) == digest:
                return True
        finally:
            os.close(descriptor)
        path.unlink(missing_ok=True)
        return False

    @contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        """The store's folder, made if need be. Whoever waits for the lock of a folder that is removed tries again."""
        while True:
            with suppress(FileExistsError):
                self._path.mkdir()
            try:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(descriptor, how)
                if self._is(descriptor):
                    yield
                    os.fsync(descriptor)
                    return
            finally:
                os.close(descriptor)

    def _is(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(self._path))
        except FileNotFoundError:
            return False


def file_digest(descriptor: int, size: int) -> str:
    hashed = hasher(size)
    while data := os.read(descriptor, _READ_BYTES):
        hashed.update(data)
    return hashed.hexdigest()
