"""Stream capture through PyTorch: what ``record_export_graph`` needs of a stream, for work that PyTorch submits.

PyTorch has to begin and end the capture itself, so that its allocator and its random numbers know of it. The graph it
makes is kept (``keep_graph=True``) and never instantiated by it.
"""

from __future__ import annotations

import torch

from heliograph._native import CudaDevice, Template
from heliograph.capture.cuda.pools import FrameworkPool
from heliograph.errors import GraphStateError


class TorchCapture:
    """One capture on one PyTorch stream, with what PyTorch allocates in ``pool``. Hand ``graph`` in as an owner."""

    def __init__(self, device: CudaDevice, stream: torch.cuda.Stream, pool: FrameworkPool) -> None:
        self.graph = torch.cuda.CUDAGraph(keep_graph=True)
        self._device = device
        self._stream = stream
        self._pool = pool

    @property
    def capturing(self) -> bool:
        return self._device.capture_info(self._stream.cuda_stream)[0] != 0

    def nodes(self) -> int:
        """Nodes of the capturing graph so far."""
        return self._device.capture_info(self._stream.cuda_stream)[1]

    def begin_capture(self) -> None:
        """PyTorch's current stream must be this capture's."""
        self.graph.capture_begin(pool=self._pool.id, capture_error_mode="thread_local")

    def end_capture(self) -> Template:
        """The graph as it was captured. It stays PyTorch's, and ours while ``graph`` is owned."""
        try:
            self.graph.capture_end()
        except RuntimeError as error:
            raise GraphStateError(
                "ending a capture",
                found=str(error).splitlines()[0],
                required="a capture in which every call was allowed",
                hint="the model waited for the GPU, read a value back, or used another stream without joining it",
            ) from error
        return self._device.borrow_template(self.graph.raw_cuda_graph())
