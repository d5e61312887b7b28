"""A capture beside other threads of its process: it follows its own modules only, and two take turns."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from threading import Event

import pytest
from small_models import digest, mlp, mlp_spec
from torch import nn

from heliograph.capture import Recording, capture
from heliograph.capture.trail import Trail

SECONDS = 60


class Waits(nn.Module):
    """Its forward ends when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.leave = Event(), Event()

    def forward(self) -> None:
        self.entered.set()
        assert self.leave.wait(SECONDS)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def test_a_module_that_begins_in_another_thread_is_not_followed(pool: ThreadPoolExecutor) -> None:
    other = Waits()
    with Trail(nn.Module()) as trail:
        ended = pool.submit(other)
        assert other.entered.wait(SECONDS)
        module = trail.module
        other.leave.set()
        ended.result()
    assert module == ""


def test_captures_of_one_process_come_one_after_the_other(
    pool: ThreadPoolExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that want the same slot the second waits, and is the same core."""
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path / "home"))
    others = []

    def begin_another(recording: Recording) -> None:
        others.append(pool.submit(capture, mlp(), mlp_spec(), cores=tmp_path, name="second"))
        assert not wait(others, timeout=1).done

    first = capture(mlp(), mlp_spec(), cores=tmp_path, name="first", study=begin_another)
    assert digest(others[0].result(SECONDS)) == digest(first)
