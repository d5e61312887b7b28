"""What a kernel image must be: images that a linker really makes, and headers that lie."""

from __future__ import annotations

import random
import struct
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import independent_reader
from heliograph._native import HostDevice, SealedImage
from heliograph.core.image import check_image
from heliograph.core.manifest import Target
from heliograph.errors import FormatError, ModuleError
from tiny_core import LEVEL, TinyCore, probe_image

SOURCE = 'extern "C" __attribute__((visibility("default"))) int f() { return 1; }\n'
LINK = ["-shared", "-nostdlib", "-Wl,-z,noexecstack", "-Wl,--build-id=none"]
TARGET = Target(device="host", arch=LEVEL, abi=1, ranks=1, processors=0, shared_optin=0, driver=0)


def verdict(image: bytes, target: Target = TARGET) -> str:
    """The rule that both readers find broken."""
    try:
        independent_reader.check_image(image, msgspec.to_builtins(target))
        other = ""
    except independent_reader.Refused as error:
        other = error.rule
    try:
        check_image(image, "probe", target)
        mine = ""
    except FormatError as error:
        mine = error.rule
    assert mine == other
    return mine


def build(folder: Path, source: str, *flags: str) -> bytes:
    (folder / "x.cpp").write_text(source)
    subprocess.run(["g++", "-fPIC", "-O1", *flags, "-o", folder / "x.so", folder / "x.cpp"], check=True)
    return (folder / "x.so").read_bytes()


def test_the_probe_module_is_accepted(tmp_path: Path) -> None:
    """M39"""
    assert verdict(probe_image()) == ""
    assert verdict(build(tmp_path, SOURCE, *LINK)) == ""


REFUSED = {
    "needs a library": (SOURCE, ["-shared", "-nostartfiles", "-Wl,--no-as-needed", "-lm"]),
    "has a constructor": (SOURCE + "int x; __attribute__((constructor)) void g() { x = 1; }", LINK),
    "has a destructor": (SOURCE + "int x; __attribute__((destructor)) void g() { x = 1; }", LINK),
    "has an init function": (SOURCE + 'extern "C" void h() {}', [*LINK, "-Wl,-init=h"]),
    "has thread-local storage": (
        SOURCE + "__thread int x; int *g() { return &x; }",
        [*LINK, "-ftls-model=initial-exec"],
    ),
    "has an executable stack": (SOURCE, [*LINK, "-Wl,-z,execstack"]),
    "has writable code": (SOURCE + "int x = 1;", [*LINK, "-Wl,-N"]),
    "has an interpreter": (
        SOURCE + '__attribute__((section(".interp"), used)) extern const char i[] = "/lib/ld.so";',
        LINK,
    ),
    "has code that is relocated": (SOURCE + 'asm(".text; .quad f");', LINK),
    "cannot be unloaded": (SOURCE, [*LINK, "-Wl,-z,nodelete"]),
    "is an object file": (SOURCE, ["-c"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_image_that_a_linker_made_otherwise_is_refused(tmp_path: Path, name: str) -> None:
    """M39"""
    source, flags = REFUSED[name]
    image = build(tmp_path, source, *flags)
    assert verdict(image) == "M39"
    refused_by_the_loader(image)


def refused_by_the_loader(image: bytes) -> None:
    device = HostDevice(workers=1)
    with pytest.raises(ModuleError, match="freestanding"):
        device.load_module(SealedImage("probe", image))
    device.close()


SEGMENT, KIND, OFFSET, SIZE, MEMORY = 56, 0, 8, 32, 40
LOAD, DYNAMIC, STACK = 1, 2, 0x6474E551


def altered(kind: int, field: int, value: int) -> bytes:
    """The probe with a field of its first segment of a kind altered."""
    image = bytearray(probe_image())
    at = struct.unpack_from("<Q", image, 32)[0]
    while struct.unpack_from("<I", image, at)[0] != kind:
        at += SEGMENT
    struct.pack_into("<I" if field == KIND else "<Q", image, at + field, value)
    return bytes(image)


@pytest.mark.parametrize(
    "image",
    [
        altered(DYNAMIC, KIND, 0),
        altered(DYNAMIC, SIZE, 16),
        altered(LOAD, OFFSET, 1 << 40),
        altered(LOAD, SIZE, 1 << 40),
        altered(LOAD, MEMORY, 1 << 40),
        altered(STACK, KIND, 0),
        *(probe_image()[:size] for size in (100, 1000, 5000)),
    ],
    ids=["not dynamic", "no end", "outside", "too long", "too large", "any stack", "100", "1000", "5000"],
)
def test_an_image_with_a_segment_missing_or_beyond_the_file_is_refused(image: bytes) -> None:
    """M39: by verify as by the loader."""
    assert verdict(image) == "M39"
    refused_by_the_loader(image)


def test_an_image_for_another_processor_is_refused() -> None:
    """M39"""
    image = bytearray(probe_image())
    struct.pack_into("<H", image, 18, 243)  # RISC-V
    assert verdict(bytes(image)) == "M39"
    assert verdict(probe_image(), msgspec.structs.replace(TARGET, arch="aarch64")) == "M39"
    assert verdict(probe_image(), msgspec.structs.replace(TARGET, device="cuda", abi=0, arch="sm_90")) == "M39"
    struct.pack_into("<H", image, 18, 183)  # whatever machine verifies it
    assert verdict(bytes(image), msgspec.structs.replace(TARGET, arch="aarch64")) == ""
    struct.pack_into("<H", image, 18, 190)
    assert verdict(bytes(image), msgspec.structs.replace(TARGET, device="cuda", abi=0, arch="sm_90")) == ""


@pytest.mark.parametrize("size", [0, 1, 4, 63])
def test_a_file_too_short_for_a_header_is_refused(size: int) -> None:
    """M39"""
    assert verdict(probe_image()[:size]) == "M39"


@settings(max_examples=500)
@given(st.integers(0, 447), st.integers(1, 255))
def test_no_altered_header_crashes_a_reader(at: int, value: int) -> None:
    """M39: both readers agree on every altered header."""
    image = bytearray(probe_image())
    image[at] ^= value
    verdict(bytes(image))


@given(st.integers(0, 1 << 32))
def test_no_bytes_crash_a_reader(seed: int) -> None:
    """M39"""
    assert verdict(random.Random(seed).randbytes(200)) == "M39"
    verdict(b"\x7fELF\x02\x01" + random.Random(seed).randbytes(200))


def test_a_core_with_such_an_image_is_refused(tiny: TinyCore) -> None:
    """M39"""
    assert verdict(b"#!/bin/sh\n" + bytes(100)) == "M39"
    assert verdict(next(tiny.blobs[m.blob] for m in tiny.core.modules)) == ""
