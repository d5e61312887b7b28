"""Kernel images for exactly the functions that a recording's graphs use, in the order of their first use."""

from __future__ import annotations

from dataclasses import dataclass

from blake3 import blake3

from heliograph._native import Device, Function, Module
from heliograph.capture.kernels import KernelFunction, KernelImage, Kernels
from heliograph.core.manifest import Digest
from heliograph.device.host import best_level, kernel_image
from heliograph.device.modules import load_module
from heliograph.errors import CaptureError, ModuleError
from heliograph.ops.launch import Kernel


@dataclass(frozen=True, slots=True)
class Image:
    family: str
    digest: Digest
    data: bytes


class Images:
    """Loads a family's module when the first of its functions is asked for."""

    def __init__(self, device: Device) -> None:
        self.level = best_level()
        self.images: list[Image] = []
        self.functions: list[tuple[Function, int]] = []  # with the index of their image
        self._device = device
        self._modules: dict[str, tuple[Module, int]] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def function(self, kernel: Kernel) -> Function:
        """The kernel's function on the device."""
        key = (kernel.family, kernel.name)
        if key not in self._numbers:
            module, image = self._module(kernel.family)
            self._numbers[key] = len(self.functions)
            self.functions.append((_find(module, kernel), image))
        return self.functions[self._numbers[key]][0]

    def number(self, family: str, name: str) -> int:
        """Index of a function that was asked for."""
        return self._numbers[family, name]

    def kernels(self) -> Kernels:
        """What was asked for, as it goes into a core."""
        return Kernels(
            tuple(
                KernelImage(image.data, image.family, f"heliograph host kernels {self.level}") for image in self.images
            ),
            tuple(
                KernelFunction(function.name, image, function.param_bytes, tuple(function.pointer_offsets))
                for function, image in self.functions
            ),
        )

    def _module(self, family: str) -> tuple[Module, int]:
        if family not in self._modules:
            data = kernel_image(self.level, family)
            digest = blake3(data).hexdigest()
            self._modules[family] = (load_module(self._device, digest, data), len(self.images))
            self.images.append(Image(family, digest, data))
        return self._modules[family]


def _find(module: Module, kernel: Kernel) -> Function:
    try:
        return module.function(kernel.name)
    except ModuleError as error:
        raise CaptureError(
            f"looking up kernel {kernel.name!r}",
            found=f"a module {kernel.family!r} with {', '.join(module.function_names())}",
            required="that function in it",
            hint="the ops and the kernel modules are of different versions: rebuild the package",
        ) from error
