"""graphs.safetensors as bytes: the header rules, and nothing about what the columns mean."""

from __future__ import annotations

from collections.abc import Mapping


def read_columns(data: bytes | memoryview) -> dict[str, memoryview]:
    """Each column as a read-only memoryview of bytes into ``data``. FormatError for anything but the one valid form."""
    raise NotImplementedError


def write_columns(columns: Mapping[str, bytes]) -> bytes:
    """The file for columns given as little-endian bytes."""
    raise NotImplementedError
