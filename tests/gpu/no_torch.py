"""Imported by scripts that replay: an import of torch fails from here on, also where it is installed."""

from __future__ import annotations

import sys

sys.modules["torch"] = None  # type: ignore[assignment]
