"""Owners that tell what they saw when they were let go."""

from __future__ import annotations

from heliograph._native import Stream


class Witness:
    """An owner that writes down, each time it is finalised, whether all streams were idle."""

    def __init__(self, *streams: Stream) -> None:
        self.streams = streams
        self.seen: list[bool] = []
        self._report = self.seen  # outlives the owner in whoever asked for `seen`

    def __del__(self) -> None:
        self._report.append(all(stream.query() for stream in self.streams))


class Plain:
    """An owner that can be referred to weakly."""
