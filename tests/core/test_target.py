"""Whether a core fits a machine: one difference at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from heliograph.core.format import KERNEL_ABI
from heliograph.core.manifest import Item, Target
from heliograph.core.policy import Policy
from heliograph.core.target import Machine, check_target, other_model, this_host
from heliograph.core.verify import verify
from heliograph.errors import TargetError
from tiny_core import TinyCore

HOST = Machine(device="host", arches=("x86-64-v3", "generic"))
HOST_TARGET = Target(device="host", arch="x86-64-v3", abi=KERNEL_ABI, ranks=1, processors=0, shared_optin=0, driver=0)
CUDA = Machine(device="cuda", arches=("sm_90",), abi=0, processors=132, shared_optin=232448, driver=13000)
CUDA_TARGET = Target(device="cuda", arch="sm_90", abi=0, ranks=1, processors=132, shared_optin=232448, driver=13000)


def test_a_core_fits_the_machine_it_was_made_on_and_better_ones() -> None:
    check_target(HOST_TARGET, HOST)
    check_target(msgspec.structs.replace(HOST_TARGET, arch="generic"), HOST)
    check_target(CUDA_TARGET, CUDA)
    check_target(CUDA_TARGET, replace(CUDA, driver=13010, shared_optin=262144))


@pytest.mark.parametrize(
    ("target", "machine", "change"),
    [
        (HOST_TARGET, HOST, {"arch": "x86-64-v4+vnni+bf16"}),
        (HOST_TARGET, HOST, {"device": "cuda"}),
        (HOST_TARGET, HOST, {"abi": KERNEL_ABI + 1}),
        (CUDA_TARGET, CUDA, {"device": "host"}),
        (CUDA_TARGET, CUDA, {"arch": "sm_100"}),
        (CUDA_TARGET, CUDA, {"processors": 114}),
        (CUDA_TARGET, CUDA, {"shared_optin": 232449}),
        (CUDA_TARGET, CUDA, {"driver": 13001}),
    ],
)
def test_one_difference_is_enough_to_refuse(target: Target, machine: Machine, change: dict[str, Any]) -> None:
    check_target(target, machine)
    with pytest.raises(TargetError):
        check_target(msgspec.structs.replace(target, **change), machine)


@pytest.mark.parametrize(("made", "here", "told"), [
    ("NVIDIA H200", "NVIDIA H200", False), ("NVIDIA H200", "NVIDIA H100 80GB HBM3", True), (None, "NVIDIA H200", False)
])  # fmt: skip
def test_another_model_of_gpu_is_told(tiny: TinyCore, made: str | None, here: str, told: bool) -> None:
    device = (Item(name="kind", value="cuda"), *([Item(name="name", value=made)] if made else []))
    notice = other_model(replace(tiny.provenance, device=device), replace(CUDA, name=here))
    assert (notice != "") == told
    assert not told or (f"{made}" in notice and here in notice)
    assert other_model(replace(tiny.provenance, device=device), HOST) == ""


def test_a_core_for_another_machine_can_be_looked_at_but_not_run(
    tiny: TinyCore, policy: Policy, tmp_path: Path
) -> None:
    foreign = tiny.with_core(target=msgspec.structs.replace(tiny.core.target, arch="x86-64-v9"))
    path = foreign.write(tmp_path)
    verify(path, policy).close()
    with pytest.raises(TargetError):
        verify(path, policy, machine=this_host())
    verify(tiny.write(tmp_path / "twin"), policy, machine=this_host()).close()
