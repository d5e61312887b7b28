"""Bodies of the OpenAI dialect to a :class:`Plan`, and a plan with its prompts to rows. Pure.

Every field is bounded by ``limits`` or by the model. What is known and not honoured is refused by name where it would
change the answer and ignored where it would not; an unknown field is named in the plan.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Annotated, Any, Final, TypeVar

import msgspec

from heliograph.serve.frames import MAX_PROMPT, Settings
from heliograph.serve.front.journal import Work
from heliograph.serve.front.refusal import Refusal, invalid
from heliograph.serve.front.text_stream import StopString
from heliograph.serve.limits import Limits

COMPLETION_TOKENS: Final = 16  # the default of /v1/completions, as OpenAI has it
ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_PATH: Final = re.compile(r" - at `\$\.?(.*)`$")
_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,17}")

# Fields that are not built yet and would change the answer, with the values that change nothing. null never does.
REFUSED: Final[Mapping[str, tuple[object, ...]]] = {
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "structured_outputs": (), "json_schema": (), "grammar": ("",),
    "guided_json": (), "guided_regex": (), "guided_choice": (), "guided_grammar": (), "regex": (), "ebnf": (),
    "logprobs": (False,), "top_logprobs": (0,), "prompt_logprobs": (0,), "echo": (False,), "suffix": ("",),
    "best_of": (1,), "use_beam_search": (False,), "modalities": (["text"],), "audio": (), "web_search_options": (),
    "reasoning_effort": ("none",), "verbosity": ("medium",), "allowed_token_ids": (), "bad_words": ([],),
    "chat_template": (), "chat_template_kwargs": ({},), "continue_final_message": (False,),
    "add_generation_prompt": (True,), "truncate_prompt_tokens": (), "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,), "length_penalty": (1, 1.0),
}  # fmt: skip
HARMLESS: Final = frozenset({
    "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "parallel_tool_calls", "prediction",
})  # fmt: skip


CONTINUED: Final = ("prefix", "partial")  # of a message: it is to be continued, as with continue_final_message


class Model(msgspec.Struct, frozen=True):
    """What requests are checked against."""

    name: str  # as clients call it
    digest: str  # of the core
    created: int  # seconds since 1970
    context: int  # tokens of a prompt and its answer
    vocabulary: int
    eos: tuple[int, ...]
    concurrency: int  # rows at a time
    biases: int  # bias entries of a row


class Plan(msgspec.Struct, frozen=True):
    """A request that is in order, before its prompts are tokens."""

    messages: tuple[Mapping[str, object], ...]  # of a chat; empty for completions
    prompts: tuple[str | array[int], ...]  # of completions; empty for a chat
    n: int
    limit: int | None  # tokens to generate at most; None: what the context has left
    least: int
    stop_strings: tuple[str, ...]
    stop_tokens: tuple[int, ...]
    ignore_eos: bool
    settings: Settings
    seed: int | None
    stream: bool
    usage: bool  # a chunk with the usage at the end of a stream
    ignored: tuple[str, ...]  # unknown fields


# ---- bodies --------------------------------------------------------------------------------------------------------
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Natural = Annotated[int, msgspec.Meta(ge=0)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Body(msgspec.Struct, kw_only=True):
    """What both endpoints take. ``null`` is as if the field were not there."""

    model: str
    max_tokens: Positive | None = None
    min_tokens: Natural | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    temperature: Temperature | None = None
    top_p: Share | None = None
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, msgspec.Meta(ge=0.01, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, msgspec.Meta(ge=-100, le=100)]] | None = None
    seed: int | None = None
    n: Positive | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class Part(msgspec.Struct):
    type: str
    text: str | None = None


class Message(msgspec.Struct):
    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[Any] | None = None
    function_call: Any = None


class ChatBody(Body):
    messages: list[Message]
    max_completion_tokens: Positive | None = None


class CompletionBody(Body):
    prompt: str | list[Any]


_B = TypeVar("_B", bound=Body)


# ---- body to plan --------------------------------------------------------------------------------------------------
def read_chat(data: bytes, limits: Limits, strict: bool) -> tuple[str, Plan]:
    """The model that a chat is for, and what it asks. Raises Refusal."""
    return _chat(read_object(data), limits, strict)


def _chat(raw: Mapping[str, Any], limits: Limits, strict: bool) -> tuple[str, Plan]:
    ignored = _unknown(raw, ChatBody, strict)
    body = _convert(raw, ChatBody)
    if not 1 <= len(body.messages) <= limits.messages:
        raise invalid(f"{len(body.messages)} messages; 1 to {limits.messages} are taken", "messages")
    if body.max_tokens and body.max_completion_tokens and body.max_tokens != body.max_completion_tokens:
        raise invalid("max_tokens and max_completion_tokens are both given and differ", "max_tokens")
    messages = tuple(_message(message, f"messages[{at}]") for at, message in enumerate(body.messages))
    ignored += _unknown_inside(raw["messages"], strict)
    limit = body.max_completion_tokens or body.max_tokens
    return body.model, _plan(body, limits, ignored, limit, messages=messages)


def read_completion(data: bytes, limits: Limits, strict: bool) -> tuple[str, Plan]:
    """The model that a completion is for, and what it asks. Raises Refusal."""
    return _completion(read_object(data), limits, strict)


def _completion(raw: Mapping[str, Any], limits: Limits, strict: bool) -> tuple[str, Plan]:
    ignored = _unknown(raw, CompletionBody, strict)
    body = _convert(raw, CompletionBody)
    prompts = _prompts(body.prompt, limits)
    return body.model, _plan(body, limits, ignored, body.max_tokens or COMPLETION_TOKENS, prompts=prompts)


def read_object(data: bytes) -> dict[str, Any]:
    """A JSON object. Raises Refusal."""
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}", None) from error
    if not isinstance(raw, dict):
        raise invalid("the body is not a JSON object", None)
    return raw


def read_tokenize(data: bytes, limits: Limits) -> tuple[str, Plan]:
    """The model named (or "") and a plan whose one prompt is what to tokenize: ``prompt`` or ``messages``."""
    raw = read_object(data)
    name = _named(raw)
    body = {"model": name} | {key: raw[key] for key in ("prompt", "messages") if raw.get(key) is not None}
    if len(body) != 2:
        raise invalid("exactly one of prompt and messages is needed", "prompt")
    if "messages" in body:
        return _chat(body, limits, strict=True)
    if not isinstance(body["prompt"], str):
        raise invalid("a prompt that is no text", "prompt")
    return _completion(body, limits, strict=True)


def read_detokenize(data: bytes) -> tuple[str, list[int]]:
    """The model named (or "") and the tokens."""
    raw = read_object(data)
    tokens = raw.get("tokens")
    if isinstance(tokens, list) and len(tokens) > MAX_PROMPT:
        raise invalid(f"{len(tokens)} tokens; at most {MAX_PROMPT} are taken", "tokens")
    if not isinstance(tokens, list) or any(type(token) is not int for token in tokens):
        raise invalid("a list of tokens is needed", "tokens")
    return _named(raw), tokens


def _named(raw: Mapping[str, Any]) -> str:
    name = raw.get("model")
    if not isinstance(name, str | None):
        raise invalid("a model that is no text", "model")
    return name or ""


def _convert(raw: Mapping[str, Any], kind: type[_B]) -> _B:
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        path = _PATH.search(text)
        missing = re.search(r"missing required field `(\w+)`", text)
        param = missing[1] if missing else path[1] if path else None
        raise invalid(_PATH.sub("", text), param) from error


def _unknown(raw: Mapping[str, Any], kind: type[Body], strict: bool) -> tuple[str, ...]:
    """The unknown fields of a body. Refuses those that are known, not built, and would change the answer."""
    for name, values in REFUSED.items():
        value = raw.get(name)
        if value is not None and not any(value == same and type(value) is type(same) for same in values):
            raise invalid(f"{name} is not supported", name, "unsupported_parameter")
    known = {field.name for field in msgspec.structs.fields(kind)}
    unknown = tuple(sorted(raw.keys() - known - REFUSED.keys() - HARMLESS))
    if unknown and strict:
        raise invalid(f"unknown field {unknown[0]}", unknown[0], "unknown_parameter")
    return unknown


def _unknown_inside(messages: Sequence[Mapping[str, Any]], strict: bool) -> tuple[str, ...]:
    """The unknown fields of messages and their parts; null, false and an empty list are as if they were not there."""
    holders: list[tuple[str, Mapping[str, Any], type[msgspec.Struct]]] = []
    for at, message in enumerate(messages):
        holders.append((f"messages[{at}]", message, Message))
        if isinstance(content := message.get("content"), list):
            holders += [(f"messages[{at}].content[{place}]", part, Part) for place, part in enumerate(content)]
    unknown = []
    for path, holder, kind in holders:
        given = {name for name, value in holder.items() if value not in (None, False, [])}
        for name in sorted(given.difference(kind.__struct_fields__)):
            if kind is Message and name in CONTINUED:
                raise invalid(f"{name} is not supported", f"{path}.{name}", "unsupported_parameter")
            if strict:
                raise invalid(f"unknown field {name}", f"{path}.{name}", "unknown_parameter")
            unknown.append(f"{path}.{name}")
    return tuple(unknown)


def _plan(
    body: Body, limits: Limits, ignored: tuple[str, ...], limit: int | None,
    messages: tuple[Mapping[str, object], ...] = (), prompts: tuple[str | array[int], ...] = (),
) -> Plan:  # fmt: skip
    least = body.min_tokens or 0
    if limit is not None and least > limit:
        raise invalid(f"min_tokens {least} is more than the {limit} tokens asked for at most", "min_tokens")
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options without stream", "stream_options")
    if body.seed is not None and not -(1 << 63) <= body.seed < 1 << 63:
        raise invalid("seed does not fit 64 bits", "seed")
    top_k = body.top_k or 0
    return Plan(
        messages=messages,
        prompts=prompts,
        n=body.n or 1,
        limit=limit,
        least=least,
        stop_strings=_stops(body.stop, limits),
        stop_tokens=_stop_tokens(body.stop_token_ids, limits),
        ignore_eos=bool(body.ignore_eos),
        settings=Settings(
            temperature=_or(body.temperature, 1.0),
            top_k=0 if top_k < 0 else min(top_k, (1 << 31) - 1),
            top_p=_or(body.top_p, 1.0),
            min_p=_or(body.min_p, 0.0),
            presence=_or(body.presence_penalty, 0.0),
            frequency=_or(body.frequency_penalty, 0.0),
            repetition=_or(body.repetition_penalty, 1.0),
            bias=_bias(body.logit_bias, limits),
        ),
        seed=body.seed,
        stream=bool(body.stream),
        usage=bool(body.stream_options and body.stream_options.include_usage),
        ignored=ignored,
    )


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _message(message: Message, path: str) -> Mapping[str, object]:
    """A message as chat templates take it."""
    role = ROLES.get(message.role)
    if role is None:
        raise invalid(f"role {message.role!r} is none of {', '.join(ROLES)}", f"{path}.role")
    if message.tool_calls or message.function_call:
        raise invalid("tool calls are not supported", f"{path}.tool_calls", "unsupported_parameter")
    if message.content is None:
        raise invalid("a message without content", f"{path}.content")
    content = message.content
    if not isinstance(content, str):
        for at, part in enumerate(content):
            if part.type != "text" or part.text is None:
                raise invalid("only parts of type text, with a text, are supported", f"{path}.content[{at}]")
        content = "\n".join(part.text or "" for part in content)
    return {"role": role, "content": content} | ({"name": message.name} if message.name else {})


def _prompts(prompt: str | list[Any], limits: Limits) -> tuple[str | array[int], ...]:
    """One text or many, one list of tokens or many."""
    if isinstance(prompt, str):
        return (prompt,)
    if not prompt:
        raise invalid("an empty list of prompts", "prompt")
    if all(type(token) is int for token in prompt):
        return (_tokens(prompt),)
    if len(prompt) > limits.prompts:
        raise invalid(f"{len(prompt)} prompts; at most {limits.prompts} are taken", "prompt")
    if all(isinstance(text, str) for text in prompt):
        return tuple(prompt)
    if all(isinstance(ids, list) and ids and all(type(token) is int for token in ids) for ids in prompt):
        return tuple(map(_tokens, prompt))
    raise invalid("neither a text, a list of texts, a list of tokens nor a list of lists of tokens", "prompt")


def _tokens(given: list[int]) -> array[int]:
    if len(given) > MAX_PROMPT:
        raise invalid(
            f"a prompt of {len(given)} tokens; at most {MAX_PROMPT} are taken", "prompt", "context_length_exceeded"
        )
    try:
        return array("i", given)
    except OverflowError:
        raise invalid("a token outside of any vocabulary", "prompt") from None


def _stops(stop: str | list[str] | None, limits: Limits) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if len(stops) > limits.stops:
        raise invalid(f"{len(stops)} stop strings; at most {limits.stops} are taken", "stop")
    for text in stops:
        if not 1 <= len(text) <= limits.stop_length:
            raise invalid(f"a stop string of {len(text)} characters; 1 to {limits.stop_length} are taken", "stop")
    return stops


def _stop_tokens(tokens: Sequence[int] | None, limits: Limits) -> tuple[int, ...]:
    if tokens and len(tokens) > limits.stop_tokens:
        raise invalid(f"{len(tokens)} stop tokens; at most {limits.stop_tokens} are taken", "stop_token_ids")
    return tuple(tokens or ())


def _bias(bias: Mapping[str, float] | None, limits: Limits) -> tuple[tuple[int, float], ...]:
    if bias and len(bias) > limits.biases:
        raise invalid(f"{len(bias)} biases; at most {limits.biases} are taken", "logit_bias")
    for key in bias or ():
        if not _INTEGER.fullmatch(key):
            raise invalid("a key that is no token", "logit_bias")
    return tuple(sorted((int(key), value) for key, value in (bias or {}).items()))


# ---- plan to rows --------------------------------------------------------------------------------------------------
def check_model(name: str, model: Model) -> None:
    if name != model.name:
        raise Refusal(404, f"the model {name!r} does not exist here", param="model", code="model_not_found")


def work_of(plan: Plan, prompts: Sequence[Sequence[int]], model: Model, seed: int) -> list[Work]:
    """What to generate for each prompt, whose tokens these are. ``seed`` is for a plan that names none.

    Raises Refusal for what only the model decides: tokens outside its vocabulary, prompts too long for its context.
    """
    for prompt in prompts:
        if not prompt:
            raise invalid("a prompt without tokens", _source(plan))
        check_length(plan, len(prompt), model.context)
    for param, tokens in (
        ("stop_token_ids", plan.stop_tokens),
        ("logit_bias", [token for token, _ in plan.settings.bias]),
        *(("prompt", prompt) for prompt in prompts),
    ):
        if tokens and not 0 <= min(tokens) <= max(tokens) < model.vocabulary:
            raise invalid(f"a token outside of the vocabulary of {model.vocabulary}", param)
    if plan.n > model.concurrency:
        raise invalid(f"n is {plan.n}; this model runs {model.concurrency} rows at a time", "n")
    stop_tokens = tuple(sorted({*plan.stop_tokens, *(() if plan.ignore_eos else model.eos)}))
    if len(plan.settings.bias) + (len(stop_tokens) if plan.least else 0) > model.biases:
        raise invalid(f"more than the {model.biases} biases that this model takes", "logit_bias")
    stop_strings = tuple(map(StopString.of, plan.stop_strings))
    seed = seed if plan.seed is None else plan.seed
    return [_work(plan, prompt, stop_tokens, stop_strings, model, seed) for prompt in prompts]


def check_length(plan: Plan, tokens: int, context: int, more: str = "") -> None:
    """Refusal for a prompt of so many tokens that it leaves no room for an answer."""
    if tokens >= context:
        raise invalid(
            f"the prompt has {more}{tokens} tokens; prompt and answer together have room for {context}", _source(plan),
            "context_length_exceeded",
        )  # fmt: skip


def _source(plan: Plan) -> str:
    """The field that a plan's prompts are made of."""
    return "messages" if plan.messages else "prompt"


def _work(
    plan: Plan, prompt: Sequence[int], stop_tokens: tuple[int, ...], stop_strings: tuple[StopString, ...],
    model: Model, seed: int,
) -> Work:  # fmt: skip
    left = model.context - len(prompt)
    limit = left if plan.limit is None else min(plan.limit, left)
    return Work(
        prompt=prompt, seeds=tuple(seed_of(seed, copy) for copy in range(plan.n)), limit=limit,
        least=min(plan.least, limit), stop_tokens=stop_tokens, stop_strings=stop_strings, settings=plan.settings,
    )  # fmt: skip


def seed_of(seed: int, copy: int) -> int:
    """The seed of the copy-th answer: the first is that of a request for one answer, the others differ."""
    if copy == 0:
        return seed
    mixed = blake2b(seed.to_bytes(8, "little", signed=True) + copy.to_bytes(4, "little"), digest_size=8)
    return int.from_bytes(mixed.digest(), "little", signed=True)
