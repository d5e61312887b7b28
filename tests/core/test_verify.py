"""The way from a folder to a VerifiedCore: every byte counts, one order, nothing opened twice or elsewhere."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

import independent_reader
from heliograph.cli.inspect import describe
from heliograph.core.format import BLOBS, CORE_JSON, GRAPHS, PROVENANCE_JSON, SIGNATURE
from heliograph.core.manifest import Graph
from heliograph.core.policy import Policy
from heliograph.core.sign import scratch_key
from heliograph.core.verify import VerifiedCore, verify, verify_weights
from heliograph.errors import (
    CoreError,
    FileKindError,
    FormatError,
    HeliographError,
    MissingFileError,
    SignatureError,
    StorageError,
    TamperedError,
    UntrustedError,
)
from tiny_core import NAME, TinyCore, digest, tiny_core
from tiny_cuda_core import tiny_cuda_core


def test_a_verified_core_holds_what_was_written(tmp_path: Path) -> None:
    parts = tiny_core(text=True)
    with verify(parts.write(tmp_path), Policy.only(parts.key.public_bytes)) as verified:
        assert verified.name == NAME
        assert verified.core.buffers == parts.core.buffers
        assert verified.provenance == parts.provenance
        assert verified.signers == (parts.key.key_id,)
        assert not verified.draft
        text = parts.core.text
        assert text is not None
        for name in (text.tokenizer, text.chat_template, parts.core.modules[0].blob):
            assert verified.blob(name) == parts.blobs[name]
        with pytest.raises(KeyError):
            verified.blob(parts.core.weights.slices[0].blob)


def test_a_path_may_be_a_text(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    with verify(str(tiny.write(tmp_path)), policy) as verified:
        assert verified.name == NAME


@pytest.mark.parametrize("make", [tiny_core, tiny_cuda_core])
def test_both_readers_describe_a_core_alike(tmp_path: Path, make: Callable[..., TinyCore]) -> None:
    parts = make(text=True)
    path = parts.write(tmp_path)
    with verify(path, Policy.only(parts.key.public_bytes)) as verified:
        described = json.loads(json.dumps(describe(verified)))
    assert independent_reader.read(path, [parts.key.public_bytes]) == described


def independent_error(path: Path, key: bytes) -> str:
    try:
        independent_reader.read(path, [key])
    except independent_reader.Refused as error:
        return error.rule
    return ""


@pytest.mark.parametrize("name", [CORE_JSON, PROVENANCE_JSON, GRAPHS])
def test_every_flipped_byte_of_a_signed_file_is_refused(
    tiny: TinyCore, policy: Policy, tmp_path: Path, name: str
) -> None:
    """M13, M24"""
    path = tiny.write(tmp_path)
    data = (path / name).read_bytes()
    expected = TamperedError if name == GRAPHS else SignatureError
    generator = random.Random(name)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << generator.randrange(8)
        (path / name).write_bytes(flipped)
        with pytest.raises(expected):
            verify(path, policy)
    (path / name).write_bytes(data)
    verify(path, policy).close()


def test_every_flipped_byte_of_the_signature_is_refused_or_is_a_hint(
    tiny: TinyCore, policy: Policy, tmp_path: Path
) -> None:
    """M20, M21, M22: by both readers; a key id decides nothing, so a flip in it changes nothing."""
    path = tiny.write(tmp_path)
    data = (path / SIGNATURE).read_bytes()
    hint = data.index(tiny.key.key_id.encode())
    accepted = []
    generator = random.Random(5)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << generator.randrange(8)
        (path / SIGNATURE).write_bytes(flipped)
        try:
            with verify(path, policy) as verified:
                assert verified.signers == (tiny.key.key_id,)
                accepted.append(at)
        except CoreError:
            pass
        if at % 29 == 0:
            assert (independent_error(path, tiny.key.public_bytes) == "") == (accepted[-1:] == [at])
    assert accepted
    assert set(accepted) <= set(range(hint, hint + 64))


def test_every_flipped_byte_of_a_blob_in_memory_is_refused(tmp_path: Path) -> None:
    """M13: kernel image, initial content, self-test inputs, tokenizer; sampled in the long ones."""
    parts = tiny_core(weight_bytes=64 << 10, text=True)
    path = parts.write(tmp_path)
    policy = Policy.only(parts.key.public_bytes)
    weights = {part.blob for part in parts.core.weights.slices}
    generator = random.Random(6)
    for name in parts.blobs.keys() - weights:
        data = parts.blobs[name]
        for at in range(len(data)) if len(data) < 100 else generator.sample(range(len(data)), 60):
            flipped = bytearray(data)
            flipped[at] ^= 1 << generator.randrange(8)
            (path / BLOBS / name).write_bytes(flipped)
            with pytest.raises(TamperedError) as error:
                verify(path, policy)
            assert "M13" in error.value.required
        (path / BLOBS / name).write_bytes(data)
    verify(path, policy).close()


@pytest.mark.parametrize("name", [CORE_JSON, PROVENANCE_JSON, SIGNATURE, GRAPHS])
@pytest.mark.parametrize("change", ["empty", "one byte less", "one byte more", "half", "zeros"])
def test_a_file_of_another_length_is_refused(
    tiny: TinyCore, policy: Policy, tmp_path: Path, name: str, change: str
) -> None:
    """M12, M24"""
    path = tiny.write(tmp_path)
    data = (path / name).read_bytes()
    changed = {
        "empty": b"",
        "one byte less": data[:-1],
        "one byte more": data + b"\n",
        "half": data[: len(data) // 2],
        "zeros": bytes(len(data)),
    }[change]
    (path / name).write_bytes(changed)
    with pytest.raises((TamperedError, FormatError)):
        verify(path, policy)
    assert independent_error(path, tiny.key.public_bytes) != ""


@pytest.mark.parametrize("name", [CORE_JSON, PROVENANCE_JSON, SIGNATURE, GRAPHS])
def test_a_file_of_another_core_is_refused(tiny: TinyCore, policy: Policy, tmp_path: Path, name: str) -> None:
    """M13, M24: both cores are well signed by the same key."""
    other = tiny.with_core(model="other", graphs=(Graph(name="step/1", flags=0, nodes=5, edges=3), tiny.core.graphs[1]))
    other = other.with_graph(0, lambda graph: replace(graph, edges=graph.edges[:3]))
    other.provenance = msgspec.structs.replace(tiny.provenance, seed=9)
    path, source = tiny.write(tmp_path / "a"), other.write(tmp_path / "b")
    verify(source, policy).close()
    (path / name).write_bytes((source / name).read_bytes())
    with pytest.raises(TamperedError):
        verify(path, policy)
    assert independent_error(path, tiny.key.public_bytes) in {"M12", "M13", "M24"}


@contextmanager
def opened_files() -> Iterator[list[str]]:
    """The paths given to open() meanwhile, by this thread."""
    seen: list[str] = []
    thread = threading.get_ident()
    active = [True]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and active and threading.get_ident() == thread:
            seen.append(os.fspath(args[0]) if not isinstance(args[0], int) else str(args[0]))

    sys.addaudithook(hook)
    try:
        yield seen
    finally:
        active.clear()


def test_every_file_is_opened_once_and_no_other(tmp_path: Path) -> None:
    """M11 (H1, H5)"""
    parts = tiny_core(weight_bytes=3 << 20, text=True)
    path = parts.write(tmp_path)
    policy = Policy.only(parts.key.public_bytes)
    with opened_files() as seen, verify(path, policy) as verified:
        for number in range(3):
            verified.open_weights(number)
        verify_weights(verified)
    names = [CORE_JSON, PROVENANCE_JSON, SIGNATURE, GRAPHS, BLOBS, *(blob.digest for blob in verified.core.blobs)]
    mine = [Path(name).name for name in seen if not name.startswith(("/proc", "/sys", "/usr"))]
    assert sorted(mine) == sorted([path.name, *names])


def test_what_was_checked_is_what_is_used_when_files_are_exchanged_afterwards(
    tiny: TinyCore, policy: Policy, tmp_path: Path
) -> None:
    """M11 (H1)"""
    path = tiny.write(tmp_path)
    with verify(path, policy) as verified:
        image = verified.core.modules[0].blob
        for file in [*(path / BLOBS).iterdir(), path / GRAPHS, path / CORE_JSON]:
            file.write_bytes(b"exchanged")
        assert digest(verified.blob(image)) == image
        assert bytes(verified.columns["node.kind"]) == bytes([2, 1, 1, 0, 5] * 2)
        assert verified.core.model == "tiny"


def test_an_exchanged_folder_changes_nothing(tmp_path: Path) -> None:
    """M11 (H1, D14): files are opened below the folder that was checked, wherever its name leads to now."""
    parts = tiny_core(weight_bytes=64 << 10)
    path = parts.write(tmp_path)
    link = tmp_path / "latest"
    link.symlink_to(path)
    with verify(link, Policy.only(parts.key.public_bytes)) as verified:
        path.rename(tmp_path / "away")
        link.unlink()
        (tmp_path / "evil" / BLOBS).mkdir(parents=True)
        (tmp_path / "evil" / BLOBS / parts.core.weights.slices[0].blob).write_bytes(bytes(64 << 10))
        link.symlink_to(tmp_path / "evil")
        verify_weights(verified)


def test_a_core_on_a_read_only_disk_is_read_and_not_touched(tmp_path: Path, mount: Callable[[str, Path], None]) -> None:
    """H10"""
    disk = tmp_path / "disk"
    mount("size=4m", disk)
    parts = tiny_core(weight_bytes=64 << 10)
    path = parts.write(disk)
    assert os.system(f"mount -o remount,ro {disk}") == 0
    with verify(path, Policy.only(parts.key.public_bytes)) as verified:
        verify_weights(verified)


def test_the_order_of_verification_is_fixed(tmp_path: Path) -> None:
    """Section 8: each step is broken together with all later ones, and the earliest is what is reported."""
    stranger = scratch_key()
    parts = tiny_core(weight_bytes=64 << 10)
    policy = Policy.only(parts.key.public_bytes)
    steps: list[tuple[type[HeliographError], Callable[[Path], object]]] = [
        (MissingFileError, lambda path: (path / PROVENANCE_JSON).unlink()),
        (FormatError, lambda path: (path / SIGNATURE).write_bytes(b"{}")),
        (UntrustedError, lambda path: (path / SIGNATURE).write_bytes(signature_by(parts, stranger))),
        (SignatureError, lambda path: (path / CORE_JSON).write_bytes(b"{}")),
        (SignatureError, lambda path: (path / PROVENANCE_JSON).write_bytes(b"{}")),
        (TamperedError, lambda path: flip(path / GRAPHS)),
        (TamperedError, lambda path: flip(path / BLOBS / parts.core.modules[0].blob)),
    ]
    for number, (expected, _) in enumerate(steps):
        path = parts.write(tmp_path / str(number))
        for _, break_it in reversed(steps[number:]):
            break_it(path)
        with pytest.raises(expected) as error:
            verify(path, policy)
        assert type(error.value) is expected


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def signature_by(parts: TinyCore, key: Any) -> bytes:
    other = TinyCore(parts.core, parts.provenance, parts.graphs, parts.blobs, parts.image, key)
    return other.files()[SIGNATURE]


def test_provenance_of_another_format_is_refused(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M90"""
    text = tiny.files()[PROVENANCE_JSON].replace(b'"format":0', b'"format":1')
    path = tiny.write(tmp_path, provenance=text)
    with pytest.raises(FormatError) as error:
        verify(path, policy)
    assert error.value.rule == independent_error(path, tiny.key.public_bytes) == "M90"
    verify(tiny.write(tmp_path / "twin"), policy).close()


@pytest.mark.parametrize("kind", ["nothing", "file", "below a file", "empty folder", "other folder"])
def test_what_is_no_core_is_refused_and_the_path_is_doubted(policy: Policy, tmp_path: Path, kind: str) -> None:
    """M10, M11"""
    path = tmp_path / "core"
    expected: type[HeliographError] = MissingFileError
    if "file" in kind:
        path.write_text("core")
        expected = FileKindError
        path = path / "core" if kind == "below a file" else path
    elif "folder" in kind:
        path.mkdir()
    if kind == "other folder":
        (path / "model").mkdir()
        (path / "README.md").write_text("models")
    with pytest.raises(expected) as error:
        verify(path, policy)
    assert str(path) in str(error.value)
    assert "check the path" in error.value.hint


def test_a_folder_of_cores_is_refused_and_names_them(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M10"""
    for name in ("one", "two", ".draft"):
        tiny.write(tmp_path).rename(tmp_path / name)
    (tmp_path / "notes").write_text("")
    with pytest.raises(MissingFileError) as error:
        verify(tmp_path, policy)
    assert "cores one, two" in error.value.found
    assert str(tmp_path / "one") in error.value.hint


def test_a_core_that_lacks_files_is_to_be_fetched_again(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M10"""
    path = tiny.write(tmp_path)
    (path / CORE_JSON).unlink()
    with pytest.raises(MissingFileError) as error:
        verify(path, policy)
    assert CORE_JSON in error.value.found
    assert "fetch the core again" in error.value.hint


def test_a_folder_that_is_being_removed_is_not_opened(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    path = tiny.write(tmp_path)
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(StorageError):
        verify(path, policy)
    os.close(descriptor)
    with verify(path, policy):
        descriptor = os.open(path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):  # a cleaner that asks for the lock sees that the core is in use
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(descriptor)


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_no_descriptor_is_left_open(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    path = tiny.write(tmp_path)
    before = descriptors()
    verified = verify(path, policy)
    verified.open_weights(0)
    assert descriptors() > before
    verified.close()
    verified.close()
    assert descriptors() == before
    for name in (CORE_JSON, GRAPHS, SIGNATURE):
        kept = (path / name).read_bytes()
        (path / name).write_bytes(b"x")
        with pytest.raises(CoreError):
            verify(path, policy)
        (path / name).write_bytes(kept)
        assert descriptors() == before


def test_nothing_but_verify_makes_a_verified_core() -> None:
    """A VerifiedCore is a proof: it cannot be made of parts that were not checked."""
    with pytest.raises(TypeError):
        VerifiedCore()  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        VerifiedCore(object())  # type: ignore[arg-type]
