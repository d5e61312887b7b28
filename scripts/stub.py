"""The stub of the native extension, generated from the built module.

python scripts/stub.py           prints what differs from src/heliograph/_native.pyi, exits 1 if anything does
python scripts/stub.py --write   writes src/heliograph/_native.pyi
"""

from __future__ import annotations

import difflib
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
STUB = ROOT / "src" / "heliograph" / "_native.pyi"


def generate() -> str:
    """The stub's text, formatted as the rest of the source is."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "_native.pyi"
        patterns = ROOT / "native" / "stub_patterns.nb"
        tool = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "heliograph._native", "-p", patterns, "-o", made]
        subprocess.run(tool, check=True)
        ruff = [sys.executable, "-m", "ruff", "format", "--quiet", "--config", ROOT / "pyproject.toml", made]
        subprocess.run(ruff, check=True)
        return made.read_text()


def main() -> int:
    text = generate()
    if "--write" in sys.argv[1:]:
        STUB.write_text(text)
        return 0
    changes = list(difflib.unified_diff(STUB.read_text().splitlines(), text.splitlines(), "committed", "built"))
    print("\n".join(changes))
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
