"""What a server prints is written by a thread: who does not read it, or has gone, holds nothing up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from heliograph.cli import serve
from heliograph.cli.serve import Lines, Out, Table
from heliograph.serve.front.start import Answered

REQUEST = Answered("id-1", "POST", "/v1/\x1b[2J", 200, 5_000_000, 7, 3, 2_000_000, ("stop",))


@contextmanager
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Standard output is a pipe; gives its other end."""
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "w") as stdout:
        monkeypatch.setattr("sys.stdout", stdout)
        yield ours
    os.close(ours)


def test_lines_come_in_order_and_all_of_them_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(monkeypatch) as ours:
        with Out() as out:
            for number in range(100):
                out.say(str(number))
        assert os.read(ours, 1 << 16).decode().split() == [str(number) for number in range(100)]


def test_a_reader_that_stops_holds_nothing_up_and_is_told_what_it_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LINES", 10)
    line = "x" * 65536  # as much as a pipe holds
    with piped(monkeypatch) as ours, Out() as out:
        for _ in range(100):
            out.say(line)  # would wait for ever
        held = b""
        while b"lost" not in held:
            out.say("on")
            held += os.read(ours, 1 << 20)
    assert held.count(line.encode()) < 100


def test_a_reader_that_has_gone_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    with os.fdopen(theirs, "w") as stdout, monkeypatch.context() as patch:
        patch.setattr("sys.stdout", stdout)
        with Out() as out:
            out.say("one")
            out.say("two")
        assert not out._thread.is_alive()


def test_without_an_output_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", None)
        with Out() as out:
            out.say("one")
        assert not out._thread.is_alive()


def test_a_request_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with piped(monkeypatch) as ours:
        with Out() as out:
            Lines(out).answered(REQUEST)
            Table(out).answered(REQUEST)
        for_programs, for_people = os.read(ours, 1 << 16).decode().splitlines()
    assert json.loads(for_programs) == {
        "event": "request", "id": "id-1", "method": "POST", "path": "/v1/\x1b[2J", "status": 200,
        "nanoseconds": 5_000_000, "prompt_tokens": 7, "generated_tokens": 3, "first_token": 2_000_000, "ends": ["stop"],
    }  # fmt: skip
    assert for_people == r"POST /v1/\u001b[2J 200  5.0 ms, 7 + 3 tokens, the first after 2.0  id-1"
