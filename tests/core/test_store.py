"""Cores that share content share files; where they cannot, each keeps its own, and nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.core.format import MIB, STORE
from heliograph.core.policy import Policy
from heliograph.core.store import Store
from heliograph.core.verify import verify, verify_weights
from heliograph.core.write import DraftWriter
from tiny_core import TinyCore, digest, tiny_core


def inodes(path: Path) -> dict[str, int]:
    return {file.name: file.stat().st_ino for file in (path / "blobs").iterdir()}


def test_cores_with_equal_content_share_every_file(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """R15, M94"""
    first, second = (tiny.publish(tmp_path, name) for name in ("first", "second"))
    assert inodes(first) == inodes(second)
    assert all(file.stat().st_nlink == 3 for file in (tmp_path / STORE).iterdir())
    for path in (first, second):
        with verify(path, policy) as verified:
            verify_weights(verified)


def test_cores_with_other_weights_share_the_rest(tmp_path: Path) -> None:
    """R15"""
    one, other = tiny_core(weight_bytes=3 * MIB), tiny_core(weight_bytes=4 * MIB)
    shared = inodes(one.publish(tmp_path, "one")).items() & inodes(other.publish(tmp_path, "other")).items()
    assert len(shared) == len(one.blobs.keys() & other.blobs.keys()) >= 5


def test_thousands_of_files_are_shared(tmp_path: Path, mount: Callable[[str, Path], None]) -> None:
    """R15: 300 slices of weights, which differ in a few bytes, and 3,000 images."""
    mount("size=200m", tmp_path / "disk")
    writers = [DraftWriter(tmp_path / "disk") for _ in range(2)]
    for writer in writers:
        image = (number.to_bytes(8, "little") + bytes(MIB - 8) for number in range(300))
        parts, _ = writer.put_weights(image, MIB)
        assert len({part.blob for part in parts}) == 300
        for number in range(3000):
            writer.put_blob(number.to_bytes(100, "little"))
    assert len(writers[0].blobs()) == 3300
    assert inodes(writers[0].path) == inodes(writers[1].path)
    for writer in writers:
        writer.abandon()
    assert os.listdir(tmp_path / "disk") == []


def test_equal_slices_of_one_core_are_one_file(tmp_path: Path) -> None:
    """R15"""
    with DraftWriter(tmp_path) as writer:
        parts, digests = writer.put_weights([bytes(40 * MIB), b"\1"], MIB)
        assert [part.offset for part in parts] == [number * MIB for number in range(41)]
        assert len(set(digests)) == 2
        assert sorted(os.listdir(writer.path / "blobs")) == sorted({part.blob for part in parts})
        assert len({part.blob for part in parts}) == 2


def test_a_store_on_another_file_system_means_a_copy(
    tiny: TinyCore, policy: Policy, tmp_path: Path, mount: Callable[[str, Path], None]
) -> None:
    """M94"""
    mount("size=8m", tmp_path / STORE)
    first, second = (tiny.publish(tmp_path, name) for name in ("first", "second"))
    assert not set(inodes(first).values()) & set(inodes(second).values())
    for path in (first, second):
        with verify(path, policy) as verified:
            verify_weights(verified)


def test_a_damaged_file_in_the_store_is_not_shared(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M13, M94: content counts, not the name; the store is right again afterwards."""
    tiny.publish(tmp_path, "first")
    for file in list((tmp_path / STORE).iterdir()):
        data = bytearray(file.read_bytes())
        data[0] ^= 1
        file.unlink()
        file.write_bytes(data)
    second = tiny.publish(tmp_path, "second")
    with verify(second, policy) as verified:
        verify_weights(verified)
    assert {file.name: file.stat().st_ino for file in (tmp_path / STORE).iterdir()} == inodes(second)


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "short"])
def test_something_else_in_the_store_is_not_shared(tmp_path: Path, kind: str) -> None:
    """M11"""
    data = b"content"
    name = digest(data)
    (tmp_path / STORE).mkdir()
    place = tmp_path / STORE / name
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(data)
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)
    else:
        place.write_bytes(data[:-1])
    writer = DraftWriter(tmp_path)
    writer.put_blob(data)
    kept = writer.path / "blobs" / name
    assert kept.is_file()
    assert not kept.is_symlink()
    assert kept.read_bytes() == data
    assert kept.stat().st_ino != elsewhere.stat().st_ino
    writer.abandon()
    assert elsewhere.read_bytes() == data


@pytest.mark.parametrize("mode", [0o700, 0o755], ids=oct)
def test_a_store_of_somebody_else_means_a_copy(another_user: Callable[[], None], mode: int) -> None:
    """M94"""
    data = b"content"
    Path(STORE).mkdir(mode)
    stored = Path(STORE, digest(data))
    stored.write_bytes(data)
    another_user()
    with DraftWriter(Path()) as writer:
        assert (writer.path / "blobs" / writer.put_blob(data)).read_bytes() == data
        writer.put_blob(b"other")
    os.seteuid(0)
    assert os.listdir(STORE) == [stored.name]


def churn(folder: Path, seed: int, results: multiprocessing.Queue[bool]) -> None:
    generator = random.Random(seed)
    good = True
    for _ in range(30):
        with DraftWriter(folder) as writer:
            for number in generator.sample(range(4), 3):
                data = bytes([number]) * 1000
                name = writer.put_blob(data)
                good = good and (writer.path / "blobs" / name).read_bytes() == data
    results.put(good)


def test_adding_and_removing_at_once_loses_nothing(tmp_path: Path) -> None:
    """M94: the lock of the store keeps a blob between the look and the link, and the store itself."""
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[bool] = context.Queue()
    processes = [context.Process(target=churn, args=(tmp_path, seed, results)) for seed in range(4)]
    for process in processes:
        process.start()
    assert all(results.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    assert list(tmp_path.iterdir()) == []


def test_releasing_removes_what_nobody_links_to_any_more(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(2):
        file = tmp_path / f"file-{number}"
        file.write_bytes(bytes([number]))
        store.adopt(file, digest(bytes([number])), 1, tmp_path / f"target-{number}")
    (tmp_path / "target-0").unlink()
    store.release([digest(bytes([0])), digest(bytes([1])), digest(b"never there")])
    assert os.listdir(tmp_path / STORE) == [digest(bytes([1]))]
    (tmp_path / "target-1").unlink()
    store.release([digest(bytes([1]))])
    assert os.listdir(tmp_path) == []
    store.release([digest(bytes([1]))])
