"""The development key: private, whole, and never guessed."""

from __future__ import annotations

import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat

from heliograph.core.policy import Policy
from heliograph.core.sign import DEVELOPMENT_KEY, development_key, scratch_key
from heliograph.errors import StorageError, UsageError


def test_only_its_owner_can_read_the_development_key(home: Path) -> None:
    development_key()
    assert stat.S_IMODE((home / DEVELOPMENT_KEY).stat().st_mode) == 0o600
    assert stat.S_IMODE((home / "keys").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644, 0o660])
def test_a_private_key_that_others_can_read_is_refused(home: Path, mode: int) -> None:
    key = development_key()
    (home / DEVELOPMENT_KEY).chmod(mode)
    with pytest.raises(UsageError) as error:
        development_key()
    assert "chmod 600" in error.value.hint
    (home / DEVELOPMENT_KEY).chmod(0o600)
    assert development_key().key_id == key.key_id


def pem(key: object, password: bytes | None = None) -> bytes:
    protection = BestAvailableEncryption(password) if password else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)  # type: ignore[attr-defined, no-any-return]


BAD_KEYS: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "no key": lambda: b"secret",
    "cut short": lambda: pem(scratch_key().private)[:-40],
    "of another kind": lambda: pem(generate_private_key(65537, 2048)),
    "with a password": lambda: pem(scratch_key().private, b"x"),
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_a_file_that_is_no_usable_key_is_refused_and_not_replaced(home: Path, name: str) -> None:
    good = development_key()
    kept = (home / DEVELOPMENT_KEY).read_bytes()
    bad = BAD_KEYS[name]()
    (home / DEVELOPMENT_KEY).write_bytes(bad)
    with pytest.raises(UsageError):
        development_key()
    assert (home / DEVELOPMENT_KEY).read_bytes() == bad
    (home / DEVELOPMENT_KEY).write_bytes(kept)
    assert development_key().key_id == good.key_id


def test_a_home_that_cannot_be_written_is_a_storage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(StorageError):
        development_key()


def test_what_a_killed_process_of_the_same_number_left_stops_no_key(home: Path) -> None:
    """Containers give their processes the same numbers again, on a home folder that stays."""
    home.mkdir()
    (home / f".development.pem.{os.getpid()}").touch()
    assert development_key().key_id in Policy.local(home).keys


def make_key(home: Path, found: multiprocessing.Queue[str]) -> None:
    found.put(development_key(home).key_id)


def test_processes_that_start_together_agree_on_one_key(home: Path) -> None:
    context = multiprocessing.get_context("fork")
    found: multiprocessing.Queue[str] = context.Queue()
    processes = [context.Process(target=make_key, args=(home, found)) for _ in range(8)]
    for process in processes:
        process.start()
    keys = {found.get(timeout=60) for _ in processes}
    for process in processes:
        process.join()
    assert keys == {development_key(home).key_id}
    assert set(Policy.local(home).keys) == keys


def test_every_scratch_key_is_another_one() -> None:
    assert len({scratch_key().key_id for _ in range(10)}) == 10
