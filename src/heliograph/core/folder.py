"""A core's folder: names, and files opened once, relative to the folder, no links followed (M10 to M12)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from heliograph.core.format import BLOBS, CORE_JSON, GRAPHS, PROVENANCE_JSON, SIGNATURE
from heliograph.core.refusal import refusal
from heliograph.errors import ExtraFileError, FileKindError, MissingFileError, StorageError, TamperedError, UsageError

FILES: Final = (CORE_JSON, PROVENANCE_JSON, SIGNATURE, GRAPHS)
SHOWN: Final = 8  # names in a message
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FETCH: Final = "fetch the core again from where it came"
_CORE: Final = "the folder of a core"
_CHECK: Final = "check the path"


class CoreFolder:
    """An open core folder. Holds a shared lock, so that nobody who cleans up removes it meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._blobs = -1
        try:
            self._root = os.open(path, _FOLDER)
        except FileNotFoundError as error:
            raise MissingFileError(f"opening {path}", found="no such folder", required=_CORE, hint=_CHECK) from error
        except NotADirectoryError as error:
            raise FileKindError(f"opening {path}", found="a file", required=_CORE, hint=_CHECK) from error
        except OSError as error:
            raise self._failure("", error) from error
        try:
            fcntl.flock(self._root, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise StorageError(
                f"opening {path}", found="a folder that is being removed", required="a core that stays", hint=_FETCH
            ) from error
        except OSError as error:
            if error.errno not in {errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}:  # file systems without locks
                self.close()
                raise self._failure("", error) from error

    def close(self) -> None:
        for descriptor in (self._blobs, self._root):
            if descriptor >= 0:
                os.close(descriptor)
        self._blobs = self._root = -1

    def check_names(self) -> None:
        """M10 and M11 for the folder itself; opens ``blobs``."""
        names = self._list(self._root, "")
        if not {*FILES, BLOBS} & {*names}:
            raise self._no_core(names)
        self._compare(names, (*FILES, BLOBS), "")
        self._kind(self._root, BLOBS, "a folder")
        try:
            self._blobs = os.open(BLOBS, _FOLDER | os.O_NOFOLLOW, dir_fd=self._root)
        except OSError as error:
            raise self._failure(BLOBS, error) from error
        for name in FILES:
            self._kind(self._root, name, "a regular file")

    def check_blobs(self, sizes: dict[str, int]) -> None:
        """M10 to M12 for the blobs. ``sizes``: by digest; the digests have the form of M4."""
        self._compare(self._list(self._blobs, BLOBS), sizes, f"{BLOBS}/")
        for digest, size in sizes.items():
            found = self._kind(self._blobs, digest, "a regular file", f"{BLOBS}/")
            self._length(f"{BLOBS}/{digest}", found.st_size, size)

    def read(self, name: str, limit: int) -> bytes:
        """One of the four files; FormatError (M1) if it is longer than ``limit``."""
        descriptor = self._open(self._root, name)
        try:
            size = os.fstat(descriptor).st_size
            if size > limit:
                raise refusal(f"reading {self.path / name}", f"{size} bytes", f"at most {limit} bytes", "M1")
            return self._read(descriptor, name, size)
        finally:
            os.close(descriptor)

    def read_exactly(self, name: str, size: int) -> bytes:
        """One of the four files, of a size that core.json states."""
        descriptor = self._open(self._root, name)
        try:
            return self._read(descriptor, name, size)
        finally:
            os.close(descriptor)

    def read_blob(self, digest: str, size: int) -> bytes:
        descriptor = self.open_blob(digest, size)
        try:
            return self._read(descriptor, f"{BLOBS}/{digest}", size)
        finally:
            os.close(descriptor)

    def open_blob(self, digest: str, size: int) -> int:
        """A read-only descriptor; the caller closes it."""
        descriptor = self._open(self._blobs, digest, f"{BLOBS}/")
        found = os.fstat(descriptor).st_size
        if found != size:
            os.close(descriptor)
            self._length(f"{BLOBS}/{digest}", found, size)
        return descriptor

    def _open(self, folder: int, name: str, below: str = "") -> int:
        if folder < 0:
            raise UsageError(
                f"opening {self.path / below / name}", found="a core that was closed", required="one that is open",
                hint="verify it again, or load it before it is closed or its `with` ends",
            )  # fmt: skip
        self._kind(folder, name, "a regular file", below)  # before open, which can wake a device
        try:
            descriptor = os.open(name, _FILE, dir_fd=folder)
        except OSError as error:
            raise self._failure(below + name, error) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise self._wrong_kind(below + name, "a file that was exchanged", "a regular file")
        return descriptor

    def _read(self, descriptor: int, name: str, size: int) -> bytes:
        """All of a file, which must end after ``size`` bytes. Most come in one piece and are not copied."""
        pieces, read = [], 0
        try:
            while read <= size:
                piece = os.read(descriptor, min(size + 1 - read, 1 << 28))
                if not piece:
                    break
                pieces.append(piece)
                read += len(piece)
        except OSError as error:
            raise self._failure(name, error) from error
        self._length(name, read, size)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _list(self, folder: int, name: str) -> list[str]:
        try:
            return os.listdir(folder)
        except OSError as error:
            raise self._failure(name, error) from error

    def _compare(self, found: Iterable[str], wanted: Iterable[str], below: str) -> None:
        names, needed = set(found), set(wanted)
        doing = f"comparing the files of {self.path} with what the core names"
        if needed - names:
            missing = sorted(needed - names)
            raise MissingFileError(
                doing, found=f"no {below}{missing[0]} ({len(missing)} missing)", required="every file", hint=_FETCH
            )
        if names - needed:
            extra = sorted(names - needed)
            raise ExtraFileError(
                doing,
                found=f"{below}{extra[0]!r} ({len(extra)} more than the core names)",
                required="no other file, hidden or not",
                hint="keep other files outside the core's folder; if you did not put it there, fetch the core again",
            )

    def _kind(self, folder: int, name: str, required: str, below: str = "") -> os.stat_result:
        try:
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            raise self._failure(below + name, error) from error
        if not (stat.S_ISDIR if required == "a folder" else stat.S_ISREG)(found.st_mode):
            raise self._wrong_kind(below + name, stat.filemode(found.st_mode), required)
        return found

    def _no_core(self, names: Iterable[str]) -> MissingFileError:
        """The error for a folder without any file of a core; it may hold cores."""
        finished = (name for name in sorted(names) if not name.startswith("."))
        cores = [name for name in finished if os.path.isfile(self.path / name / CORE_JSON)]
        found, hint = "no file of a core in it", _CHECK
        if cores:
            more = f" and {len(cores) - SHOWN} more" if len(cores) > SHOWN else ""
            found = f"a folder that holds the cores {', '.join(cores[:SHOWN])}{more}"
            hint = f"give one of them: {self.path / cores[0]}"
        return MissingFileError(f"opening {self.path}", found=found, required=_CORE, hint=hint)

    def _length(self, name: str, found: int, size: int) -> None:
        if found != size:
            raise TamperedError(
                f"reading {self.path / name}", found=f"{found} bytes", required=f"{size} bytes (M12)", hint=_FETCH
            )

    def _wrong_kind(self, name: str, found: str, required: str) -> FileKindError:
        return FileKindError(
            f"opening {self.path / name}", found=found, required=f"{required}, no link (M11)", hint=_FETCH
        )

    def _failure(self, name: str, error: OSError) -> MissingFileError | FileKindError | StorageError:
        """What an operating-system error on a file of the core means."""
        if error.errno == errno.ENOENT:
            return MissingFileError(
                f"opening {self.path / name}", found="no such file", required="a whole core", hint=_FETCH
            )
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO}:
            return self._wrong_kind(name, str(error.strerror), "a file or folder")
        return StorageError(
            f"reading {self.path / name}",
            found=f"{error.strerror}",
            required="a file system that can be read",
            hint="see the system's log; check permissions",
        )
