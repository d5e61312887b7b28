"""A model is made by a function of a file, in this process and in a second one; what goes wrong is told as it was."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from torch import nn

from heliograph.capture import again
from heliograph.capture.again import Again, second_capture
from heliograph.errors import CaptureError, UsageError

ROOT = Path(__file__).parents[2]
MODEL = """
from torch import nn
from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec
from neighbour_of_random import WIDTH

def make():
    entry = EntrySpec("step", ({},), {"x": TensorSpec((8,), "f32")}, lambda m, x: {"y": m(x)})
    return nn.Linear(8, WIDTH).eval(), CaptureSpec("linear", (entry,))

def raising():
    raise ValueError("no weights today")

def needing(argument):
    pass

def wrong():
    return CaptureSpec("linear", ())

def lasting():
    __import__("time").sleep(60)

def ending():
    import os
    print("gone", file=__import__("sys").stderr)
    os._exit(9)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model's file with the name of a standard module, beside a module that it imports."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "neighbour_of_random.py").write_text("WIDTH = 4\n")
    file = tmp_path / "random.py"
    file.write_text(MODEL)
    return file


def line_of(text: str) -> int:
    return MODEL.splitlines().index(text) + 1


def test_a_file_imports_its_neighbours_and_takes_the_name_of_no_other_module(file: Path) -> None:
    model, _ = Again(f"{file}:make").make()
    assert isinstance(model, nn.Linear)
    assert model.out_features == 4
    assert sys.modules["random"] is random
    assert sys.path[0] == str(file.parent)


@pytest.mark.parametrize(
    ("function", "said", "line"),
    [
        ("raising", "ValueError: no weights today", '    raise ValueError("no weights today")'),
        ("needing", "TypeError", "def needing(argument):"),
    ],
)
def test_what_a_factory_raises_is_told_with_its_line(file: Path, function: str, said: str, line: str) -> None:
    with pytest.raises(CaptureError) as refused:
        Again(f"{file}:{function}").make()
    assert said in refused.value.found
    assert f"{file}:{line_of(line)}" in refused.value.found
    assert isinstance(refused.value.__cause__, (ValueError, TypeError))


@pytest.mark.parametrize("content", ["def make(:", "import no_such_module", "1 / 0"])
def test_a_file_that_cannot_be_run_is_told_with_its_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "broken.py").write_text(content)
    with pytest.raises(CaptureError) as refused:
        Again(f"{tmp_path / 'broken.py'}:make").make()
    assert str(tmp_path / "broken.py") in refused.value.found


@pytest.mark.parametrize("function", ["raising", "wrong", "missing"])
def test_the_second_process_hands_its_error_over_as_it_was(file: Path, function: str) -> None:
    factory = Again(f"{file}:{function}")
    with pytest.raises((CaptureError, UsageError)) as here:
        factory.make()
    with pytest.raises(type(here.value)) as there:
        second_capture(factory, 0)
    assert str(there.value) == str(here.value)


def test_a_second_process_that_dies_is_told_by_its_last_line(file: Path) -> None:
    with pytest.raises(CaptureError) as refused:
        second_capture(Again(f"{file}:ending"), 0)
    assert refused.value.found == "exit status 9: gone"
    assert again.REFUSED != 9


def test_a_second_process_ends_with_the_first(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1)
    with pytest.raises(CaptureError) as refused:
        second_capture(Again(f"{file}:lasting"), 0)
    assert "exit status 1" in refused.value.found


def test_the_classifier_of_the_examples_is_captured_by_the_command(tmp_path: Path) -> None:
    factory = f"{ROOT / 'examples' / 'classifier.py'}:classifier"
    command = [sys.executable, "-m", "heliograph", "capture", factory, "--cores", str(tmp_path), "--name", "own"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "own" / "core.json").is_file()


@pytest.mark.parametrize("example", ["classifier.py", "classify.py"])
def test_an_example_without_arguments_says_its_usage(example: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(ROOT / "examples" / example)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("usage: ")
    assert len(ended.stderr.splitlines()) == 1
