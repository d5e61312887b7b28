"""What no single frame can hold is refused before it is sent, so that no request can end the worker."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from scripted_worker import LOADED, Line, Script
from served import Served, face, ids, serving
from wire import ask

from heliograph.serve.frames import MAX_PROMPT, MAX_ROWS, Decoder, FromFront, encode
from heliograph.serve.front.text_stream import StopString

HUGE = msgspec.structs.replace(LOADED, concurrency=10 * MAX_ROWS, blocks=10 * MAX_PROMPT, biases=10_000)


@pytest.fixture(scope="module")
def served() -> Any:
    large = face()
    facts = msgspec.structs.replace(large.facts, context=10 * MAX_PROMPT)
    with serving(
        Script(line=lambda submit, place: Line(ids("a")), loaded=HUGE), core=msgspec.structs.replace(large, facts=facts)
    ) as s:
        yield s


def complete(served: Served, **fields: Any) -> int:
    return ask(served.url, "/v1/completions", {"model": "tiny", "prompt": "a", "max_tokens": 1} | fields).status


@pytest.mark.parametrize(
    ("most", "more"),
    [
        ({"n": MAX_ROWS}, {"n": MAX_ROWS + 1}),
        ({"prompt": [258] * (MAX_PROMPT - 1)}, {"prompt": [258] * MAX_PROMPT}),
        ({"stop_token_ids": [258] * 256}, {"stop_token_ids": [258] * 257}),
        (
            {"logit_bias": {str(token): 1 for token in range(256)}},
            {"logit_bias": {str(token): 1 for token in range(257)}},
        ),
        ({"max_tokens": 2**63}, {"max_tokens": 0}),
        ({"top_k": 2**63}, {"top_k": -2}),
        ({"seed": -(2**63)}, {"seed": -(2**63) - 1}),
    ],
)
def test_the_most_that_is_taken_fits_a_frame(served: Served, most: dict[str, Any], more: dict[str, Any]) -> None:
    assert complete(served, **more) == 400
    assert complete(served, **most) == 200
    (again,) = Decoder[FromFront](FromFront).feed(encode(served.told.submits[-1]))
    assert again == served.told.submits[-1]
    assert served.heard.restarts == []


def test_a_stop_string_is_made_ready_once_a_request_however_many_rows_look_for_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    of = StopString.of
    monkeypatch.setattr(StopString, "of", lambda text: (made.append(text), of(text))[1])
    stops = [f"{at}?" for at in range(16)]
    assert complete(served, prompt=["a"] * 64, n=8, stop=stops) == 200
    assert made == stops
