"""Answers, chunks and errors of the OpenAI dialect. Pure: values to JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from heliograph.serve.front.journal import End, Row
from heliograph.serve.front.openai_request import Model
from heliograph.serve.front.refusal import Refusal, fault, invalid, unavailable

DONE: Final = b"data: [DONE]\n\n"
PING: Final = b": ping\n\n"
REASONS: Final[Mapping[End, str]] = {End.STOP: "stop", End.LENGTH: "length"}  # of the others: refusal_of
TYPES: Final[Mapping[int, str]] = {408: "timeout_error", 429: "rate_limit_error"}  # of the others below 500: invalid

_encoder = msgspec.json.Encoder()


class Choice(msgspec.Struct, frozen=True):
    """A finished row."""

    text: str
    row: Row


class Answer(msgspec.Struct, frozen=True):
    """Writes one request's answer, whole or in chunks."""

    chat: bool
    request: str  # its id
    created: int
    model: Model
    usage: bool  # chunks name the field

    def whole(self, choices: Sequence[Choice], prompt_tokens: int) -> bytes:
        """The body of an answer that is not streamed."""
        kind = "chat.completion" if self.chat else "text_completion"
        made = [self._choice(index, choice) for index, choice in enumerate(choices)]
        usage = usage_of(prompt_tokens, [choice.row for choice in choices])
        return _encoder.encode(self._envelope(kind) | {"choices": made, "usage": usage})

    def opening(self, index: int) -> bytes:
        """The chunk with which a choice begins: who speaks. Nothing for completions."""
        return self._chunk(index, {"role": "assistant", "content": ""}, None) if self.chat else b""

    def piece(self, index: int, text: str) -> bytes:
        return self._chunk(index, {"content": text} if self.chat else text, None)

    def closing(self, index: int, end: End) -> bytes:
        """The one chunk that says why a choice ended."""
        return self._chunk(index, {} if self.chat else "", REASONS[end])

    def last(self, prompt_tokens: int, rows: Sequence[Row]) -> bytes:
        """The chunk with the usage, if it was asked for."""
        if not self.usage:
            return b""
        chunk = self._envelope(self._chunk_kind) | {"choices": [], "usage": usage_of(prompt_tokens, rows)}
        return event(chunk)

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _envelope(self, kind: str) -> dict[str, Any]:
        prefix = "chatcmpl" if self.chat else "cmpl"
        return {
            "id": f"{prefix}-{self.request}", "object": kind, "created": self.created, "model": self.model.name,
            "system_fingerprint": f"fp_{self.model.digest[:12]}",
        }  # fmt: skip

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        end = choice.row.end
        reason = None if end is None else REASONS[end]
        said: dict[str, Any] = {"text": choice.text}
        if self.chat:
            said = {"message": {"role": "assistant", "content": choice.text, "refusal": None}}
        return {"index": index, **said, "logprobs": None, "finish_reason": reason}

    def _chunk(self, index: int, said: Mapping[str, str] | str, reason: str | None) -> bytes:
        key = "delta" if self.chat else "text"
        chunk = self._envelope(self._chunk_kind)
        chunk["choices"] = [{"index": index, key: said, "logprobs": None, "finish_reason": reason}]
        if self.usage:
            chunk["usage"] = None
        return event(chunk)


def usage_of(prompt_tokens: int, rows: Sequence[Row]) -> dict[str, Any]:
    """The prompt once however many answers it has; every emitted token, shown or not."""
    emitted = sum(len(row.tokens) for row in rows)
    return {
        "prompt_tokens": prompt_tokens, "completion_tokens": emitted, "total_tokens": prompt_tokens + emitted,
        "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens_details": {"reasoning_tokens": 0},
    }  # fmt: skip


def refusal_of(row: Row) -> Refusal:
    """What is answered for a row that ended otherwise than by its tokens."""
    if row.end is End.REFUSED:
        return invalid(row.message, None)
    if row.end is End.BROKEN:
        return fault()
    return unavailable(row.message or "the server is ending")


def error_body(refusal: Refusal) -> dict[str, Any]:
    kind = "server_error" if refusal.status >= 500 else TYPES.get(refusal.status, "invalid_request_error")
    error = {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}
    return {"error": error}


def error_event(refusal: Refusal) -> bytes:
    """An error after the stream began, and the stream's end."""
    return event(error_body(refusal)) + DONE


def event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + _encoder.encode(value) + b"\n\n"


def models_body(models: Sequence[Model]) -> dict[str, Any]:
    return {"object": "list", "data": [model_body(model) for model in models]}


def model_body(model: Model) -> dict[str, Any]:
    return {
        "id": model.name, "object": "model", "created": model.created, "owned_by": "heliograph",
        "max_model_len": model.context, "core": model.digest,
    }  # fmt: skip
