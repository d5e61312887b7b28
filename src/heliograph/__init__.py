"""Heliograph: capture a PyTorch model's device work once, serve it from a process without PyTorch.

Packages, in reading order; each may import those further down only:

- ``cli``: the command ``heliograph``.
- ``serve``: HTTP from two processes, a front and a worker. Neither torch nor numpy.
- ``models``: PyTorch models and loaders of their files (torch).
- ``capture``: runs a model, records its graphs, writes a draft (torch). Independent of ``runtime``.
- ``runtime``: maps a verified core, rebuilds its graphs, replays them. Neither torch nor numpy.
- ``core``: the artifact: format, writing, signing, verifying.
- ``ops``: what each op means, and its kernels' parameter blocks.
- ``device``: the drivers, as Python uses them.
- ``errors``: the whole error tree.
- ``_native``: the C++ extension (``native/``).

Importing this package loads the extension and compares its schema with ours; nothing else.
"""

from __future__ import annotations

from heliograph import _native
from heliograph.errors import SchemaMismatchError

# Raised with every change of what Python and the extension say to each other, here and in CMakeLists.txt. (No type
# annotation: `typing` is most of the time that importing this package would take.)
SCHEMA = 1

if _native.SCHEMA != SCHEMA:
    raise SchemaMismatchError(
        "importing heliograph",
        found=f"a native extension of schema {_native.SCHEMA}",
        required=f"schema {SCHEMA}, which this Python code speaks",
        hint="rebuild the extension: pip install . (in a checkout: make build)",
    )
