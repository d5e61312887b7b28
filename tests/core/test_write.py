"""Publication: whole or not at all, under a name that was free, durable, and nothing left of what failed."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import resource
import signal
import stat
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

import independent_reader
from heliograph.core import storage, write
from heliograph.core.format import DRAFT_PREFIX, MIB, STORE, UNKNOWN_DIGEST
from heliograph.core.manifest import Case, Slice
from heliograph.core.policy import Policy
from heliograph.core.sign import scratch_key
from heliograph.core.storage import NewFile, rename_new, storing
from heliograph.core.verify import verify, verify_weights
from heliograph.core.write import DraftWriter, publish
from heliograph.errors import CoreExistsError, DraftError, FormatError, StorageError, UsageError
from tiny_core import LEVEL, NAME, TinyCore, tiny_core

NOW = datetime(2026, 11, 30, 9, 0, tzinfo=UTC)


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_published_core_is_what_both_readers_accept(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M93"""
    path = tiny.publish(tmp_path)
    with verify(path, policy) as verified:
        verify_weights(verified)
        assert verified.name == path.name == NAME
        described = independent_reader.read(path, [tiny.key.public_bytes])
        assert described["digest"] == verified.digest
    assert [name for name in os.listdir(tmp_path) if name not in {NAME, STORE}] == []


def test_files_of_a_core_cannot_be_written(tiny: TinyCore, tmp_path: Path) -> None:
    """M94"""
    path = tiny.publish(tmp_path)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in path.rglob("*") if file.is_file()}
    assert modes == {0o444}


def test_two_writers_at_other_times_and_places_give_one_digest(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M92, R10"""
    digests = set()
    for number in range(2):
        provenance = msgspec.structs.replace(tiny.provenance, seed=number)
        parts = TinyCore(tiny.core, provenance, tiny.graphs, tiny.blobs, tiny.image, tiny.key)
        with verify(parts.publish(tmp_path / str(number), f"name-{number}"), policy) as verified:
            digests.add(verified.digest)
    assert len(digests) == 1


def test_an_automatic_name_holds_arch_ranks_and_minute_and_a_second_one_gets_a_suffix(
    tiny: TinyCore, policy: Policy, tmp_path: Path
) -> None:
    """R16"""
    names = []
    for _ in range(3):
        with DraftWriter(tmp_path) as writer:
            draft = fill(writer, tiny)
            path = publish(draft, draft.core, tiny.provenance, tiny.graphs_bytes(), tiny.key, now=NOW)
            names.append(path.name)
        with verify(path, policy) as verified:
            assert verified.name == path.name
            assert verified.signed_at == "2026-11-30T09:00:00Z"
            assert verified.sequence == int(NOW.timestamp())
    stem = f"{LEVEL}-tp1-202611300900"
    assert names == [stem, f"{stem}-2", f"{stem}-3"]


def fill(writer: DraftWriter, tiny: TinyCore) -> write.Draft:
    for data in tiny.blobs.values():
        writer.put_blob(data)
    writer.put_weights([tiny.image], tiny.core.weights.cap)
    return writer.finish(tiny.core, tiny.provenance, tiny.graphs_bytes(), scratch_key())


def test_a_name_that_is_taken_is_refused_and_what_has_it_stays(tiny: TinyCore, tmp_path: Path) -> None:
    """M93"""
    path = tiny.publish(tmp_path)
    before = {name: (path / name).stat().st_mtime_ns for name in listing(path)}
    blobs = listing(tmp_path / STORE)
    with pytest.raises(CoreExistsError) as error:
        tiny.publish(tmp_path)
    assert str(path) in error.value.found
    assert {name: (path / name).stat().st_mtime_ns for name in listing(path)} == before
    assert sorted(os.listdir(tmp_path)) == sorted([NAME, STORE])
    assert listing(tmp_path / STORE) == blobs
    tiny.publish(tmp_path, "another")


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_whatever_has_the_name_keeps_it(tiny: TinyCore, tmp_path: Path, kind: str) -> None:
    """M93: also an empty folder, which a plain rename would replace."""
    taken = tmp_path / NAME
    {"file": taken.touch, "folder": taken.mkdir, "link": lambda: taken.symlink_to("nowhere")}[kind]()
    with pytest.raises(CoreExistsError):
        tiny.publish(tmp_path)
    assert os.listdir(tmp_path) == [NAME]


@pytest.mark.parametrize("name", ["a/b", "../x", ".hidden", "", "a b"])
def test_a_name_that_is_no_core_name_is_refused(tiny: TinyCore, tmp_path: Path, name: str) -> None:
    """M25"""
    with pytest.raises(UsageError):
        tiny.publish(tmp_path / "cores", name)
    assert listing(tmp_path) == []


def race(folder: Path, name: str | None, barrier: object, results: multiprocessing.Queue[str]) -> None:
    parts = tiny_core(weight_bytes=64 << 10)
    with DraftWriter(folder) as writer:
        draft = fill(writer, parts)
        barrier.wait()  # type: ignore[attr-defined]
        try:
            path = publish(draft, draft.core, parts.provenance, parts.graphs_bytes(), parts.key, name, NOW)
            results.put(path.name)
        except CoreExistsError:
            results.put("taken")


@pytest.mark.parametrize("name", [NAME, None])
def test_of_writers_that_race_for_a_name_exactly_one_gets_it(tmp_path: Path, name: str | None) -> None:
    """M93"""
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    barrier = context.Barrier(6)
    processes = [context.Process(target=race, args=(tmp_path, name, barrier, results)) for _ in range(6)]
    for process in processes:
        process.start()
    found = sorted(results.get(timeout=60) for _ in processes)
    for process in processes:
        process.join()
    stem = f"{LEVEL}-tp1-202611300900"
    expected = [NAME, *["taken"] * 5] if name else [stem, *(f"{stem}-{number}" for number in range(2, 7))]
    assert found == sorted(expected)
    assert sorted(os.listdir(tmp_path)) == sorted({*expected, STORE} - {"taken"})


def test_an_abandoned_draft_leaves_nothing(tiny: TinyCore, tmp_path: Path) -> None:
    """M93: not even the folders made for it, nor blobs in the store."""
    writer = DraftWriter(tmp_path / "a" / "b")
    fill(writer, tiny)
    assert (tmp_path / "a" / "b" / STORE).is_dir()
    writer.abandon()
    writer.abandon()
    assert listing(tmp_path) == []


def test_an_error_while_writing_leaves_nothing(tiny: TinyCore, tmp_path: Path) -> None:
    """M93"""

    def fail() -> None:
        with DraftWriter(tmp_path) as writer:
            fill(writer, tiny)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert listing(tmp_path) == []


def test_a_core_that_its_own_reader_would_refuse_is_not_published(tiny: TinyCore, tmp_path: Path) -> None:
    """M93"""
    broken = tiny.with_core(model="")
    with pytest.raises(FormatError) as error:
        broken.publish(tmp_path)
    assert error.value.rule == "M30"
    assert listing(tmp_path) == []
    tiny.publish(tmp_path)


def test_abandoning_one_draft_keeps_the_blobs_that_others_use(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """M94"""
    path = tiny.publish(tmp_path)
    writer = DraftWriter(tmp_path)
    fill(writer, tiny)
    other = writer.put_blob(b"only in the draft")
    assert (tmp_path / STORE / other).exists()
    writer.abandon()
    assert not (tmp_path / STORE / other).exists()
    assert sorted(os.listdir(tmp_path / STORE)) == sorted(os.listdir(path / "blobs"))
    with verify(path, policy) as verified:
        verify_weights(verified)


def test_a_draft_opens_for_its_checker_only(tiny: TinyCore, tmp_path: Path) -> None:
    """M26, M49"""
    key = scratch_key()
    with DraftWriter(tmp_path) as writer:
        for data in tiny.blobs.values():
            writer.put_blob(data)
        unknown = tuple(
            msgspec.structs.replace(
                test,
                cases=tuple(
                    Case(inputs=c.inputs, outputs=UNKNOWN_DIGEST, state=UNKNOWN_DIGEST, units=1) for c in test.cases
                ),
            )
            for test in tiny.core.self_tests
        )
        core = msgspec.structs.replace(tiny.core, self_tests=unknown)
        draft = writer.finish(core, tiny.provenance, tiny.graphs_bytes(), key)
        only = Policy.only(key.public_bytes)
        with verify(draft.path, only, accept_draft=True) as verified:
            assert verified.draft
            verify_weights(verified)
        with pytest.raises(DraftError):
            verify(draft.path, only)


def test_a_draft_can_be_finished_again_with_other_content(tiny: TinyCore, policy: Policy, tmp_path: Path) -> None:
    """What the checker found is merged: new blobs come, blobs that nothing refers to any more go."""
    with DraftWriter(tmp_path) as writer:
        draft = fill(writer, tiny)
        old = tiny.core.regions[1].initial[0].blob
        new = writer.put_blob(bytes(64))
        constants = msgspec.structs.replace(tiny.core.regions[1], initial=(Slice(offset=0, size=64, blob=new),))
        regions = (tiny.core.regions[0], constants, *tiny.core.regions[2:])
        core = msgspec.structs.replace(draft.core, regions=regions)
        path = publish(draft, core, tiny.provenance, tiny.graphs_bytes(), tiny.key, NAME)
    assert not (path / "blobs" / old).exists()
    assert not (tmp_path / STORE / old).exists()
    with verify(path, policy) as verified:
        assert verified.blob(new) == bytes(64)


def die_while_writing(folder: Path, ready: object) -> None:
    writer = DraftWriter(folder)
    fill(writer, tiny_core(weight_bytes=64 << 10))
    ready.set()  # type: ignore[attr-defined]
    time.sleep(60)


def test_the_draft_of_a_killed_writer_is_removed_by_the_next_one_and_a_live_one_stays(
    tiny: TinyCore, tmp_path: Path
) -> None:
    """M93"""
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=die_while_writing, args=(tmp_path, ready))
    process.start()
    assert ready.wait(60)
    with DraftWriter(tmp_path) as live:
        assert len(list(tmp_path.glob(f"{DRAFT_PREFIX}*"))) == 2
        live.put_blob(b"alive")
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert len(list(tmp_path.glob(f"{DRAFT_PREFIX}*"))) == 1
    with DraftWriter(tmp_path) as next_one:
        assert list(tmp_path.glob(f"{DRAFT_PREFIX}*")) == [next_one.path]
    assert listing(tmp_path) == []


@pytest.mark.parametrize("kind", ["file", "link", "foreign"])
def test_what_is_no_abandoned_draft_or_cannot_be_removed_bars_nobody(
    tmp_path: Path, another_user: Callable[[], None], kind: str
) -> None:
    """R16"""
    stray = Path(f"{DRAFT_PREFIX}stray")
    if kind == "file":
        stray.write_text("")
    elif kind == "link":
        stray.symlink_to("nowhere")
    else:
        stray.mkdir(0o700)
    another_user()
    DraftWriter(Path()).abandon()
    assert os.listdir() == [stray.name]


def publish_for_ever(folder: Path, ready: object) -> None:
    parts = tiny_core(weight_bytes=64 << 10)
    ready.set()  # type: ignore[attr-defined]
    for number in range(1000):
        parts.publish(folder, f"core-{number}")


def test_a_writer_killed_at_any_moment_leaves_whole_cores_and_dead_drafts_only(
    tmp_path: Path, mount: Callable[[str, Path], None]
) -> None:
    """M93"""
    context = multiprocessing.get_context("fork")
    whole = 0
    mount("size=200m", tmp_path / "disk")  # where a sync costs nothing, so that many cores are published
    for attempt in range(20):
        folder = tmp_path / "disk" / str(attempt)
        ready = context.Event()
        process = context.Process(target=publish_for_ever, args=(folder, ready))
        process.start()
        assert ready.wait(60)
        time.sleep(0.02 + 0.0037 * attempt)
        os.kill(process.pid or 0, signal.SIGKILL)
        process.join()
        for path in folder.glob("core-*"):
            key = re.search(r'"keyid":"([0-9a-f]{64})"', (path / "core.sig").read_text())
            assert key
            independent_reader.check_folder(path)
            assert sorted(os.listdir(path / "blobs"))
            whole += 1
        DraftWriter(folder).abandon()
        assert not list(folder.glob(f"{DRAFT_PREFIX}*"))
    assert whole > 0


def test_a_full_disk_is_a_storage_error_at_every_point_and_nothing_is_left(
    policy: Policy, tmp_path: Path, mount: Callable[[str, Path], None]
) -> None:
    """M93: the disk is a real, small file system, a little larger each time until the core fits."""
    parts = tiny_core(weight_bytes=256 << 10)
    errors = []
    for number, size in enumerate(range(16, 720, 24)):
        disk = tmp_path / f"disk-{number}"
        mount(f"size={size}k", disk)
        error = attempt(parts, disk)
        if error is None:
            break
        assert listing(disk) == []
        errors.append(error)
    assert len({error.doing for error in errors}) >= 2
    assert all("ENOSPC" in error.found and "space" in error.hint for error in errors)
    with verify(disk / NAME, Policy.only(parts.key.public_bytes)) as verified:
        verify_weights(verified)


def attempt(parts: TinyCore, folder: Path) -> StorageError | None:
    try:
        parts.publish(folder)
    except StorageError as error:
        return error
    return None


def test_a_disk_without_inodes_is_a_storage_error(tmp_path: Path, mount: Callable[[str, Path], None]) -> None:
    """M93"""
    parts = tiny_core(weight_bytes=64 << 10)
    for inodes in range(3, 20):
        disk = tmp_path / str(inodes)
        mount(f"nr_inodes={inodes}", disk)
        with pytest.raises(StorageError):
            parts.publish(disk)
        assert listing(disk) == []


def test_a_read_only_disk_is_a_storage_error(
    tiny: TinyCore, tmp_path: Path, mount: Callable[[str, Path], None]
) -> None:
    disk = tmp_path / "disk"
    mount("ro,size=1m", disk)
    with pytest.raises(StorageError) as error:
        tiny.publish(disk / "cores")
    assert "EROFS" in error.value.found


def publish_with_limit(folder: Path, limit: int, results: multiprocessing.Queue[str]) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        results.put(tiny_core(weight_bytes=3 * MIB, cap=2 * MIB).publish(folder).name)
    except StorageError as error:
        results.put(error.found)


def test_a_limit_on_the_size_of_files_is_a_storage_error(tmp_path: Path) -> None:
    """M93"""
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[str] = context.Queue()
    for limit, expected in ((2 * MIB - 1, errno.EFBIG), (2 * MIB, 0)):
        process = context.Process(target=publish_with_limit, args=(tmp_path / "cores", limit, results))
        process.start()
        found = results.get(timeout=60)
        process.join()
        if expected:
            assert errno.errorcode[expected] in found
            assert listing(tmp_path) == []
        else:
            assert found == NAME


def test_everything_is_synced_before_the_core_appears_and_the_folder_after(
    tiny: TinyCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M93: seen at the system calls; they are made as well."""
    events: list[tuple[str, int]] = []
    sync = os.fsync

    def seen(descriptor: int) -> None:
        sync(descriptor)
        events.append(("sync", os.fstat(descriptor).st_ino))

    rename = storage.rename_new

    def renamed(source: Path, target: Path) -> None:
        events.append(("rename", 0))
        rename(source, target)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr("heliograph.core.workplace.rename_new", renamed)
    path = tiny.publish(tmp_path)
    at = events.index(("rename", 0))
    before, after = {inode for _, inode in events[:at]}, {inode for _, inode in events[at:]}
    files = [path, *path.rglob("*")]
    assert {file.stat().st_ino for file in files} <= before
    assert tmp_path.stat().st_ino in after


def test_a_core_whose_name_may_not_be_durable_stays_and_the_error_says_so(
    tiny: TinyCore, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M93: the sync after the rename fails; nothing is removed, and no descriptor stays."""

    def fail(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("heliograph.core.workplace.sync_folder", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(StorageError) as error:
        tiny.publish(tmp_path)
    assert "EIO" in error.value.found
    assert str(tmp_path / NAME) in error.value.doing
    assert "durable" in error.value.doing
    assert os.listdir("/proc/self/fd") == before
    with verify(tmp_path / NAME, policy) as verified:
        verify_weights(verified)


def test_a_rename_replaces_nothing(tmp_path: Path) -> None:
    """M93"""
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    with pytest.raises(FileExistsError):
        rename_new(tmp_path / "source", tmp_path / "target")
    (tmp_path / "target").rmdir()
    rename_new(tmp_path / "source", tmp_path / "target")
    assert os.listdir(tmp_path) == ["target"]


def test_a_file_system_without_that_rename_gets_the_same_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M93: the way for file systems that do not know RENAME_NOREPLACE, forced by a C library without the call."""
    monkeypatch.setattr(storage.ctypes, "CDLL", lambda *_, **__: object())
    test_a_rename_replaces_nothing(tmp_path)


def test_zeros_become_holes(tmp_path: Path) -> None:
    data = bytearray(8 * MIB)
    data[5 * MIB + 3] = 1
    file = NewFile(tmp_path / "x")
    for at in range(0, len(data), 3 * MIB):
        file.append(memoryview(data)[at : at + 3 * MIB])
    file.finish()
    assert (tmp_path / "x").read_bytes() == data
    assert (tmp_path / "x").stat().st_blocks * 512 <= 256 << 10


def test_a_file_of_zeros_has_its_size(tmp_path: Path) -> None:
    file = NewFile(tmp_path / "x")
    file.append(memoryview(bytes(MIB + 1)))
    file.finish()
    assert (tmp_path / "x").read_bytes() == bytes(MIB + 1)


def test_storage_errors_name_the_systems_reason() -> None:
    for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
        with pytest.raises(StorageError) as error, storing("writing"):
            raise OSError(code, os.strerror(code))
        assert errno.errorcode[code] in error.value.found
