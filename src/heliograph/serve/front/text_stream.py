"""Tokens of one row to text that may be shown: characters whole, stop strings never seen, nothing said twice.

Stop strings are found character by character, so that the answer does not depend on how its tokens fall: the row ends
at the first character that completes a stop string, and is cut where the longest one completed there begins. Text that
may be the beginning of one is held back until it is not (Knuth, Morris and Pratt: the longest such tail, a step a
character).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec


class PieceDecoder(Protocol):
    """``runtime.text.Decoder``."""

    def add(self, token: int) -> str: ...
    def end(self) -> str: ...


class StopString(msgspec.Struct, frozen=True):
    """One that is ready to be looked for, by any number of rows: to make it costs a step a character."""

    text: str
    falls: tuple[int, ...]  # length of the longest proper beginning of text[:i + 1] that also ends it

    @classmethod
    def of(cls, text: str) -> StopString:
        falls = [0] * len(text)
        length = 0
        for at in range(1, len(text)):
            while length and text[at] != text[length]:
                length = falls[length - 1]
            length += text[at] == text[length]
            falls[at] = length
        return cls(text, tuple(falls))


class TextStream:
    """``add`` tokens, ``take`` what may be shown. One row."""

    def __init__(self, decoder: PieceDecoder, stops: Sequence[StopString] = (), least: int = 0) -> None:
        """``least``: the text of so many tokens is not searched for stop strings."""
        self._decoder = decoder
        self._searches = [_Search(stop) for stop in stops]
        self._least = least
        self._tokens = 0
        self._held = ""  # may be the beginning of a stop string
        self._shown: list[str] = []  # decided, and not taken yet
        self.stopped = False  # a stop string came: no token after this one counts

    def add(self, token: int) -> bool:
        """Whether a stop string is complete now. Not to be called after that, nor after :meth:`end`."""
        self._tokens += 1
        self._feed(self._decoder.add(token), self._tokens > self._least)
        return self.stopped

    def end(self) -> bool:
        """No more tokens: what was held back is text, unless its end completes a stop string."""
        if not self.stopped:
            self._feed(self._decoder.end(), self._tokens > self._least)
        if not self.stopped:
            self._shown.append(self._held)
            self._held = ""
        return self.stopped

    def take(self) -> str:
        """The text that was decided since the last call."""
        text = "".join(self._shown)
        self._shown.clear()
        return text

    def _feed(self, text: str, search: bool) -> None:
        if not search or not self._searches:
            self._shown.append(text)
            return
        for at, character in enumerate(text):
            complete = max(search.step(character) for search in self._searches)
            if complete:
                self.stopped = True
                whole = self._held + text[: at + 1]
                self._shown.append(whole[: len(whole) - complete])
                self._held = ""
                return
        whole = self._held + text
        kept = len(whole) - max(search.matched for search in self._searches)
        self._shown.append(whole[:kept])
        self._held = whole[kept:]


class _Search:
    """How far a row has come in one stop string: ``matched`` characters of it end the text so far."""

    def __init__(self, stop: StopString) -> None:
        self._stop = stop
        self.matched = 0

    def step(self, character: str) -> int:
        """The length of the stop string if this character completes it, else 0."""
        text, falls = self._stop.text, self._stop.falls
        while self.matched and text[self.matched] != character:
            self.matched = falls[self.matched - 1]
        self.matched += text[self.matched] == character
        return self.matched if self.matched == len(text) else 0
