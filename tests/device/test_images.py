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


def without(flag: str) -> tuple[str, ...]:
    return tuple(kept for kept in FREESTANDING if flag not in kept)


TLS = '__attribute__((tls_model("initial-exec"))) __thread int t = 1; extern "C" int g() { return t; }'
CONSTRUCTOR = "__attribute__((constructor)) static void f() {}"
UNDEFINED = 'extern "C" int away(); __attribute__((used)) static int g() { return away(); }'
EXPORTED = 'extern "C" __attribute__((visibility("default"))) int more() { return 1; }'
UNFIT = {
    "needed libraries": ("", ("-fvisibility=hidden", "-Wl,--no-as-needed", "-lm")),
    "constructors or destructors": (CONSTRUCTOR, FREESTANDING),
    "thread-local storage": (TLS, FREESTANDING),
    "a build id or another note": ("", (*without("build-id"), "-Wl,--build-id")),
    "undefined symbols": (UNDEFINED, without("defs")),
    "other exported symbols than heliograph_module": (EXPORTED, FREESTANDING),
    "an executable stack": ("", (*FREESTANDING, "-Wl,-z,execstack")),
}


@pytest.mark.parametrize("reason", UNFIT)
def test_the_check_sees_what_it_looks_for(tmp_path: Path, reason: str) -> None:
    extra, flags = UNFIT[reason]
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
