"""The graphs of a core in this process: rebuilt in stored order, compared with what is stored, instantiated.

A template lives while its graph is built; afterwards the executable stands for it. Graphs are built when first
asked for, so a start pays for those that it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from heliograph._native import Device, Executable, Function, Node, Template, build_template
from heliograph.core.manifest import Core
from heliograph.errors import DriverError

_KERNEL, _MEMCPY, _MEMSET = 0, 1, 2


class Catalogue:
    """Builds and keeps executables by graph number. Not safe for two threads at once: the program holds its lock."""

    def __init__(
        self, device: Device, core: Core, columns: Mapping[str, memoryview], functions: Sequence[Function]
    ) -> None:
        self._device = device
        self._core = core
        self._columns = dict(columns)
        self.functions = tuple(functions)
        self._executables: dict[int, Executable] = {}

    def build(self, graph: int) -> Template:
        """The graph's template as the driver took it, not compared. The caller closes it."""
        return build_template(self._device, self._columns, graph, self.functions)

    def keep(self, graph: int, executable: Executable) -> None:
        """Takes over an executable that the caller instantiated."""
        self._executables[graph] = executable

    def rebuild(self, graph: int) -> Template:
        """The graph's template, compared with the core. The caller closes it."""
        template = self.build(graph)
        try:
            self.compare(template, graph)
        except BaseException:
            template.close()
            raise
        return template

    def executable(self, graph: int) -> Executable:
        """The graph's executable, built on first use."""
        if graph not in self._executables:
            template = self.rebuild(graph)
            try:
                executable = template.instantiate(self._core.graphs[graph].flags)
            finally:
                template.close()
            self._executables[graph] = executable
            self._expect(graph, "flags read back", executable.flags, self._core.graphs[graph].flags)
        return self._executables[graph]

    def built(self, graph: int) -> bool:
        return graph in self._executables

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

    def compare(self, template: Template, graph: int) -> None:
        """Reads a template back from the driver: counts, then node by node and edge by edge. DriverError names the
        first difference."""
        core, columns = self._core, self._columns
        first, end = _range(columns["graph.nodes"], graph)
        self._expect(graph, "nodes", template.node_count, end - first)
        self._expect(graph, "nodes as core.json counts them", template.node_count, core.graphs[graph].nodes)
        self._expect(graph, "edges", template.edge_count, core.graphs[graph].edges)
        stored = _StoredNodes(core, columns)
        for number, node in enumerate(template.nodes()):
            self._expect(graph, f"node {number}", _described(node), stored.described(first + number))
        self._expect(graph, "edges in order", template.edges(), _stored_edges(columns, graph))

    def _expect(self, graph: int, what: str, found: object, required: object) -> None:
        if found != required:
            raise DriverError(
                f"rebuilding graph {self._core.graphs[graph].name}",
                found=f"{what}: {found!r}",
                required=f"{required!r}, as captured",
                hint="the driver does not keep what it was given: please report it with this core",
            )


def _range(offsets: memoryview, index: int) -> tuple[int, int]:
    words = offsets.cast("I")
    return words[index], words[index + 1]


def _described(node: Node) -> tuple[object, ...]:
    """What decides what a node does, in the form that ``_StoredNodes.described`` gives."""
    if node.kind == _KERNEL:
        name = None if node.function is None else node.function.name
        return (_KERNEL, name, node.grid, node.block, node.shared_bytes, node.params)
    if node.kind == _MEMSET:
        return (_MEMSET, node.address, node.value, node.size)
    if node.kind == _MEMCPY:
        return (_MEMCPY, node.address, node.source, node.size)
    return (node.kind,)


class _StoredNodes:
    """Reads nodes from the columns of graphs.safetensors."""

    def __init__(self, core: Core, columns: Mapping[str, memoryview]) -> None:
        def words(name: str) -> memoryview:
            return columns[name].cast("I")

        def longs(name: str) -> memoryview:
            return columns[name].cast("Q")

        self._names = tuple(function.name for function in core.functions)
        self._kind, self._row = columns["node.kind"], words("node.row")
        self._function, self._shared = words("kernel.function"), words("kernel.shared")
        self._grid, self._block = words("kernel.grid"), words("kernel.block")
        self._params, self._bytes = longs("kernel.params"), columns["param.bytes"]
        self._memset = longs("memset.address"), words("memset.value"), words("memset.element"), longs("memset.width")
        self._height, self._pitch = longs("memset.height"), longs("memset.pitch")
        self._copy = longs("copy.to"), longs("copy.from"), longs("copy.bytes")

    def described(self, node: int) -> tuple[object, ...]:
        kind, row = self._kind[node], self._row[node]
        if kind == _KERNEL:
            return (
                _KERNEL,
                self._names[self._function[row]],
                tuple(self._grid[3 * row : 3 * row + 3]),
                tuple(self._block[3 * row : 3 * row + 3]),
                self._shared[row],
                bytes(self._bytes[self._params[row] : self._params[row + 1]]),
            )
        if kind == _MEMSET:
            address, value, element, width = (column[row] for column in self._memset)
            return (_MEMSET, address, value, element * width * self._height[row])
        if kind == _MEMCPY:
            return (_MEMCPY, *(column[row] for column in self._copy))
        return (kind,)


def _stored_edges(columns: Mapping[str, memoryview], graph: int) -> list[tuple[int, int, bytes]]:
    """The graph's edges in the order in which a driver states them: by target, then source."""
    first, end = _range(columns["graph.edges"], graph)
    source, target, data = columns["edge.from"].cast("I"), columns["edge.to"].cast("I"), columns["edge.data"]
    edges = [(source[at], target[at], bytes(data[8 * at : 8 * at + 8])) for at in range(first, end)]
    return sorted(edges, key=lambda edge: (edge[1], edge[0]))
