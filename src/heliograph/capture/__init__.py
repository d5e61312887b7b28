"""The preparing side: a PyTorch model becomes a signed core.

Reading order:

- ``spec``           what to capture: entries, buckets, inputs, state
- ``record_host``    runs the model without computing, and turns each op into launches
- ``walk``           one run of the model through all buckets
- ``record_model``   both runs, and what they give: a ``recording`` of graphs, buffers and weights in this process
- ``draft``          a Recording becomes the files of a core
- ``checker``        a fresh process loads the draft and replays it
- ``export``         all of it in order: ``capture``

Beneath them:

- ``trail``          which module and line of the model is running
- ``values``         reads of values are refused
- ``foreign``        memory that is not the recording's is named
- ``functional``     for ops that write, the ops that do not
- ``storages``       which buffer each tensor lies in
- ``places``         which buffers a model and its buckets have
- ``buffers``        named places in regions
- ``arena``          the regions of a slot on the device
- ``tape``           what was recorded, node by node
- ``weights``        parameters: named, swapped, stored
- ``moved``          two runs have to agree
- ``census``         which words of kernel parameters are pointers; two captures have to agree
- ``classify``       what each word of a node is
- ``contents``       pointers in what is kept by value
- ``owned``          whose an address is
- ``words``          what one capture hands to the census, and its file
- ``export_graph``   ``record_export_graph``: one graph from a callable under stream capture
- ``owners``         what a graph keeps alive
- ``manifests``      the export and the replay manifest
- ``images``         kernel images for exactly the functions used
- ``environment``    fixed variables (torch-free)
- ``settings``       fixed settings of PyTorch
- ``examples``       inputs drawn from what the spec says about values
- ``cases``          the inputs of self-tests
- ``pools``          memory that graphs may point into
- ``provenance``     the record of how a core was made

May import torch. Must not import ``runtime``, ``models`` or anything above them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph.capture.export import capture
    from heliograph.capture.record_model import record
    from heliograph.capture.recording import Recording
    from heliograph.capture.spec import CaptureSpec, EntrySpec, Example, StateSpec, TensorSpec, TextSpec

__all__ = [
    "CaptureSpec",
    "EntrySpec",
    "Example",
    "Recording",
    "StateSpec",
    "TensorSpec",
    "TextSpec",
    "capture",
    "record",
]

_MODULES = {"capture": "export", "record": "record_model", "Recording": "recording"}


def __getattr__(name: str) -> object:
    """Public names on their first use: a command fixes its environment before anything here imports torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'spec')}"), name)
