"""Rotary position embedding: its settings and the frequencies that they mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: long wavelengths are stretched by ``factor``, short ones kept, those between blended."""

    factor: float
    low: float
    high: float
    original_context: int


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Every wavelength is stretched by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True)
class Rope:
    """``interleaved``: pairs are (0, 1), (2, 3) …, as GGUF Llama files order q and k; else (0, half), (1, half + 1) …
    ``factors``: what each frequency is divided by, one a pair, where the model's files state them."""

    base: float
    interleaved: bool
    scaling: Llama3Scaling | LinearScaling | None = None
    factors: tuple[float, ...] = ()

    def frequencies(self, width: int) -> Tensor:
        """f32[width / 2], in the arithmetic that the models were trained with."""
        frequencies = 1.0 / (self.base ** (torch.arange(0, width, 2, dtype=torch.float32) / width))
        if self.factors:
            frequencies = frequencies / torch.tensor(self.factors, dtype=torch.float32)
        match self.scaling:
            case LinearScaling(factor):
                return frequencies / factor
            case Llama3Scaling():
                return _llama3(frequencies, self.scaling)
            case None:
                return frequencies


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / frequencies
    blend = (scaling.original_context / wavelengths - scaling.low) / (scaling.high - scaling.low)
    blended = (1 - blend) * frequencies / scaling.factor + blend * frequencies
    stretched = torch.where(wavelengths > scaling.original_context / scaling.low, frequencies / scaling.factor, blended)
    return torch.where(wavelengths < scaling.original_context / scaling.high, frequencies, stretched)
