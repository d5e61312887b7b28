"""The folder that a draft is written in: made, locked while its writer lives, removed, or renamed into place."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from heliograph.core.format import BLOBS, DRAFT_PREFIX
from heliograph.core.storage import rename_new, storing, sync_folder
from heliograph.core.store import Store


class Workplace:
    """A folder ``.draft-...`` beside the cores. Raises OSError."""

    def __init__(self, cores: Path, store: Store) -> None:
        self._cores = cores
        self._store = store
        self._made = make_folders(cores)
        self._lock = -1
        remove_abandoned(cores, store)
        self.path = self._create()

    def _create(self) -> Path:
        """A free lock would mean that the writer is dead, so somebody may remove the folder before it is locked."""
        while True:
            path = self._cores / f"{DRAFT_PREFIX}{secrets.token_hex(8)}"
            path.mkdir()
            self._lock = lock_folder(path, fcntl.LOCK_SH)
            if self._lock >= 0:
                (path / BLOBS).mkdir()
                return path

    def publish(self, name: str) -> Path:
        """The folder under its final name, durable. FileExistsError if that is taken; StorageError if the name may
        not be durable: the core is there then, and ``remove`` leaves it."""
        target = self._cores / name
        rename_new(self.path, target)
        self._unlock()
        with storing(f"making the name of {target} durable: the core is there, and may be gone after a power cut"):
            sync_folder(self._cores)
        return target

    def remove(self) -> None:
        """Removes the draft, the blobs that only it used, and the folders made for it. Nothing if published."""
        if self._lock < 0:
            return
        remove_draft(self.path, self._store)
        self._unlock()
        for folder in self._made:
            try:
                folder.rmdir()
            except OSError:  # somebody else uses it by now
                break

    def _unlock(self) -> None:
        os.close(self._lock)
        self._lock = -1


def make_folders(folder: Path) -> list[Path]:
    """Makes a folder and those above it; what was made, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def lock_folder(path: Path, how: int) -> int:
    """A descriptor that holds the lock, or -1 if somebody else has it or the folder is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return -1
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return -1


def remove_abandoned(cores: Path, store: Store) -> None:
    """Drafts of dead writers: those whose lock nobody holds. What cannot be removed, or is no folder, stays."""
    for path in cores.glob(f"{DRAFT_PREFIX}*"):
        with suppress(OSError):
            descriptor = lock_folder(path, fcntl.LOCK_EX)
            if descriptor >= 0:
                try:
                    remove_draft(path, store)
                finally:
                    os.close(descriptor)


def remove_draft(path: Path, store: Store) -> None:
    blobs = path / BLOBS
    digests = os.listdir(blobs) if blobs.is_dir() else []
    shutil.rmtree(path)
    store.release(digests)
