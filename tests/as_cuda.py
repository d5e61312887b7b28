"""A host core said anew for a CUDA device: the same kernels and graphs, whose images the fake driver runs.

What a core computes is then the same on both devices, bit for bit, so a test can compare them.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from heliograph.core.format import CHUNK_BYTES
from heliograph.core.layout import chunk_count
from heliograph.core.rules.content import held_in_memory
from heliograph.core.templates import GraphTemplate, KernelNode, decode_catalogue
from heliograph.core.verify import VerifiedCore
from tiny_core import TinyCore, digest
from tiny_cuda_core import TARGET, as_cuda_image


def as_cuda(verified: VerifiedCore) -> TinyCore:
    """Its parts, signed by a key of its own; the whole image of the weights is in memory."""
    core = verified.core
    blobs = {name: verified.blob(name) for name in held_in_memory(core)}
    image = weights_image(verified)
    blobs |= {part.blob: image[part.offset : part.offset + part.size] for part in core.weights.slices}
    modules = []
    for module in core.modules:
        data = as_cuda_image(blobs.pop(module.blob))
        name = digest(data)
        blobs[name] = data
        modules.append(msgspec.structs.replace(module, blob=name, family=f"cubin-{name[:12]}", size=len(data)))
    core = msgspec.structs.replace(
        core,
        target=TARGET,
        modules=tuple(modules),
        functions=tuple(msgspec.structs.replace(function, pointers=()) for function in core.functions),
    )
    graphs = tuple(threaded(graph) for graph in decode_catalogue(verified.columns))
    return TinyCore(core, verified.provenance, graphs, blobs, image, name=verified.name)


def weights_image(verified: VerifiedCore) -> bytes:
    image = bytearray(verified.core.weights.size)
    with memoryview(image) as whole:
        for chunk in range(chunk_count(len(image))):
            with whole[chunk * CHUNK_BYTES : (chunk + 1) * CHUNK_BYTES] as into:
                verified.read_chunk(chunk, into)
    return bytes(image)


def threaded(graph: GraphTemplate) -> GraphTemplate:
    """Blocks of 32 threads, parameters as one buffer."""
    nodes = tuple(
        replace(node, block=(32, 1, 1), form=1) if isinstance(node, KernelNode) else node for node in graph.nodes
    )
    return replace(graph, nodes=nodes)
