"""Trust lives outside the core: a file a key; a policy that is not in order trusts nobody."""

from __future__ import annotations

import pwd
import subprocess
from pathlib import Path
from typing import NoReturn

import pytest
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from heliograph.cli.machine import judge, look
from heliograph.core.policy import Policy, home_folder, key_id, trust
from heliograph.core.sign import development_key, scratch_key
from heliograph.core.verify import verify
from heliograph.errors import StorageError, UntrustedError, UsageError
from tiny_core import TinyCore


def test_nobody_is_trusted_on_a_fresh_machine(tiny: TinyCore, home: Path, tmp_path: Path) -> None:
    """M22: the first key that is seen is refused like any other, and the error says what to do."""
    path = tiny.write(tmp_path)
    with pytest.raises(UntrustedError) as error:
        verify(path, Policy.local())
    assert tiny.key.key_id in error.value.found
    assert "copy ~/.config/heliograph/trust/<key id>.pem" in error.value.hint
    assert f"to {home}/trust/" in error.value.hint
    assert not home.exists()


def test_a_core_is_accepted_as_long_as_its_signers_trust_entry_is_there(
    tiny: TinyCore, home: Path, tmp_path: Path
) -> None:
    """M22"""
    path = tiny.write(tmp_path)
    entry = trust(tiny.key.private.public_key(), home)
    with verify(path, Policy.local()) as verified:
        assert verified.signers == (tiny.key.key_id,)
    entry.unlink()
    with pytest.raises(UntrustedError):
        verify(path, Policy.local())
    trust(tiny.key.private.public_key(), home)
    verify(path, Policy.local()).close()


def test_trusting_one_key_trusts_no_other(tiny: TinyCore, home: Path, tmp_path: Path) -> None:
    """M22"""
    trust(scratch_key().private.public_key(), home)
    with pytest.raises(UntrustedError):
        verify(tiny.write(tmp_path), Policy.local())


def write_entry(home: Path, name: str, data: bytes) -> None:
    (home / "trust").mkdir(parents=True, exist_ok=True)
    (home / "trust" / name).write_bytes(data)


def public_pem(key: object = None) -> bytes:
    public = (key or scratch_key().private).public_key()  # type: ignore[attr-defined]
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


MALFORMED = {
    "an empty file": ("0" * 64 + ".pem", lambda: b""),
    "no key": ("0" * 64 + ".pem", lambda: b"trust me"),
    "a key under another name": ("0" * 64 + ".pem", public_pem),
    "a key of another kind": ("0" * 64 + ".pem", lambda: public_pem(generate_private_key(65537, 2048))),
    "a note": ("README", lambda: b"keys"),
    "a hidden file": (".hidden", lambda: b""),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_one_malformed_entry_makes_the_policy_refuse_everything(
    tiny: TinyCore, home: Path, tmp_path: Path, name: str
) -> None:
    """M22"""
    trust(tiny.key.private.public_key(), home)
    file, data = MALFORMED[name]
    write_entry(home, file, data())
    with pytest.raises(UntrustedError) as error:
        Policy.local()
    assert file in error.value.found
    (home / "trust" / file).unlink()
    verify(tiny.write(tmp_path), Policy.local()).close()


def test_a_folder_in_place_of_the_trust_entries_refuses_everything(home: Path) -> None:
    home.mkdir()
    (home / "trust").write_text("")
    with pytest.raises(UntrustedError):
        Policy.local()


def test_a_key_id_is_what_openssl_prints(tmp_path: Path) -> None:
    """The hint of an UntrustedError can be checked with a tool that everybody has."""
    key = scratch_key()
    pem = tmp_path / "key.pem"
    pem.write_bytes(public_pem(key.private))
    der = subprocess.run(
        ["openssl", "pkey", "-pubin", "-in", pem, "-outform", "DER"], check=True, capture_output=True
    ).stdout
    digest = subprocess.run(["sha256sum"], input=der, check=True, capture_output=True).stdout.split()[0].decode()
    assert key.key_id == key_id(key.private.public_key()) == digest


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_public_key_of_another_size_is_refused(size: int) -> None:
    with pytest.raises(UsageError):
        Policy.only(bytes(size))
    assert len(Policy.only(scratch_key().public_bytes).keys) == 1


def test_the_home_folder_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path / "a"))
    assert home_folder() == tmp_path / "a"
    monkeypatch.delenv("HELIOGRAPH_HOME")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "b"))
    assert home_folder() == tmp_path / "b" / "heliograph"
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "c"))
    assert home_folder() == tmp_path / "c" / ".config" / "heliograph"


def test_a_user_without_a_home_is_told_to_choose_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(number: int) -> NoReturn:
        raise KeyError(number)

    for name in ("HELIOGRAPH_HOME", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(StorageError) as error:
        Policy.local()
    assert "HELIOGRAPH_HOME" in error.value.hint
    found = {finding.probe: finding.ok for finding in judge(look())}
    assert (found["keys"], found["disk"]) == (False, True)


def test_the_development_key_is_made_once_and_trusted_once(tiny: TinyCore, home: Path, tmp_path: Path) -> None:
    key = development_key()
    assert development_key().key_id == key.key_id
    path = tiny.publish(tmp_path / "cores", key=key)
    with verify(path, Policy.local()) as verified:
        assert verified.signers == (key.key_id,)
    (home / "trust" / f"{key.key_id}.pem").unlink()
    assert development_key().key_id == key.key_id  # reading the key does not trust it again
    with pytest.raises(UntrustedError):
        verify(path, Policy.local())
    assert sorted(file.name for file in home.rglob("*")) == ["development.pem", "keys", "trust"]


def test_a_trust_entry_is_what_openssl_writes_and_reads(home: Path) -> None:
    key = scratch_key().private
    assert trust(key.public_key(), home).read_bytes() == public_pem(key)
    assert key_id(key.public_key()) in Policy.local(home).keys


@pytest.mark.parametrize(
    "change", [b"-----BEGIN", b"-----END", b"MCow", b"="], ids=["begin", "end", "prefix", "padding"]
)
def test_a_trust_entry_with_a_damaged_part_is_refused(home: Path, change: bytes) -> None:
    key = scratch_key().private
    data = public_pem(key)
    write_entry(home, f"{key_id(key.public_key())}.pem", data.replace(change, b"x" * len(change)))
    with pytest.raises(UntrustedError):
        Policy.local(home)
    write_entry(home, f"{key_id(key.public_key())}.pem", data)
    Policy.local(home)
