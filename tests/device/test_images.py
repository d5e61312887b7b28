"""The kernel modules that are shipped are freestanding: read from their ELF files, not from the build's flags."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph import _native
from heliograph.device.host import KERNELS, best_level, families, kernel_image
from heliograph.errors import ModuleError

from .compile import FREESTANDING, MODULE, compile_text
from .elf import unfit

SHIPPED = sorted(KERNELS.glob("*/*.so"))


@pytest.mark.parametrize("image", SHIPPED, ids=[f"{file.parent.name}-{file.stem}" for file in SHIPPED])
def test_a_shipped_module_is_freestanding(image: Path) -> None:
    assert unfit(image.read_bytes()) == []


@pytest.mark.parametrize("image", SHIPPED, ids=[f"{file.parent.name}-{file.stem}" for file in SHIPPED])
def test_a_shipped_module_holds_no_path_of_the_building_machine(image: Path) -> None:
    data = image.read_bytes()
    for folder in (Path(__file__).parents[2], Path.home(), Path("/tmp")):
        assert str(folder).encode() not in data


def test_every_level_has_every_family() -> None:
    levels = {file.parent.name for file in SHIPPED}
    assert {"generic", best_level()} <= levels
    assert len({families(level) for level in levels}) == 1
    assert "probe" in families("generic")


def good(extra: str = "") -> str:
    table = MODULE.format(value=1, abi=1, offsets="0", functions='{"set", run, 8, 1, at}', family="t", level="generic")
    return table + extra


@pytest.mark.parametrize(
    ("reason", "extra", "flags"),
    [
        ("needed libraries", "", ("-fvisibility=hidden", "-Wl,--no-as-needed", "-lm")),
        ("constructors or destructors", "__attribute__((constructor)) static void f() {}", FREESTANDING),
        ("thread-local storage", "__attribute__((tls_model(\"initial-exec\"))) __thread int t = 1; extern \"C\" int g() { return t; }", FREESTANDING),
        ("a build id or another note", "", tuple(flag for flag in FREESTANDING if "build-id" not in flag) + ("-Wl,--build-id",)),
        ("undefined symbols", "extern \"C\" int away(); __attribute__((used)) static int g() { return away(); }",
         tuple(flag for flag in FREESTANDING if "defs" not in flag)),
        ("other exported symbols than heliograph_module",
         "extern \"C\" __attribute__((visibility(\"default\"))) int more() { return 1; }", FREESTANDING),
        ("an executable stack", "", (*FREESTANDING, "-Wl,-z,execstack")),
    ],
    ids=["needed", "constructor", "tls", "build id", "undefined", "exported", "stack"],
)  # fmt: skip
def test_the_check_sees_what_it_looks_for(tmp_path: Path, reason: str, extra: str, flags: tuple[str, ...]) -> None:
    assert reason in unfit(compile_text(tmp_path, good(extra), flags))
    assert unfit(compile_text(tmp_path, good(), FREESTANDING)) == []


def test_an_image_that_is_not_shipped_is_refused_with_those_that_are() -> None:
    with pytest.raises(ModuleError) as refused:
        kernel_image("generic", "nothing")
    assert "probe" in refused.value.required
    assert kernel_image("generic", "probe")[:4] == b"\x7fELF"


def test_host_levels_end_with_generic() -> None:
    assert _native.host_levels()[-1] == "generic"
    assert best_level() in _native.host_levels()
