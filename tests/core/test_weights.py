"""The weights: every byte is covered by chunk and file digests, with every cap, and beyond 32 bits."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import independent_reader
from heliograph.core.folder import CoreFolder
from heliograph.core.format import CHUNK_BYTES, MIB
from heliograph.core.layout import chunk_count
from heliograph.core.manifest import Slice, Weights
from heliograph.core.policy import Policy
from heliograph.core.slices import chunks
from heliograph.core.verify import VerifiedCore, verify, verify_weights
from heliograph.core.weights import WeightFiles
from heliograph.core.write import DraftWriter
from heliograph.errors import StorageError, TamperedError
from tiny_core import TinyCore, digest, tiny_core, write_files

GIB = 1 << 30


def opened(parts: TinyCore, folder: Path) -> VerifiedCore:
    return verify(parts.write(folder), Policy.only(parts.key.public_bytes))


def image_of(verified: VerifiedCore) -> bytes:
    buffer = memoryview(bytearray(CHUNK_BYTES))
    return b"".join(
        bytes(buffer[: verified.read_chunk(chunk, buffer)]) for chunk in range(chunk_count(verified.core.weights.size))
    )


@pytest.mark.parametrize("cap", [MIB, 3 * MIB, 64 * MIB, 64 * GIB])
@pytest.mark.parametrize("size", [8 << 10, 4 * MIB, 5 * MIB + 777])
def test_weights_are_read_back_whole_with_every_cap(tmp_path: Path, cap: int, size: int) -> None:
    """M43, M46, R15: also a tensor larger than the cap, since the small core's largest tensor is most of its image."""
    parts = tiny_core(weight_bytes=size, cap=cap)
    done: list[int] = []
    with opened(parts, tmp_path) as verified:
        assert image_of(verified) == parts.image
        verify_weights(verified, done.append)
    assert done == sorted(done)
    assert done[-1] == size
    assert max(tensor.size for tensor in parts.core.weights.tensors) > min(cap, size // 2)
    assert all(part.size <= cap for part in parts.core.weights.slices)


@pytest.mark.parametrize("cap", [MIB, 2 * MIB, 64 * MIB])
def test_a_flipped_weight_byte_is_refused(tmp_path: Path, cap: int) -> None:
    """M13, M46: first and last bytes of every slice, and some in between; by both readers."""
    parts = tiny_core(weight_bytes=5 * MIB + 777, cap=cap)
    generator = random.Random(7)
    with opened(parts, tmp_path) as verified:
        folder = tmp_path / parts.name
        for part in parts.core.weights.slices:
            for at in (0, part.size - 1, generator.randrange(part.size)):
                with (folder / "blobs" / part.blob).open("r+b") as file:
                    file.seek(at)
                    old = file.read(1)
                    file.seek(at)
                    file.write(bytes([old[0] ^ 1 << generator.randrange(8)]))
                with pytest.raises(TamperedError):
                    verify_weights(verified)
                with pytest.raises(TamperedError):
                    image_of(verified)
                with pytest.raises(independent_reader.Refused):
                    independent_reader.read(folder, [parts.key.public_bytes])
                with (folder / "blobs" / part.blob).open("r+b") as file:
                    file.seek(at)
                    file.write(old)
        verify_weights(verified)


def test_slices_that_are_exchanged_are_refused(tmp_path: Path) -> None:
    """M46: each file is whole and signed, but not at its place."""
    parts = tiny_core(weight_bytes=3 * MIB)
    first, second, third = parts.core.weights.slices
    moved = (
        Slice(offset=0, size=MIB, blob=second.blob),
        Slice(offset=MIB, size=MIB, blob=first.blob),
        third,
    )
    exchanged = parts.with_core(
        weights=Weights(cap=MIB, size=3 * MIB, slices=moved, tensors=parts.core.weights.tensors)
    )
    with opened(exchanged, tmp_path) as verified, pytest.raises(TamperedError) as error:
        verify_weights(verified)
    assert "M46" in error.value.required
    with opened(parts, tmp_path / "twin") as verified:
        verify_weights(verified)


def test_a_file_whose_name_is_not_its_digest_is_refused(tmp_path: Path) -> None:
    """M13: chunk digests alone would accept it, and the store would give it to other cores."""
    parts = tiny_core(weight_bytes=64 << 10)
    (part,) = parts.core.weights.slices
    false = digest(b"another name")
    weights = Weights(
        cap=MIB,
        size=part.size,
        slices=(Slice(offset=0, size=part.size, blob=false),),
        tensors=parts.core.weights.tensors,
    )
    named = parts.with_core(weights=weights)
    named.blobs = {(false if name == part.blob else name): data for name, data in parts.blobs.items()}
    with opened(named, tmp_path) as verified:
        assert image_of(verified) == parts.image
        with pytest.raises(TamperedError) as error:
            verify_weights(verified)
    assert "M13" in error.value.required
    with pytest.raises(independent_reader.Refused) as other:
        independent_reader.read(tmp_path / parts.name, [parts.key.public_bytes])
    assert other.value.rule == "M13"


@pytest.mark.parametrize("cut", [1, MIB // 2, MIB])
def test_a_slice_that_is_cut_short_while_it_is_used_is_refused(tmp_path: Path, cut: int) -> None:
    """M12: the file was whole when the core was opened (D1, D14)."""
    parts = tiny_core(weight_bytes=2 * MIB, cap=MIB)
    with opened(parts, tmp_path) as verified:
        verified.open_weights(1)
        os.truncate(tmp_path / parts.name / "blobs" / parts.core.weights.slices[1].blob, MIB - cut)
        with pytest.raises(TamperedError):
            image_of(verified)
    with opened(parts, tmp_path / "twin") as verified:
        assert image_of(verified) == parts.image


@pytest.mark.parametrize("size", [0, 1, MIB - 1, MIB + 1])
def test_a_slice_of_another_length_is_refused_when_the_core_is_opened(tmp_path: Path, size: int) -> None:
    """M12 (D1)"""
    parts = tiny_core(weight_bytes=2 * MIB, cap=MIB)
    path = parts.write(tmp_path)
    policy = Policy.only(parts.key.public_bytes)
    verify(path, policy).close()
    os.truncate(path / "blobs" / parts.core.weights.slices[0].blob, size)
    with pytest.raises(TamperedError) as error:
        verify(path, policy)
    assert str(size) in error.value.found
    assert str(MIB) in error.value.required


def test_an_exchanged_file_is_either_the_old_one_or_refused(tmp_path: Path) -> None:
    """M11 (H1, D14): a descriptor that is open keeps its file; one that is opened later is checked like any other."""
    parts = tiny_core(weight_bytes=2 * MIB, cap=MIB)
    with opened(parts, tmp_path) as verified:
        blobs = tmp_path / parts.name / "blobs"
        verified.open_weights(0)
        for part in parts.core.weights.slices:
            times = (blobs / part.blob).stat()
            (tmp_path / "new").write_bytes(bytes(part.size))
            os.utime(tmp_path / "new", ns=(times.st_atime_ns, times.st_mtime_ns))
            (tmp_path / "new").rename(blobs / part.blob)
        buffer = memoryview(bytearray(CHUNK_BYTES))
        with pytest.raises(TamperedError):
            verified.read_chunk(0, buffer)
        assert buffer[:MIB] == parts.image[:MIB]  # the slice that was open
        assert buffer[MIB : 2 * MIB] == bytes(MIB)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "nothing"])
def test_a_slice_that_becomes_something_else_is_refused(tmp_path: Path, kind: str) -> None:
    """M10, M11"""
    parts = tiny_core(weight_bytes=64 << 10)
    with opened(parts, tmp_path) as verified:
        place = tmp_path / parts.name / "blobs" / parts.core.weights.slices[0].blob
        kept = place.rename(tmp_path / "kept")
        if kind == "link":
            place.symlink_to(kept)
        elif kind == "folder":
            place.mkdir()
        elif kind == "pipe":
            os.mkfifo(place)
        with pytest.raises(TamperedError):
            verify_weights(verified)


def test_a_file_system_error_is_no_tampering(tmp_path: Path) -> None:
    parts = tiny_core(weight_bytes=64 << 10)
    with opened(parts, tmp_path) as verified:
        descriptor = verified.open_weights(0)
        os.dup2(os.open(tmp_path, os.O_RDONLY), descriptor)  # reading a folder is EISDIR
        with pytest.raises(StorageError):
            verify_weights(verified)


def test_equal_slices_share_a_descriptor(tmp_path: Path) -> None:
    """M11: each file is opened once, also when the core names it twice."""
    image = bytes(2 * MIB)
    folder = write_files(tmp_path / "core", {f"blobs/{digest(image[:MIB])}": image[:MIB]})
    slices = tuple(Slice(offset=at, size=MIB, blob=digest(image[:MIB])) for at in (0, MIB))
    opened_folder = CoreFolder(folder)
    opened_folder._blobs = os.open(folder / "blobs", os.O_RDONLY)
    files = WeightFiles(opened_folder, Weights(cap=MIB, size=2 * MIB, slices=slices, tensors=()), memoryview(b""))
    assert files.open(0) == files.open(1)
    files.close()
    opened_folder.close()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6 * MIB), max_size=6))
def test_the_image_is_the_same_however_it_is_handed_over(sizes: list[int]) -> None:
    """M46"""
    data = random.Random(3).randbytes(sum(sizes))
    pieces = []
    at = 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    cut = [bytes(chunk) for chunk in chunks(pieces)]
    assert b"".join(cut) == data
    assert all(len(chunk) == CHUNK_BYTES for chunk in cut[:-1])


def far_image(size: int, marks: dict[int, bytes]) -> Iterator[bytes]:
    """Zeros with marks at some offsets, in pieces of 16 MiB."""
    piece = 16 * MIB
    for at in range(0, size, piece):
        own = {offset - at: mark for offset, mark in marks.items() if at <= offset < at + piece}
        if not own:
            yield bytes(min(piece, size - at))
            continue
        data = bytearray(min(piece, size - at))
        for offset, mark in own.items():
            data[offset : offset + len(mark)] = mark
        yield bytes(data)


@pytest.mark.parametrize("cap", [64 * MIB, 64 * GIB])
def test_weights_beyond_5_gib_are_exact_and_sparse(tmp_path: Path, cap: int) -> None:
    """R15, M46: offsets beyond 32 bits; zeros take no room on the disk."""
    size = 5 * GIB + 3 * MIB + 5
    marks = {12: b"first", (1 << 32) - 20: b"below 4 GiB", 1 << 32: b"above", size - 4: b"last"}
    with DraftWriter(tmp_path) as writer:
        slices, digests = writer.put_weights(far_image(size, marks), cap)
        assert [part.offset for part in slices] == list(range(0, size, cap))
        assert sum(part.size for part in slices) == size
        assert len(digests) == chunk_count(size)
        assert len(set(digests)) == 5  # zeros, three marked ones, the last and shorter one
        used = sum(file.stat().st_blocks * 512 for file in (writer.path / "blobs").iterdir())
        assert used < 4 * MIB
        files = CoreFolder(writer.path)
        files._blobs = os.open(writer.path / "blobs", os.O_RDONLY)
        weights = WeightFiles(
            files, Weights(cap=cap, size=size, slices=slices, tensors=()), memoryview(b"".join(digests))
        )
        buffer = memoryview(bytearray(CHUNK_BYTES))
        for offset, mark in marks.items():
            found = b""
            for chunk in range(offset // CHUNK_BYTES, (offset + len(mark) - 1) // CHUNK_BYTES + 1):
                found += bytes(buffer[: weights.read_chunk(chunk, buffer)])
            at = offset % CHUNK_BYTES
            assert found[at : at + len(mark)] == mark
        weights.close()
        files.close()


def test_a_core_without_weights_has_nothing_to_read(tmp_path: Path) -> None:
    """M44, M46"""
    with opened(tiny_core(weight_bytes=0), tmp_path) as verified:
        assert len(verified.columns["weights.chunks"]) == 0
        verify_weights(verified)
    path = tiny_core(weight_bytes=0).publish(tmp_path / "cores")
    assert path.is_dir()
