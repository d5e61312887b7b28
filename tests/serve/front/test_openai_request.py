"""Bodies to plans, plans to rows: every field is bounded, every refusal names its field."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from heliograph.serve.frames import MAX_PROMPT
from heliograph.serve.front.openai_request import (
    REFUSED,
    Model,
    Plan,
    check_model,
    read_chat,
    read_completion,
    read_detokenize,
    read_tokenize,
    seed_of,
    work_of,
)
from heliograph.serve.front.refusal import MAX_MESSAGE, Refusal
from heliograph.serve.limits import Limits

VOCABULARY = 300
MODEL = Model("m", "d" * 64, 1, context=64, vocabulary=VOCABULARY, eos=(2,), concurrency=4, biases=8)
HI = [{"role": "user", "content": "Hi"}]


def chat(strict: bool = False, limits: Limits | None = None, **fields: Any) -> Plan:
    body = {"model": "m", "messages": HI} | fields
    return read_chat(json.dumps(body).encode(), limits or Limits(), strict)[1]


def completion(limits: Limits | None = None, **fields: Any) -> Plan:
    body = {"model": "m", "prompt": "Hi"} | fields
    return read_completion(json.dumps(body).encode(), limits or Limits(), False)[1]


def refusal(**fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        chat(**fields)
    return caught.value


def works(plan: Plan, prompt: tuple[int, ...] = (5, 6), model: Model = MODEL, seed: int = 77) -> list[Any]:
    return work_of(plan, [prompt], model, seed)


# ---- defaults ------------------------------------------------------------------------------------------------------
def test_a_plain_chat_samples_at_temperature_one_and_fills_the_context() -> None:
    (work,) = works(chat())
    assert (work.settings.temperature, work.settings.top_p, work.limit, work.seeds) == (1.0, 1.0, 62, (77,))
    assert work.stop_tokens == (2,)


def test_a_plain_completion_has_16_tokens() -> None:
    (work,) = works(completion())
    assert work.limit == 16


def test_null_is_as_if_a_field_were_not_there() -> None:
    names = ("max_tokens", "max_completion_tokens", "min_tokens", "stop", "temperature", "top_p", "top_k", "seed", "n")
    assert chat(**dict.fromkeys((*names, *REFUSED))) == chat()


def test_settings_arrive_as_they_were_given() -> None:
    settings = chat(
        temperature=0.5, top_p=0.25, top_k=7, min_p=0.125, presence_penalty=-1, frequency_penalty=1.5,
        repetition_penalty=1.25, logit_bias={"9": -100, "4": 2},
    ).settings  # fmt: skip
    assert (settings.temperature, settings.top_p, settings.top_k, settings.min_p) == (0.5, 0.25, 7, 0.125)
    assert (settings.presence, settings.frequency, settings.repetition) == (-1.0, 1.5, 1.25)
    assert settings.bias == ((4, 2.0), (9, -100.0))


# ---- numbers (E11) -------------------------------------------------------------------------------------------------
HOSTILE = ["-1", "0", f"{VOCABULARY - 1}", f"{VOCABULARY}", f"{2**31 - 1}", f"{2**31}", f"{2**63}", "NaN", "Infinity",
           "1e400", '"x"', "true", "[]", "{}"]  # fmt: skip
NUMBERS = {
    "max_tokens": {f"{VOCABULARY - 1}", f"{VOCABULARY}", f"{2**31 - 1}", f"{2**31}", f"{2**63}"},
    "max_completion_tokens": {f"{VOCABULARY - 1}", f"{VOCABULARY}", f"{2**31 - 1}", f"{2**31}", f"{2**63}"},
    "min_tokens": {"0", f"{VOCABULARY - 1}", f"{VOCABULARY}", f"{2**31 - 1}", f"{2**31}", f"{2**63}"},
    "temperature": {"0"}, "top_p": {"0"}, "min_p": {"0"}, "presence_penalty": {"-1", "0"},
    "top_k": {"-1", "0", f"{VOCABULARY - 1}", f"{VOCABULARY}", f"{2**31 - 1}", f"{2**31}", f"{2**63}"},
    "frequency_penalty": {"-1", "0"}, "repetition_penalty": set(), "n": set(),
    "seed": {"-1", "0", f"{VOCABULARY - 1}", f"{VOCABULARY}", f"{2**31 - 1}", f"{2**31}"},
    "stop_token_ids": {"[]"}, "logit_bias": {"{}"}, "ignore_eos": {"true"}, "stream": {"true"}, "stop": {"[]", '"x"'},
    "stream_options": set(),
}  # fmt: skip


@pytest.mark.parametrize("field", NUMBERS)
@pytest.mark.parametrize("value", HOSTILE)
def test_hostile_numbers_are_refused_by_name_or_are_harmless(field: str, value: str) -> None:
    body = f'{{"model": "m", "messages": [{{"role": "user", "content": "Hi"}}], "{field}": {value}}}'.encode()
    if value in NUMBERS[field]:
        works(read_chat(body, Limits(), False)[1])
        return
    with pytest.raises(Refusal) as caught:
        works(read_chat(body, Limits(), False)[1])
    assert caught.value.status == 400
    assert caught.value.param == field or value in {"NaN", "Infinity", "1e400"}  # those are no JSON


@pytest.mark.parametrize("token", [-1, VOCABULARY, 2**31 - 1, 2**31, 2**63])
@pytest.mark.parametrize("field", ["stop_token_ids", "logit_bias", "prompt"])
def test_a_token_outside_of_the_vocabulary_is_refused_and_the_last_one_inside_is_not(field: str, token: int) -> None:
    def given(value: int) -> list[Any]:
        if field == "prompt":
            plan = completion(prompt=[5, value])
            return work_of(plan, plan.prompts, MODEL, 0)
        return works(chat(**{field: {str(value): 1} if field == "logit_bias" else [5, value]}))

    with pytest.raises(Refusal) as caught:
        given(token)
    assert (caught.value.status, caught.value.param) == (400, field)
    given(VOCABULARY - 1)


# ---- tokens (E14) --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("length", [63, 64, 65])
@pytest.mark.parametrize("limit", [None, 1, 2, 2**31])
def test_the_limit_is_cut_to_what_the_context_has_left(length: int, limit: int | None) -> None:
    plan = chat(max_tokens=limit)
    prompt = (5,) * length
    if length >= 64:
        with pytest.raises(Refusal) as caught:
            works(plan, prompt)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "messages")
        assert str(length) in caught.value.message
        assert "64" in caught.value.message
    else:
        assert works(plan, prompt)[0].limit == 1


@pytest.mark.parametrize("top_k", [2**31 - 1, 2**31, 2**63, 2**70])
def test_a_top_k_that_no_i32_holds_is_the_largest_that_one_holds(top_k: int) -> None:
    assert chat(top_k=top_k).settings.top_k == 2**31 - 1


def test_a_prompt_that_is_far_too_long_is_refused_before_its_tokens_are_looked_at() -> None:
    """Millions fit a body, and while they are looked at nobody else is answered."""
    plan = completion(prompt=[VOCABULARY] * 1000)
    with pytest.raises(Refusal) as caught:
        work_of(plan, plan.prompts, MODEL, 0)
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_either_name_of_the_limit_counts(name: str) -> None:
    assert works(chat(**{name: 5}))[0].limit == 5


def test_two_limits_that_differ_are_refused_and_equal_ones_are_not() -> None:
    assert refusal(max_tokens=5, max_completion_tokens=6).param == "max_tokens"
    assert chat(max_tokens=5, max_completion_tokens=5).limit == 5


def test_more_tokens_at_least_than_at_most_are_refused() -> None:
    assert refusal(max_tokens=5, min_tokens=6).param == "min_tokens"
    assert works(chat(max_tokens=5, min_tokens=5))[0].least == 5


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(Refusal) as caught:
        work_of(completion(), [()], MODEL, 0)
    assert caught.value.param == "prompt"


# ---- messages (E13) ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (None, "messages"),
        (..., "messages"),
        ("Hi", "messages"),
        ([1], "messages[0]"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"content": "Hi"}], "role"),
        ([{"role": "wizard", "content": "Hi"}], "messages[0].role"),
        ([*HI, {"role": "tool", "content": "Hi"}], "messages[1].role"),
        ([{"role": "assistant", "content": None, "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
    ],
)
def test_messages_that_cannot_be_meant_are_refused(messages: Any, param: str) -> None:
    body = {"model": "m", "messages": messages}
    if messages is ...:
        del body["messages"]
    with pytest.raises(Refusal) as caught:
        read_chat(json.dumps(body).encode(), Limits(), False)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("message", "rendered"),
    [
        ({"role": "user", "content": ""}, {"role": "user", "content": ""}),
        ({"role": "developer", "content": "a"}, {"role": "system", "content": "a"}),
        ({"role": "user", "content": []}, {"role": "user", "content": ""}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "x"},
            {"role": "user", "content": "a\nb", "name": "x"},
        ),
        (
            {"role": "assistant", "content": "a", "refusal": None, "tool_calls": None, "annotations": []},
            {"role": "assistant", "content": "a"},
        ),
    ],
)
def test_messages_become_what_templates_take(message: dict[str, Any], rendered: dict[str, Any]) -> None:
    assert chat(messages=[message]).messages == (rendered,)


# ---- prompts -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("Hi", ("Hi",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], (array("i", [1, 2]),)),
        ([[1], [2]], (array("i", [1]), array("i", [2]))),
    ],
)
def test_a_prompt_is_a_text_or_tokens_or_many_of_one_kind(prompt: Any, prompts: Any) -> None:
    assert completion(prompt=prompt).prompts == prompts


@pytest.mark.parametrize("many", [False, True])
def test_a_list_of_tokens_that_no_context_holds_is_refused_as_it_is_read(many: bool) -> None:
    def prompt(length: int) -> list[Any]:
        return [[5], [5] * length] if many else [5] * length

    with pytest.raises(Refusal) as caught:
        completion(prompt=prompt(MAX_PROMPT + 1))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert len(completion(prompt=prompt(MAX_PROMPT)).prompts[-1]) == MAX_PROMPT


@pytest.mark.parametrize("prompt", [[], [[]], ["a", 1], [1, "a"], [True], [[1, "a"]], [None], {}, 5, None])
def test_other_prompts_are_refused(prompt: Any) -> None:
    with pytest.raises(Refusal) as caught:
        completion(prompt=prompt)
    assert (caught.value.status, caught.value.param) == (400, "prompt")


# ---- bounds --------------------------------------------------------------------------------------------------------
SMALL = Limits(messages=2, stops=2, stop_length=3, stop_tokens=2, biases=2, prompts=2)


@pytest.mark.parametrize(
    ("field", "most", "more"),
    [
        ("messages", HI * 2, HI * 3),
        ("stop", ["a", "b"], ["a", "b", "c"]),
        ("stop", "abc", "abcd"),
        ("stop", ["a"], [""]),
        ("stop", "a", ""),
        ("stop_token_ids", [1, 2], [1, 2, 3]),
        ("logit_bias", {"1": 1, "2": 1}, {"1": 1, "2": 1, "3": 1}),
        ("logit_bias", {"1": 1}, {"one": 1}),
        ("logit_bias", {"1": 1}, {"01": 1}),
        ("logit_bias", {"1": 100}, {"1": 101}),
    ],
)
def test_a_list_is_taken_up_to_its_bound(field: str, most: Any, more: Any) -> None:
    chat(limits=SMALL, **{field: most})
    assert refusal(limits=SMALL, **{field: more}).param.partition("[")[0] == field


def test_prompts_are_taken_up_to_their_bound() -> None:
    completion(limits=SMALL, prompt=["a", "b"])
    with pytest.raises(Refusal):
        completion(limits=SMALL, prompt=["a", "b", "c"])


def test_n_is_taken_up_to_the_rows_that_the_model_runs() -> None:
    assert len(works(chat(n=4))[0].seeds) == 4
    with pytest.raises(Refusal) as caught:
        works(chat(n=5))
    assert caught.value.param == "n"


def test_biases_and_held_back_stop_tokens_together_fit_the_model() -> None:
    bias = {str(token): 1 for token in range(8)}
    works(chat(logit_bias=bias))
    for fields in ({"min_tokens": 1}, {"min_tokens": 1, "ignore_eos": True, "stop_token_ids": [3]}):
        with pytest.raises(Refusal):
            works(chat(logit_bias=bias, **fields))
    works(chat(logit_bias=bias, min_tokens=1, ignore_eos=True))


# ---- stop tokens ---------------------------------------------------------------------------------------------------
def test_the_end_of_text_stops_unless_it_is_to_be_ignored() -> None:
    assert works(chat(stop_token_ids=[9]))[0].stop_tokens == (2, 9)
    assert works(chat(stop_token_ids=[9], ignore_eos=True))[0].stop_tokens == (9,)


# ---- seeds (E18) ---------------------------------------------------------------------------------------------------
def test_the_first_copy_has_the_seed_of_a_single_answer_and_the_others_differ() -> None:
    (single,), (many,) = works(chat(seed=-5)), works(chat(seed=-5, n=4))
    assert single.seeds == (-5,)
    assert many.seeds[0] == -5
    assert len(set(many.seeds)) == 4
    assert works(chat(seed=-5, n=4)) == [many]


@pytest.mark.parametrize("seed", [-(1 << 63), 0, (1 << 63) - 1])
def test_every_seed_of_64_bits_has_copies_of_64_bits(seed: int) -> None:
    assert all(-(1 << 63) <= seed_of(seed, copy) < 1 << 63 for copy in range(20))


# ---- fields that are not ours --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_known_and_would_change_the_answer_is_refused_by_name(name: str) -> None:
    value: Any = {"anything": ["else"]}
    error = refusal(**{name: value})
    assert (error.status, error.param, error.code) == (400, name, "unsupported_parameter")
    for default in REFUSED[name]:
        assert chat(**{name: default}).ignored == ()


def test_one_is_not_true() -> None:
    assert refusal(best_of=True).param == "best_of"
    chat(best_of=1)


def test_harmless_fields_are_ignored_silently_even_when_strict() -> None:
    plan = chat(strict=True, user="me", metadata={"a": "b"}, store=True, service_tier="auto", parallel_tool_calls=True)
    assert plan.ignored == ()


def test_unknown_fields_of_a_message_are_named_and_refused_when_strict() -> None:
    said = {"role": "assistant", "content": "x", "reasoning_content": "why", "refusal": None, "annotations": []}
    parts = {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}
    plan = chat(messages=[*HI, said, parts], mirostat=2)
    assert plan.ignored == ("mirostat", "messages[1].reasoning_content", "messages[2].content[0].cache_control")
    error = refusal(strict=True, messages=[*HI, said])
    assert (error.code, error.param) == ("unknown_parameter", "messages[1].reasoning_content")
    del said["reasoning_content"]
    assert chat(strict=True, messages=[*HI, said]).ignored == ()


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_a_message_that_is_to_be_continued_is_refused_by_name(name: str) -> None:
    said = {"role": "assistant", "content": "x"}
    error = refusal(messages=[*HI, said | {name: True}])
    assert (error.code, error.param) == ("unsupported_parameter", f"messages[1].{name}")
    for nothing in (False, None):
        assert chat(strict=True, messages=[*HI, said | {name: nothing}]).ignored == ()


def test_unknown_fields_are_named_and_refused_when_strict() -> None:
    assert chat(mirostat=2, dry_base=1).ignored == ("dry_base", "mirostat")
    error = refusal(strict=True, mirostat=2)
    assert (error.param, error.code) == ("mirostat", "unknown_parameter")


def test_stream_options_need_a_stream() -> None:
    assert refusal(stream_options={"include_usage": True}).param == "stream_options"
    assert chat(stream=True, stream_options={"include_usage": True}).usage is True


# ---- bodies --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"1", b"null", b"\xff", b'{"model": "\xff"}', b"[" * 100_000, b'{"a":' * 100_000]
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        read_chat(body, Limits(), False)
    assert caught.value.status == 400


LONG = "Z" * 100_000


@pytest.mark.parametrize(
    "call",
    [
        lambda: check_model(LONG, MODEL),
        lambda: chat(messages=[{"role": LONG, "content": "Hi"}]),
        lambda: chat(strict=True, **{LONG: 1}),
        lambda: chat(logit_bias={LONG: 1}),
    ],
)
def test_a_message_never_echoes_more_than_its_bound(call: Callable[[], object]) -> None:
    with pytest.raises(Refusal) as caught:
        call()
    assert len(caught.value.message) <= MAX_MESSAGE
    assert len(caught.value.param) <= MAX_MESSAGE


def test_another_model_does_not_exist() -> None:
    check_model("m", MODEL)
    with pytest.raises(Refusal) as caught:
        check_model("n", MODEL)
    assert (caught.value.status, caught.value.code, caught.value.param) == (404, "model_not_found", "model")


# ---- tokenize and detokenize ---------------------------------------------------------------------------------------
def test_tokenize_takes_a_prompt_or_messages() -> None:
    assert read_tokenize(b'{"prompt": "Hi"}', Limits()) == ("", completion())
    name, plan = read_tokenize(json.dumps({"model": "m", "messages": HI}).encode(), Limits())
    assert (name, plan.messages) == ("m", ({"role": "user", "content": "Hi"},))


@pytest.mark.parametrize(
    "body", [{}, {"prompt": "a", "messages": HI}, {"prompt": [1]}, {"prompt": "a", "model": 1}, {"messages": []}]
)
def test_other_bodies_of_tokenize_are_refused(body: Any) -> None:
    with pytest.raises(Refusal):
        read_tokenize(json.dumps(body).encode(), Limits())


def test_detokenize_takes_a_list_of_tokens() -> None:
    assert read_detokenize(b'{"model": "m", "tokens": [1, 2]}') == ("m", [1, 2])
    assert read_detokenize(b'{"tokens": []}') == ("", [])


@pytest.mark.parametrize("tokens", [None, "a", [1.5], [True], ["a"], {}])
def test_other_bodies_of_detokenize_are_refused(tokens: Any) -> None:
    with pytest.raises(Refusal) as caught:
        read_detokenize(json.dumps({"tokens": tokens}).encode())
    assert caught.value.param == "tokens"


def test_detokenize_takes_as_many_tokens_as_a_prompt_may_have() -> None:
    most = [1] * MAX_PROMPT
    assert read_detokenize(json.dumps({"tokens": most}).encode()) == ("", most)
    with pytest.raises(Refusal) as caught:
        read_detokenize(json.dumps({"tokens": [*most, 1]}).encode())
    assert (caught.value.status, caught.value.param) == (400, "tokens")
