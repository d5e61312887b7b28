"""The graphs of a core in this process: rebuilt in stored order, compared with what is stored, instantiated.

A template lives while its graph is built; afterwards the executable stands for it. Graphs are built when first
asked for, so a start pays for those that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph._native import Device, Executable, Function, Template, build_template, compare_template
from heliograph.core.manifest import Core
from heliograph.errors import DriverError


class Catalogue:
    """Builds and keeps executables by graph number. Not safe for two threads at once: the program holds its lock."""

    def __init__(
        self, device: Device, core: Core, columns: Mapping[str, memoryview], functions: Sequence[Function]
    ) -> None:
        self._device = device
        self._core = core
        self._columns = columns
        self.functions = tuple(functions)
        self._executables: dict[int, Executable] = {}

    def build(self, graph: int) -> Template:
        """The graph's template as the driver took it, not compared. The caller closes it."""
        return build_template(self._device, dict(self._columns), graph, self.functions)

    def compare(self, template: Template, graph: int) -> None:
        """Reads a template back from the driver; DriverError names the first node or edge that is not as stored."""
        compare_template(template, dict(self._columns), graph, self.functions)

    def executable(self, graph: int) -> Executable:
        """The graph's executable: rebuilt, compared and instantiated on first use."""
        if graph not in self._executables:
            stated = self._core.graphs[graph]
            template = self.build(graph)
            try:
                self.compare(template, graph)
                executable = template.instantiate(stated.flags)
            finally:
                template.close()
            if executable.flags != stated.flags:
                raise DriverError(
                    f"instantiating graph {stated.name}",
                    found=f"flags {executable.flags} read back",
                    required=f"{stated.flags}, as captured",
                    hint="the driver does not keep what it was given: report it with this core",
                )
            self.keep(graph, executable)
        return self._executables[graph]

    def keep(self, graph: int, executable: Executable) -> None:
        """Takes over an executable."""
        self._executables[graph] = executable

    def release(self, graph: int) -> None:
        """Waits for the executable's launches and gives it back."""
        executable = self._executables.pop(graph, None)
        if executable is not None:
            executable.close()

    def close(self) -> None:
        """Gives the executables back and lets go of the functions, and so of their modules."""
        while self._executables:
            self.release(next(reversed(self._executables)))
        self.functions = ()
