"""A model's tensors, handed out one by one under the names that the model uses; each is to be taken exactly once.

The model's constructor is the only list of what a model has. A tensor that it asks for and the files lack, one of
another shape, or one that nobody took stops the load and is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from blake3 import blake3
from torch import Tensor, nn

from heliograph.errors import ModelFileError, UnsupportedModelError

PLAIN: Mapping[str, torch.dtype] = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its logical shape, its layout (f32, bf16, f16, q8_0, q4_1) and how to read its bytes."""

    shape: tuple[int, ...]
    layout: str
    read: Callable[[], bytearray]


class Weights:
    """``name_in_file`` turns a name of the model (``layers.0.query.weight``) into the one in the files."""

    def __init__(
        self, model: str, stored: Mapping[str, StoredTensor], name_in_file: Callable[[str], str | None]
    ) -> None:
        self._model = model
        self._stored = stored
        self._name_in_file = name_in_file
        self._taken: set[str] = set()

    def holds(self, name: str) -> bool:
        """Whether the files have this tensor."""
        return self._name_in_file(name) in self._stored

    def matrix(self, name: str, rows: int, columns: int) -> nn.Parameter:
        """A weight matrix as the files store it. A quantised one is u8[rows, bytes of a row] and carries its layout
        and logical shape; every one carries the digest of its source bytes."""
        stored = self._take(name, (rows, columns))
        data = stored.read()
        if stored.layout in PLAIN:
            value = torch.frombuffer(data, dtype=PLAIN[stored.layout]).view(rows, columns)
            return _parameter(value, data, {})
        value = torch.frombuffer(data, dtype=torch.uint8).view(rows, -1)
        return _parameter(value, data, {"heliograph_layout": stored.layout, "heliograph_shape": (rows, columns)})

    def vector(self, name: str, size: int) -> nn.Parameter:
        """A norm's weight or a bias in f32; bf16 and f16 are widened, which loses nothing."""
        stored = self._take(name, (size,))
        if stored.layout not in PLAIN:
            raise UnsupportedModelError(
                f"reading {self._model}", found=f"tensor {self._name_in_file(name)!r} quantised as {stored.layout}",
                required="norms and biases in f32, bf16 or f16", hint="quantise the matrices only",
            )  # fmt: skip
        data = stored.read()
        return _parameter(torch.frombuffer(data, dtype=PLAIN[stored.layout]).float(), data, {})

    def same(self, name: str, other: str) -> None:
        """Takes ``name``, which must be a copy of ``other`` that the model has taken already: a tied head that the
        files hold as well."""
        stored = self._stored[self._file_name(other)]
        copy = self._take(name, stored.shape)
        if copy.layout != stored.layout or blake3(copy.read()).digest() != blake3(stored.read()).digest():
            raise self._error(
                f"tensor {self._name_in_file(name)!r} that differs from {self._name_in_file(other)!r}",
                "equal ones, since the configuration ties them", "correct tie_word_embeddings or the weights",
            )  # fmt: skip

    def finish(self) -> None:
        """Refuses tensors that the model did not take."""
        left = sorted(self._stored.keys() - self._taken)
        if left:
            raise self._error(
                f"{len(left)} tensors that the model does not use, the first {left[0]!r}", "each tensor used once",
                "the files belong to another architecture, or to a variant of it that is not built",
            )  # fmt: skip

    def _take(self, name: str, shape: tuple[int, ...]) -> StoredTensor:
        key = self._file_name(name)
        stored = self._stored[key]
        if key in self._taken:
            raise self._error(f"tensor {key!r} used twice", "each tensor used once", "report this as a fault")
        if stored.shape != shape:
            raise self._error(
                f"tensor {key!r} of shape {stored.shape}", f"shape {shape}", "the files and the configuration disagree"
            )
        self._taken.add(key)
        return stored

    def _file_name(self, name: str) -> str:
        key = self._name_in_file(name)
        if key is None or key not in self._stored:
            raise self._error(
                f"no tensor {key or name!r}", "every tensor of the model", "the files are incomplete: fetch them again"
            )
        return key

    def _error(self, found: str, required: str, hint: str) -> ModelFileError:
        return ModelFileError(f"reading {self._model}", found=found, required=required, hint=hint)


def _parameter(value: Tensor, source: bytearray, marks: Mapping[str, object]) -> nn.Parameter:
    parameter = nn.Parameter(value, requires_grad=False)
    for name, mark in {**marks, "heliograph_source": blake3(source).hexdigest()}.items():
        setattr(parameter, name, mark)
    return parameter
