"""The kernel images that a capture's graphs use, by content, and their functions: exactly those, in first-use order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from blake3 import blake3

from heliograph._native import CudaDevice, CudaImages, Function, Module
from heliograph.capture.kernels import KernelFunction, KernelImage, Kernels
from heliograph.core.manifest import Digest
from heliograph.device.cubin import Variables, variables
from heliograph.errors import CaptureError

DYNAMIC_SHARED = 8  # function attribute: most dynamic shared memory, in bytes


@dataclass
class _Image:
    data: bytes
    digest: Digest
    library: str  # that it came from

    @property
    def family(self) -> str:
        """Its name: after its content, since cubins have none of their own."""
        return f"cubin-{self.digest[:12]}"

    @cached_property
    def variables(self) -> Variables:
        return variables(self.data)


class CudaKernels:
    """Numbers functions as nodes name them. Two images with the same bytes are one."""

    def __init__(self, images: CudaImages, device: CudaDevice) -> None:
        self._images = images
        self._device = device
        self._used: list[_Image] = []
        self._digests: dict[Digest, int] = {}
        self._by_number: dict[int, int] = {}
        self._numbers: dict[tuple[int, str], int] = {}
        self._functions: list[tuple[Function, int]] = []
        self._shared: list[int] = []
        self._variables: list[tuple[int, int, str]] | None = None

    def number(self, function: Function, shared: int) -> int:
        """The index of a node's function, which it launches with ``shared`` bytes of dynamic shared memory.

        CaptureError if no image is known that holds it.
        """
        key = (self._image(self._images.number(function)), function.name)
        if key not in self._numbers:
            self._numbers[key] = len(self._functions)
            self._functions.append((function, key[0]))
            self._shared.append(0)
        number = self._numbers[key]
        self._shared[number] = max(self._shared[number], shared)
        return number

    def name(self, number: int) -> tuple[Digest, str]:
        """The digest of a function's image and its name: what it is, in any process."""
        function, image = self._functions[number]
        return self._used[image].digest, function.name

    def variable(self, address: int) -> str | None:
        """The variable of a kernel image that an address lies in; None for any other address."""
        if self._variables is None:
            self._variables = [
                (*self._module(number).global_address(each.name), f"global {each.name} of {image.family}")
                for number, image in enumerate(self._used)
                for each in image.variables.named
            ]
        for start, size, name in self._variables:
            if start <= address < start + size:
                return name
        return None

    def _module(self, image: int) -> Module:
        """The module that an image became, through one of its functions."""
        return self._device.borrow_module(next(function for function, of in self._functions if of == image))

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those that were numbered, in order."""
        return tuple(function for function, _ in self._functions)

    def kernels(self) -> Kernels:
        """All that was numbered, with attributes and the contents of the images' variables as they are now."""
        images = tuple(self._kernel_image(number) for number in range(len(self._used)))
        functions = tuple(
            KernelFunction(function.name, image, function.param_bytes, attributes=_attributes(function, shared))
            for (function, image), shared in zip(self._functions, self._shared, strict=True)
        )
        return Kernels(images, functions)

    def _image(self, number: int) -> int:
        if number not in self._by_number:
            data = self._images.image(number)
            digest = blake3(data).hexdigest()
            if digest not in self._digests:
                self._digests[digest] = len(self._used)
                self._used.append(_Image(data, digest, self._images.library(number)))
            self._by_number[number] = self._digests[digest]
        return self._by_number[number]

    def _kernel_image(self, number: int) -> KernelImage:
        image = self._used[number]
        if image.variables.unnamed:
            section, size = image.variables.unnamed[0]
            raise CaptureError(
                f"keeping the variables of kernel image {image.family} ({image.library})",
                found=f"{size} bytes of {section} that no symbol names",
                required="variables with names, so that their contents can be restored",
                hint="leave the op that uses this kernel out of the capture",
            )
        contents = ((each.name, self._module(number).read_global(each.name)) for each in image.variables.named)
        return KernelImage(image.data, image.family, image.library, tuple(sorted(contents)))


def _attributes(function: Function, shared: int) -> tuple[tuple[int, int], ...]:
    """What was set on the function, with as much dynamic shared memory as its nodes take."""
    values = dict(function.attributes)
    if shared > values.get(DYNAMIC_SHARED, 0):
        values[DYNAMIC_SHARED] = shared
    return tuple(sorted(values.items()))
