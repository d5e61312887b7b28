"""A Llama from its files as CUDA devices run it: with plain weights, on the Triton kernels."""

from __future__ import annotations

import os
from dataclasses import replace

from heliograph.capture.spec import CaptureSpec
from heliograph.models.dequantise import dequantised
from heliograph.models.llama import Llama
from heliograph.models.load import LoadedModel, load_model
from heliograph.models.serving import Serving
from heliograph.ops import triton_ops  # noqa: F401  torch.ops.heliograph runs on CUDA tensors


def load_for_cuda(path: str | os.PathLike[str], *, serving: Serving | None = None) -> LoadedModel:
    """As ``load_model``, with packed weights dequantised to bf16. The model is on the CPU; nothing touches a GPU.

    Raises what ``load_model`` raises.
    """
    loaded = load_model(path, serving=serving)
    return replace(loaded, model=dequantised(loaded.model))


def make(path: str) -> tuple[Llama, CaptureSpec]:
    """Model and spec from a path: the factory ``Again("heliograph.models.load_cuda:make", (path,))`` of a capture."""
    loaded = load_for_cuda(path)
    return loaded.model, loaded.spec
