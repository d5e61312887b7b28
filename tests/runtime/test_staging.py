"""Weights: every byte lands at its place, checked where it lies; whatever goes wrong stops all threads."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from blake3 import blake3

from heliograph.core.format import CHUNK_BYTES, MIB
from heliograph.core.layout import chunk_pieces, cuts
from heliograph.core.manifest import Slice, Weights
from heliograph.errors import TamperedError
from heliograph.runtime.staging import InPlace, Staging, staging_threads


class Files:
    """Weight files as a verified core gives them: descriptors opened once, chunks checked in place."""

    def __init__(self, folder: Path, image: bytes, cap: int) -> None:
        self.slices = []
        self.opened: dict[int, int] = {}
        self._lock = threading.Lock()
        self._folder = folder
        self._digests = [blake3(image[at : at + CHUNK_BYTES]).digest() for at in range(0, len(image), CHUNK_BYTES)]
        for number, (offset, size) in enumerate(cuts(len(image), cap)):
            (folder / str(number)).write_bytes(image[offset : offset + size])
            self.slices.append(Slice(offset=offset, size=size, blob="0" * 64))
        self.weights = Weights(cap=cap, size=len(image), slices=tuple(self.slices), tensors=())

    def open_weights(self, slice: int) -> int:
        with self._lock:
            if slice not in self.opened:
                self.opened[slice] = os.open(self._folder / str(slice), os.O_RDONLY)
            return self.opened[slice]

    def read_chunk(self, chunk: int, into: memoryview) -> int:
        done = 0
        for piece in chunk_pieces(self.slices, chunk, self.weights.size):
            done += os.preadv(self.open_weights(piece.slice), [into[done : done + piece.size]], piece.at)
        if blake3(into).digest() != self._digests[chunk]:
            raise TamperedError("reading", found="other bytes", required="these", hint="")
        return done

    def close(self) -> None:
        for descriptor in self.opened.values():
            os.close(descriptor)


IMAGE = bytes(range(251)) * (11 * MIB // 251)


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("cap", [MIB, 2 * MIB, 6 * MIB, 64 << 30])
@pytest.mark.parametrize("check", [True, False])
def test_every_byte_lands_at_its_place(tmp_path: Path, threads: int, cap: int, check: bool) -> None:
    files = Files(tmp_path, IMAGE, cap)
    target = bytearray(len(IMAGE) + 100)
    with memoryview(target)[: len(IMAGE)] as view:
        staging = Staging(files, files.weights, InPlace(view), threads=threads, check=check)
        staging.start()
        done = staging.finish()
    assert target[: len(IMAGE)] == IMAGE
    assert not any(target[len(IMAGE) :])
    assert done.bytes_read == len(IMAGE)
    assert done.threads == min(threads, 3)
    files.close()


@pytest.mark.parametrize("at", [0, 5 * MIB, len(IMAGE) - 1])
def test_one_flipped_bit_is_refused(tmp_path: Path, at: int) -> None:
    files = Files(tmp_path, IMAGE, 2 * MIB)
    path = tmp_path / str(at // (2 * MIB))
    data = bytearray(path.read_bytes())
    data[at % (2 * MIB)] ^= 1
    path.write_bytes(data)
    staging = Staging(files, files.weights, InPlace(memoryview(bytearray(len(IMAGE)))), threads=2)
    staging.start()
    with pytest.raises(TamperedError):
        staging.finish()
    files.close()


def test_a_file_cut_short_is_refused_also_without_digests(tmp_path: Path) -> None:
    files = Files(tmp_path, IMAGE, 64 << 30)
    os.truncate(tmp_path / "0", 6 * MIB)
    staging = Staging(files, files.weights, InPlace(memoryview(bytearray(len(IMAGE)))), check=False)
    staging.start()
    with pytest.raises(TamperedError):
        staging.finish()
    files.close()


def test_the_failure_of_one_thread_stops_all(tmp_path: Path) -> None:
    files = Files(tmp_path, bytes(200 * MIB), 64 << 30)
    asked: list[int] = []

    class Failing:
        def open_weights(self, slice: int) -> int:
            return files.open_weights(slice)

        def read_chunk(self, chunk: int, into: memoryview) -> int:
            asked.append(chunk)
            raise OSError(5, "input/output error")

    staging = Staging(Failing(), files.weights, InPlace(memoryview(bytearray(200 * MIB))), threads=2)
    staging.start()
    with pytest.raises(OSError, match="input/output"):
        staging.finish()
    assert len(asked) <= 2 < 50


def test_abandoning_waits_for_the_threads_and_lets_go_of_the_memory(tmp_path: Path) -> None:
    files = Files(tmp_path, IMAGE, 64 << 30)
    target = bytearray(len(IMAGE))
    staging = Staging(files, files.weights, InPlace(memoryview(target)), threads=2)
    staging.start()
    staging.abandon()
    target.clear()  # BufferError if a thread still held a view
    files.close()


def test_threads_are_as_many_as_processors_and_at_most_eight() -> None:
    assert staging_threads(3) == 3
    assert staging_threads() == min(8, len(os.sched_getaffinity(0)))
