"""What is mapped into this process."""

from __future__ import annotations

from pathlib import Path


def torch_loaded() -> bool:
    """Whether a library of torch is mapped into this process."""
    return "libtorch" in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
