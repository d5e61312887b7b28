"""The line that is stored of a model: a module and a file of it, never a folder."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.capture.trail import stored_line


@pytest.mark.parametrize(
    ("module", "file", "line"),
    [
        ("package.part", "/home/ada/package/part.py", "package/part.py:1"),
        ("__main__", "/home/ada/run.py", "run.py:1"),
        ("/home/ada/secret/made.by", "/home/ada/made.py", "made.py:1"),
        ("package.part", "/home/ada/odd\udcff.py", "package/odd\\udcff.py:1"),
    ],
)
def test_a_stored_line_is_text_without_a_folder(module: str, file: str, line: str) -> None:
    scope: dict[str, Any] = {"__name__": module}
    exec(compile("import sys; frame = sys._getframe()", file, "exec"), scope)
    assert stored_line(scope["frame"]) == line
