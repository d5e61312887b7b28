"""The drivers, as the rest of the package uses them.

Owns: opening devices, finding and loading kernel images, graphs and what they hold. Modules, in reading order:

- ``host``: opens the host device; where the shipped kernel images are.
- ``cuda``: opens a CUDA device.
- ``open``: the one of the two that a core is for.
- ``modules``: a kernel image becomes a module: sealed, hashed, loaded.
- ``flags``: instantiation flags by name, and their one source.
- ``graph``: a recorded graph, its executable, its launches.
- ``holdings``: what a graph keeps alive, and for how long.
- ``pool``: memory with the object that keeps it, as graphs are handed it.
- ``ending``: a process that works on a device for another one ends with it.

The classes of the drivers themselves (Device, Stream, Template, ...) are in ``heliograph._native``. Imports neither
torch nor numpy, and nothing of ``core`` or ``ops``.
"""
