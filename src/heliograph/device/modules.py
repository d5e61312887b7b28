"""A kernel image becomes a module: sealed so that nobody can change it, hashed as it will be loaded, then loaded."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from blake3 import blake3

from heliograph._native import Device, Module, SealedImage
from heliograph.errors import ModuleError, TamperedError

_READ_BYTES = 1 << 20
_SPARE_DESCRIPTORS = 64  # for what a process opens besides modules: sockets, weight files, log


def load_module(device: Device, digest: str, image: bytes | memoryview) -> Module:
    """Loads a kernel image whose BLAKE3 must be ``digest`` (64 hexadecimal digits).

    The digest is taken over the sealed image, so what was compared is what is loaded. An image that is loaded already
    is the same module. TamperedError when the digest differs, ModuleError when the image cannot be loaded.
    """
    sealed = _seal(digest, image)
    found = _digest(sealed)
    if found != digest:
        raise TamperedError(
            "loading a kernel image",
            found=f"bytes with digest {found}",
            required=f"digest {digest}",
            hint="the core is damaged or was changed: fetch it again",
        )
    return device.load_module(sealed)


def raise_descriptor_limit(count: int) -> None:
    """Makes room for ``count`` more modules: each keeps a descriptor open. ModuleError if that is forbidden."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _open_descriptors(soft) + count + _SPARE_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise ModuleError(
            f"making room for {count} modules",
            found=f"a hard limit of {hard} open files",
            required=f"{needed}: one for each module, and those in use",
            hint="raise the limit (ulimit -Hn, LimitNOFILE= in systemd, --ulimit nofile= in Docker)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _open_descriptors(limit: int) -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:  # looking takes a descriptor as well, and there is none left
        return limit


def _digest(sealed: SealedImage) -> str:
    hasher = blake3()
    for at in range(0, sealed.size, _READ_BYTES):
        hasher.update(os.pread(sealed.fileno(), _READ_BYTES, at))
    return hasher.hexdigest()


def _seal(digest: str, image: bytes | memoryview) -> SealedImage:
    """Memory first; where a machine's policy refuses that, an unnamed file; each refusal is kept for the error."""
    refusals: list[str] = []
    for place, folder in _places():
        try:
            sealed = SealedImage(digest, image, place, folder)
        except ModuleError as error:
            refusals.append(f"{place}: {error.found}")
            continue
        refusal = sealed.refusal()
        if not refusal:
            return sealed
        refusals.append(f"{place}: {refusal}")
    raise ModuleError(
        "finding a place for kernel code",
        found="; ".join(refusals),
        required="memfd_create, or a runtime or cache folder on a file system that may hold code",
        hint="allow memfd_create, or mount XDG_RUNTIME_DIR or HELIOGRAPH_CACHE without noexec; /proc must be mounted; "
        "if too many files are open, raise ulimit -n",
    )


def _places() -> Iterator[tuple[str, str]]:
    yield "memory", ""
    yield "runtime", os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    base = os.environ.get("HELIOGRAPH_CACHE")
    cache = Path(base) if base else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "heliograph"
    with contextlib.suppress(OSError):  # the folder's absence is the refusal that is reported
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    yield "cache", str(cache)
