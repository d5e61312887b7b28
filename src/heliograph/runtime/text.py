"""Text and tokens of a core: encoding, chat templates, decoding token by token.

A tokenizer is reduced to the bytes of each token, so that text can be given out as soon as its bytes are complete:
a character split over tokens is held back, never replaced.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from tokenizers import AddedToken, Tokenizer

from heliograph.errors import ModelFileError, UnsupportedModelError, UsageError
from heliograph.runtime.template import ChatTemplate, Process, stop

if TYPE_CHECKING:
    from heliograph.core.verify import VerifiedCore
    from heliograph.core.verify_text import VerifiedText

# Characters that mark nothing in any text meant for interchange (Unicode 23.7).
NONCHARACTERS = tuple(chr(code) for code in range(0xFDD0, 0xFDF0))
BYTE = re.compile("<0x([0-9A-Fa-f]{2})>")  # how SentencePiece spells one
SHRINK = 4  # characters of which Unicode's normal forms make one at most
Message = Mapping[str, object]


class TextSource(Protocol):
    """What a model says about text; ``core.json`` and a capture spec both hold it."""

    @property
    def bos(self) -> int: ...
    @property
    def eos(self) -> tuple[int, ...]: ...
    @property
    def bos_text(self) -> str: ...
    @property
    def eos_text(self) -> str: ...
    @property
    def vocabulary(self) -> int: ...


class Text:
    """The text face of a core. Threads may share it; a Decoder belongs to one sequence."""

    def __init__(
        self, source: TextSource, tokenizer: bytes, chat_template: str, renderer: Process | None = None
    ) -> None:
        """``renderer``: see ``ChatTemplate``. It is ended if there is no template."""
        if renderer is not None and not chat_template:
            stop(renderer)
        # Its process starts while the tokenizer is read.
        self._template = ChatTemplate(chat_template, renderer) if chat_template else None
        self._tokenizer = read_tokenizer(tokenizer)
        self._pieces = Pieces(self._tokenizer)
        self.bos, self.bos_text = source.bos, source.bos_text
        self.eos, self.eos_text = frozenset(source.eos), source.eos_text
        self.vocabulary = source.vocabulary
        self._controls = sorted(
            (token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special),
            key=len, reverse=True,
        )  # fmt: skip
        self._by_mark: dict[str, Marked] = {}

    @classmethod
    def of(cls, verified: VerifiedCore | VerifiedText, renderer: Process | None = None) -> Text:
        """The text face of a verified core."""
        text = verified.core.text
        if text is None:
            raise UsageError(
                f"reading the tokenizer of {verified.name}", found="a core of no language model",
                required="a core with a tokenizer", hint="use replay for other models",
            )  # fmt: skip
        return cls(text, verified.blob(text.tokenizer), verified.blob(text.chat_template).decode("utf-8"), renderer)

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text, with those that the tokenizer puts around any text. Control tokens in it count."""
        return _encode(self._tokenizer, text, around=True)

    def fewest(self, text: str) -> int:
        """How many tokens a text has at least, told from its length alone; to encode a long one takes seconds.

        A normaliser that takes characters away altogether is not reckoned with, nor white space that control tokens
        swallow: a text that is mostly that may have fewer."""
        return -(-len(text) // self._longest)

    @cached_property
    def _longest(self) -> int:
        """Characters of a text that one token stands for at most. Spelled, a byte is at least a character."""
        longest = max(map(len, self._tokenizer.get_vocab(with_added_tokens=True)))
        return longest * (1 if self._tokenizer.normalizer is None else SHRINK)

    def render(
        self, messages: Sequence[Message], *, tools: Sequence[Message] | None = None, reply: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:  # fmt: skip
        """A conversation as the model's template writes it; ``reply`` opens the assistant's turn."""
        if self._template is None:
            raise UsageError(
                "rendering a conversation", found="a model without a chat template", required="a chat template",
                hint="give the prompt as plain text (--raw)",
            )  # fmt: skip
        if not messages:
            raise UsageError(
                "rendering a conversation", found="no messages", required="at least one message", hint="add a message"
            )
        return self._template.render({
            **(variables or {}),
            "messages": messages, "tools": tools or None, "add_generation_prompt": reply,
            "bos_token": self.bos_text, "eos_token": self.eos_text,
        })  # fmt: skip

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[Message] | None = None, reply: bool = True,
        variables: Mapping[str, object] | None = None, check: Callable[[str], None] = lambda rendered: None,
    ) -> list[int]:  # fmt: skip
        """Tokens of a conversation. ``check`` is shown it before it is encoded, and may raise. Only the template makes
        control tokens: one that stands in a message, a tool or a variable stays text. A mark that no message holds
        tells them apart: it is put into theirs, and around the template's."""
        given = {"messages": messages, "tools": tools, "variables": dict(variables or {})}
        strings = tuple(_strings(given))
        mark = next((mark for mark in NONCHARACTERS if not any(mark in string for string in strings)), None)
        if mark is None:
            raise UsageError(
                "encoding a conversation", found="every Unicode noncharacter", required="text for interchange",
                hint="remove U+FDD0 to U+FDEF from the messages",
            )  # fmt: skip
        marked = self._marked(mark)
        if held := [control for control in self._controls if any(control in string for string in strings)]:
            messages, tools, variables = (_cut(part, held, mark) for part in given.values())
        rendered = self.render(messages, tools=tools, reply=reply, variables=variables)
        check(rendered.replace(mark, ""))
        return marked.encode(self._mark(rendered, mark))

    def decode(self, ids: Iterable[int], *, controls: bool = False, after: Iterable[int] = ()) -> str:
        """The text of tokens; control tokens are left out unless asked for. ``after``: see :meth:`decoder`."""
        decoder = self.decoder(controls=controls, after=after)
        return "".join(map(decoder.add, ids)) + decoder.end()

    def decoder(self, *, controls: bool = False, after: Iterable[int] = ()) -> Decoder:
        """``after``: the tokens of the text that is continued, if the answer is not one of its own."""
        return Decoder(self._pieces, controls=controls, after=after)

    def close(self) -> None:
        """Ends the process that renders."""
        if self._template is not None:
            self._template.close()

    def _marked(self, mark: str) -> Marked:
        if mark not in self._by_mark:
            self._by_mark[mark] = Marked(self._tokenizer, mark)
        return self._by_mark[mark]

    def _mark(self, rendered: str, mark: str) -> str:
        """The text with marks around its whole control tokens, and without those that cut the others."""
        whole = [f"{re.escape(control)}(?!{mark})" for control in self._controls if control in rendered]
        either = "|".join([*whole, mark])
        return re.sub(either, lambda found: "" if found[0] == mark else f"{mark}{found[0]}{mark}", rendered)


class Marked:
    """A tokenizer that knows control tokens only between marks; whatever else a text holds is text."""

    def __init__(self, tokenizer: Tokenizer, mark: str) -> None:
        """It shares the other's model. UnsupportedModelError for one that has no ids to spare."""
        added: dict[int, AddedToken] = tokenizer.get_added_tokens_decoder()
        self._controls = {token for token, content in added.items() if content.special}
        self._controls -= {unknown.id for unknown in tokenizer.model.tokenize(mark)}  # any text may have that one
        names = {token: f"{mark}{content.content}{mark}" for token, content in added.items() if content.special}
        self._tokenizer = Tokenizer(tokenizer.model)
        self._tokenizer.normalizer = tokenizer.normalizer
        self._tokenizer.pre_tokenizer = tokenizer.pre_tokenizer
        self._tokenizer.encode_special_tokens = True  # as text
        self._tokenizer.add_tokens([content for _, content in sorted(added.items())])
        self._tokenizer.add_tokens([
            AddedToken(
                name, single_word=added[token].single_word, lstrip=added[token].lstrip, rstrip=added[token].rstrip,
                normalized=False,
            )
            for token, name in names.items()
        ])  # fmt: skip
        made = self._tokenizer.get_added_tokens_decoder()
        spare = {content.content: token for token, content in made.items()}
        self._ids: dict[int, int] = {spare[name]: token for token, name in names.items()}
        if taken := [token for token in self._ids if tokenizer.id_to_token(token) is not None]:
            raise UnsupportedModelError(
                "reading the tokenizer", found=f"a vocabulary with gaps below id {taken[0]}",
                required="ids without gaps", hint="this kind of tokenizer is not built",
            )  # fmt: skip

    def encode(self, text: str) -> list[int]:
        """UsageError if the model itself spells a control token in plain text."""
        ids = _encode(self._tokenizer, text, around=False)
        if spelled := self._controls.intersection(ids):
            raise UsageError(
                "encoding a conversation", found=f"text that becomes {self._tokenizer.id_to_token(spelled.pop())}",
                required="no control tokens", hint="take it out of the messages",
            )  # fmt: skip
        return [self._ids.get(token, token) for token in ids]


def _encode(tokenizer: Tokenizer, text: str, *, around: bool) -> list[int]:
    """A batch of one, for only batches let other threads run meanwhile: a long text takes seconds."""
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=around)
    ids: list[int] = encoding.ids
    return ids


def _cut(value: Any, controls: Sequence[str], mark: str) -> Any:
    """The value with a mark behind the first character of every control token in its strings."""
    if isinstance(value, str):
        for control in controls:
            cut = control[:1] + mark + control[1:]
            value = value.replace(control, cut)
            while control[1:] and control in value:  # one that overlaps itself
                value = value.replace(control, cut)
        return value
    if isinstance(value, Mapping):
        return {_cut(key, controls, mark): _cut(item, controls, mark) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [_cut(item, controls, mark) for item in value]
    return value


def _strings(value: object) -> Iterator[str]:
    """All strings in messages, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(key)
            yield from _strings(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from _strings(item)


class Decoder:
    """Text of one sequence as its tokens come. ``add`` gives what is complete, ``end`` the rest."""

    def __init__(self, pieces: Pieces, *, controls: bool, after: Iterable[int]) -> None:
        self._pieces = pieces
        self._hidden = frozenset() if controls else pieces.controls
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._started = any(token not in self._hidden for token in after)

    def add(self, token: int) -> str:
        if token in self._hidden:
            return ""
        piece = self._pieces.bytes_of(token)
        if not self._started and self._pieces.strips_start:
            piece = piece.removeprefix(b" ")
        self._started = True
        return self._utf8.decode(piece)

    def end(self) -> str:
        """What was held back: a character that never became complete is shown as U+FFFD."""
        return self._utf8.decode(b"", final=True)


class Pieces:
    """The bytes of each token. Built for byte-level tokenizers and for SentencePiece ones with byte fallback."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added: dict[int, AddedToken] = added
        self.controls = frozenset(token for token, content in added.items() if content.special)
        kinds = _decoder_kinds(tokenizer)
        self._byte_level = kinds == ["ByteLevel"]
        self.strips_start = kinds == ["Replace", "ByteFallback", "Fuse", "Strip"]
        if not self._byte_level and kinds[:3] != ["Replace", "ByteFallback", "Fuse"]:
            raise UnsupportedModelError(
                "reading the tokenizer", found=f"a decoder of {' and '.join(kinds) or 'no parts'}",
                required="a byte-level decoder, or one of Replace, ByteFallback, Fuse and Strip",
                hint="this kind of tokenizer is not built",
            )  # fmt: skip

    def bytes_of(self, token: int) -> bytes:
        """No bytes for an id that the tokenizer does not have: a vocabulary may be padded."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            return from_byte_level(piece)
        if token not in self._added and (byte := BYTE.fullmatch(piece)):
            return bytes.fromhex(byte[1])
        return piece.replace("▁", " ").encode("utf-8")


def read_tokenizer(data: bytes) -> Tokenizer:
    """A tokenizer from the bytes of its ``tokenizer.json``. Every text keeps its length: training may have left
    truncation and padding in the file."""
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except BaseException as error:
        if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":  # of Rust; no module has it
            raise
        raise ModelFileError(
            "reading the tokenizer", found=f"a tokenizer.json that cannot be read: {error}",
            required="a tokenizer.json of the tokenizers library", hint="fetch the model's files again",
        ) from error  # fmt: skip
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def from_byte_level(piece: str) -> bytes:
    """The bytes that a byte-level token spells. One with a character outside that alphabet spells itself."""
    table = _byte_table()
    if all(character in table for character in piece):
        return bytes(table[character] for character in piece)
    return piece.encode("utf-8")


@lru_cache(maxsize=1)
def _byte_table() -> Mapping[str, int]:
    """GPT-2's alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 and up in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def _decoder_kinds(tokenizer: Tokenizer) -> list[str]:
    """The types of a tokenizer's decoder, in order."""
    if tokenizer.decoder is None:
        return []
    stated = json.loads(tokenizer.decoder.__getstate__())
    parts = stated["decoders"] if stated["type"] == "Sequence" else [stated]
    return [part["type"] for part in parts]
