"""The code that runs is the code whose digest was asked for, in whatever order modules come and go."""

from __future__ import annotations

import gc
import itertools
import os
import random
import resource
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from blake3 import blake3

from conformance.probe import BASE, pack, probe_image
from heliograph._native import HostDevice, Module, SealedImage
from heliograph.device.modules import load_module, raise_descriptor_limit
from heliograph.errors import ModuleError, TamperedError, UsageError

from .compile import compile_module

IDENTITY = struct.pack("<Q", 0x7A6B5C4D3E2F1001)  # native/host/kernels/probe.cpp
TESTS = str(Path(__file__).parent.parent)


@cache
def halves() -> tuple[bytes, bytes]:
    before, after = probe_image().split(IDENTITY)
    return before, after


def numbered(number: int) -> tuple[str, bytes]:
    """A probe module whose ``identity`` kernel writes this number, and its digest."""
    before, after = halves()
    image = before + struct.pack("<Q", number) + after
    return blake3(image).hexdigest(), image


class Ground:
    """A device and a word of memory in which a module says which one it is."""

    def __init__(self) -> None:
        self.device = HostDevice(workers=1)
        self.memory = self.device.reserve(BASE, 1 << 20)
        self.memory.map(0, 4096)
        self.stream = self.device.create_stream()

    def identity(self, module: Module) -> int:
        self.memory.fill(0, 0, 8)
        self.stream.launch(module.function("identity"), (1, 1, 1), pack(self.memory.address))
        self.stream.synchronize()
        return int.from_bytes(self.memory.read(0, 8), "little")


@pytest.fixture
def ground() -> Iterator[Ground]:
    opened = Ground()
    yield opened
    opened.stream.synchronize()
    opened.memory.close()
    opened.device.close()


def live(ground: Ground) -> int:
    gc.collect()
    return ground.device.counters()["modules_live"]


def test_a_module_says_what_it_is(ground: Ground) -> None:
    digest, image = numbered(1)
    module = load_module(ground.device, digest, image)
    assert (module.abi, module.family, module.level) == (1, "probe", "generic")
    assert "count" in module.function_names()
    count, add = module.function("count"), module.function("add")
    assert (count.name, count.param_bytes, count.pointer_offsets) == ("count", 8, (0,))
    assert (add.param_bytes, add.pointer_offsets, add.module) == (32, (0, 8, 16), module)
    assert module.function("count") is count
    with pytest.raises(ModuleError):
        module.function("nothing")


def test_another_digest_is_refused_and_the_right_one_is_not(ground: Ground) -> None:
    digest, image = numbered(1)
    with pytest.raises(TamperedError) as refused:
        load_module(ground.device, numbered(2)[0], image)
    assert digest in refused.value.found
    assert ground.device.counters()["modules_loaded"] == 0
    assert ground.identity(load_module(ground.device, digest, image)) == 1


def test_an_image_is_loaded_once(ground: Ground) -> None:
    digest, image = numbered(1)
    first, second = load_module(ground.device, digest, image), load_module(ground.device, digest, bytes(image))
    assert first is second
    assert ground.device.counters()["modules_loaded"] == 1
    function = first.function("identity")
    del first, second
    assert live(ground) == 1  # its function holds it
    assert load_module(ground.device, digest, image).function("identity") is function
    del function
    assert live(ground) == 0


def test_equal_names_of_different_images_are_different_modules(ground: Ground) -> None:
    modules = [ground.device.load_module(SealedImage("same", numbered(number)[1])) for number in (1, 2, 1)]
    assert [ground.identity(module) for module in modules] == [1, 2, 1]


EVENTS = ("load 1", "load 2", "fail 1", "fail 3", "drop 1", "drop 2")


def test_the_right_code_runs_after_every_order_of_loads_failures_and_unloads(ground: Ground) -> None:
    held: dict[int, Module] = {}
    for order in itertools.permutations(EVENTS):
        for event in order:
            verb, number = event.split()
            digest, image = numbered(int(number))
            if verb == "load":
                held[int(number)] = load_module(ground.device, digest, image)
            elif verb == "drop":
                held.pop(int(number), None)
            else:
                broken = image[:64] + bytes(4096)  # a damaged image whose digest is right
                with pytest.raises(ModuleError):
                    load_module(ground.device, blake3(broken).hexdigest(), broken)
            assert {number: ground.identity(held[number]) for number in held} == {number: number for number in held}
        held.clear()
    assert live(ground) == 0


def test_a_dropped_module_is_unloaded_and_its_descriptor_closed(ground: Ground) -> None:
    def mapped() -> int:
        with open("/proc/self/maps") as maps:
            return sum("memfd:" in line for line in maps)

    before, mapped_before = len(os.listdir("/proc/self/fd")), mapped()
    for number in range(50):
        module = load_module(ground.device, *numbered(number))
        assert ground.identity(module) == number
        assert len(os.listdir("/proc/self/fd")) == before + 1
        assert mapped() > mapped_before
        del module
    assert len(os.listdir("/proc/self/fd")) == before
    assert mapped() == mapped_before


def test_4000_modules_each_run_their_own_code() -> None:
    """In a process of its own, because it raises the limit on open files, which starts low."""
    done = subprocess.run([sys.executable, "-c", MANY.format(tests=TESTS)], capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("4000 modules, all right, limit too low before\n", "")


MANY = """
import resource, sys
sys.path.insert(0, {tests!r})
from device.test_modules import Ground, numbered
from heliograph.device.modules import load_module, raise_descriptor_limit
from heliograph.errors import ModuleError
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
ground = Ground()
modules, told = [], ""
for number in range(4000):
    try:
        modules.append(load_module(ground.device, *numbered(number)))
    except ModuleError as refused:
        assert "open files" in refused.found and not told, refused
        told = "limit too low before"
        raise_descriptor_limit(4000 - number)
        modules.append(load_module(ground.device, *numbered(number)))
assert ground.device.counters()["modules_live"] == 4000
order = list(range(4000))
__import__("random").Random(1).shuffle(order)
assert all(ground.identity(modules[number]) == number for number in order)
print("4000 modules, all right,", told)
"""


def test_a_reused_descriptor_number_never_gives_the_earlier_module(ground: Ground) -> None:
    numbers = set()
    for number in range(200):
        digest, image = numbered(number)
        sealed = SealedImage(digest, image)
        numbers.add(sealed.fileno())
        module = ground.device.load_module(sealed)
        del sealed
        assert ground.identity(module) == number
        del module
    assert len(numbers) == 1  # the number was reused each time, so the loader saw one name only


STOLEN = """
import os, sys
sys.path.insert(0, {tests!r})
from device.test_modules import Ground, numbered
from heliograph._native import SealedImage
from heliograph.errors import ModuleError
ground = Ground()
first = SealedImage("one", numbered(1)[1])
module = ground.device.load_module(first)
os.close(first.fileno())                      # behind our back: the number is free, the handle is open
second = SealedImage("two", numbered(2)[1])
assert second.fileno() == first.fileno()
try:
    ground.device.load_module(second)
except ModuleError as refused:
    print(refused.found.rpartition("/")[0], flush=True)
assert ground.identity(module) == 1
os._exit(0)
"""


def test_the_loader_giving_an_earlier_module_is_found_out() -> None:
    """The fault itself, made on purpose: the loader knows the name and returns what it loaded before."""
    done = subprocess.run(
        [sys.executable, "-c", STOLEN.format(tests=TESTS)], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("another module under the name /proc/self/fd\n", "")


def test_a_sealed_image_cannot_be_changed() -> None:
    sealed = SealedImage("x", b"the bytes")
    for change in (
        lambda: os.pwrite(sealed.fileno(), b"x", 0),
        lambda: os.ftruncate(sealed.fileno(), 0),
        lambda: os.ftruncate(sealed.fileno(), 100),
    ):
        with pytest.raises(OSError, match="not permitted"):
            change()
    assert os.pread(sealed.fileno(), 100, 0) == b"the bytes"
    with pytest.raises(ModuleError):
        SealedImage("x", b"")


BROKEN: dict[str, dict[str, object]] = {
    "another ABI": {"abi": 2},
    "a level of another machine": {"level": "x86-64-v9"},
    "two functions of one name": {"functions": '{"set", run, 8, 1, at}, {"set", run, 8, 1, at}'},
    "a function without code": {"functions": '{"set", nullptr, 8, 1, at}'},
    "a function without name": {"functions": "{nullptr, run, 8, 1, at}"},
    "a pointer beyond the parameters": {"offsets": "8"},
    "a pointer at an odd offset": {"offsets": "4", "functions": '{"set", run, 16, 1, at}'},
    "pointers that are not ascending": {"offsets": "8, 0", "functions": '{"set", run, 16, 2, at}'},
    "more pointers than parameters": {"offsets": "0, 8", "functions": '{"set", run, 8, 2, at}'},
    "parameters beyond the limit": {"functions": '{"set", run, 4104, 1, at}'},
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN.keys())
def test_a_malformed_module_table_is_refused(ground: Ground, tmp_path: Path, change: dict[str, object]) -> None:
    image = compile_module(tmp_path, **change)  # type: ignore[arg-type]
    with pytest.raises(ModuleError):
        load_module(ground.device, blake3(image).hexdigest(), image)
    assert live(ground) == 0
    right = compile_module(tmp_path)
    assert load_module(ground.device, blake3(right).hexdigest(), right).function_names() == ["set"]


def test_what_is_no_module_is_refused(ground: Ground) -> None:
    elf = probe_image()
    maps = Path("/proc/self/maps").read_text().splitlines()
    library = next(Path(line.split()[-1]) for line in maps if "libc.so" in line)
    damaged = [elf[:end] for end in (4, 63, 100, 1000, 5000, len(elf) - 3000)]
    for image in (b"no elf at all" * 100, library.read_bytes(), *damaged):
        with pytest.raises(ModuleError):
            load_module(ground.device, blake3(image).hexdigest(), image)
    assert live(ground) == 0


def test_threads_that_load_one_image_get_one_module(ground: Ground) -> None:
    images = [numbered(number) for number in range(20)]
    wanted = images * 8
    random.Random(3).shuffle(wanted)
    with ThreadPoolExecutor(8) as pool:
        modules = list(pool.map(lambda pair: load_module(ground.device, *pair), wanted))
    assert ground.device.counters()["modules_loaded"] == 20
    by_digest = dict(images)
    for (digest, _), module in zip(wanted, modules, strict=True):
        assert numbered(ground.identity(module)) == (digest, by_digest[digest])


# ---- limits and policies ---------------------------------------------------------------------------------------------
def test_the_descriptor_limit_is_raised_only_as_far_as_needed() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
        raise_descriptor_limit(10)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        raise_descriptor_limit(1000)
        assert 1000 < resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1400
        with pytest.raises(ModuleError) as refused:
            raise_descriptor_limit(before[1])
        assert str(before[1]) in refused.value.found
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


REFUSING = """
import ctypes, os, struct, sys
sys.path.insert(0, {tests!r})
from device.test_modules import Ground, numbered
from heliograph.device.modules import load_module
from heliograph.errors import ModuleError
ground = Ground()
libc = ctypes.CDLL(None, use_errno=True)
# A system-call filter, as a container's policy has one: each rule is (number, argument bit or None, error).
def refuse(number, argument_bit, error):
    code = lambda *parts: struct.pack("HBBI", *parts)
    load_number, load_argument = code(0x20, 0, 0, 0), code(0x20, 0, 0, 32)
    yes, no = code(0x06, 0, 0, 0x00050000 | error), code(0x06, 0, 0, 0x7FFF0000)
    if argument_bit is None:
        program = load_number + code(0x15, 0, 1, number) + yes + no
    else:
        program = load_number + code(0x15, 0, 3, number) + load_argument + code(0x45, 0, 1, argument_bit) + yes + no
    data = ctypes.create_string_buffer(program)
    filter = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(data))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0
MEMFD_CREATE, MMAP, PROT_EXEC = 319, 9, 4
EPERM, EACCES, EINVAL = 1, 13, 22
def place():
    module = load_module(ground.device, *numbered(5))
    assert ground.identity(module) == 5
    return next(line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if " r-xp " in line
                and ("memfd" in line or "deleted" in line))
"""


def refusing(script: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", REFUSING.format(tests=TESTS) + script],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_module_lives_in_memory(tmp_path: Path) -> None:
    digest, _ = numbered(5)
    assert refusing("print(place())") == f"/memfd:{digest} (deleted)"


def test_without_memfd_it_lives_in_an_unnamed_file_of_the_runtime_folder(tmp_path: Path) -> None:
    found = refusing("refuse(MEMFD_CREATE, None, EPERM); print(place())", XDG_RUNTIME_DIR=str(tmp_path))
    assert found.startswith(str(tmp_path))
    assert found.endswith("(deleted)")
    assert list(tmp_path.iterdir()) == []


def test_without_a_runtime_folder_it_lives_in_the_cache(tmp_path: Path) -> None:
    found = refusing(
        "refuse(MEMFD_CREATE, None, EPERM); print(place())",
        XDG_RUNTIME_DIR=str(tmp_path / "missing"),
        HELIOGRAPH_CACHE=str(tmp_path / "cache"),
    )
    assert found.startswith(str(tmp_path / "cache"))
    assert found.endswith("(deleted)")
    assert list((tmp_path / "cache").iterdir()) == []


def test_kernels_without_the_noexec_seal_are_supported() -> None:
    """A kernel older than 6.3 says EINVAL to the flag."""
    digest, _ = numbered(5)
    assert refusing("refuse(MEMFD_CREATE, None, EINVAL)\ntry: load_module(ground.device, *numbered(5))\n"
                    "except ModuleError as refused: print(refused.found.split(';')[0])",
                    XDG_RUNTIME_DIR="/nowhere", HELIOGRAPH_CACHE="/proc/nowhere") == (
        "memory: memfd_create: Invalid argument")  # fmt: skip
    # The filter of the next script looks at the flags: only the call with NOEXEC_SEAL is refused.
    script = """
def refuse_flag():
    code = lambda *parts: struct.pack("HBBI", *parts)
    program = (code(0x20, 0, 0, 0) + code(0x15, 0, 3, MEMFD_CREATE) + code(0x20, 0, 0, 24) + code(0x45, 0, 1, 8)
               + code(0x06, 0, 0, 0x00050000 | EINVAL) + code(0x06, 0, 0, 0x7FFF0000))
    data = ctypes.create_string_buffer(program)
    filter = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(data))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, filter, 0, 0) == 0
refuse_flag()
print(place())
"""
    assert refusing(script) == f"/memfd:{digest} (deleted)"


def test_where_no_place_may_hold_code_the_error_names_each_and_the_way_out(tmp_path: Path) -> None:
    script = """
refuse(MMAP, PROT_EXEC, EACCES)
try:
    load_module(ground.device, *numbered(5))
except ModuleError as refused:
    print(refused.found, refused.hint, sep="\\n")
"""
    found, hint = refusing(script, XDG_RUNTIME_DIR=str(tmp_path), HELIOGRAPH_CACHE=str(tmp_path / "cache")).split("\n")
    for place in ("memory: ", "runtime: ", "cache: "):
        assert place in found
    assert found.count("noexec") == 3
    assert "HELIOGRAPH_CACHE" in hint


def test_a_place_needs_a_folder_and_must_be_known() -> None:
    for place, folder in (("runtime", ""), ("cache", ""), ("elsewhere", "/tmp")):
        with pytest.raises(UsageError):
            SealedImage("x", b"bytes", place, folder)
    assert SealedImage("x", b"bytes", "memory").size == 5
