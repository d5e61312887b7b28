"""What the core cannot serve is refused before it gets near the device, with a twin that passes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from fake_device import FakeDevice

from heliograph.serve.frames import Settings, Submit
from heliograph.serve.worker.refusals import LARGEST, refusal
from heliograph.serve.worker.row import Prompt


def reason(device: FakeDevice, **changes: Any) -> str:
    given: dict[str, Any] = {"rows": ((1, 0),), "prompt": (1, 2, 3), "limit": 4} | changes
    submit = Submit(**given)
    return refusal(submit, Prompt.of(submit, device.text.context, device.text.block_tokens), device)


CASES = [
    ("prompt", {"prompt": (1,) * 24}, {"prompt": (1,) * 25}),
    ("prompt", {"prompt": (10,)}, {"prompt": (11,)}),
    ("prompt", {"prompt": (10,)}, {"prompt": (2**31 - 1,)}),
    ("stop", {"stops": (10,)}, {"stops": (11,)}),
    ("stop", {"stops": (1, 2, 3, 4, 5)}, {"stops": (1, 2, 3, 4, 2**31 - 1)}),
    ("bias", {"settings": Settings(bias=((10, 1.0),))}, {"settings": Settings(bias=((11, 1.0),))}),
    (
        "bias",
        {"settings": Settings(bias=tuple((token, 1.0) for token in range(4)))},
        {"settings": Settings(bias=tuple((token, 1.0) for token in range(5)))},
    ),
    (
        "held back",
        {"settings": Settings(bias=((1, 1.0), (2, 1.0))), "stops": (2, 3, 4), "least": 1},
        {"settings": Settings(bias=((1, 1.0), (2, 1.0))), "stops": (3, 4, 5), "least": 1},
    ),
    (
        "held back",
        {"settings": Settings(bias=((1, 1.0), (2, 1.0))), "stops": (3, 4, 5), "least": 0},
        {"settings": Settings(bias=((1, 1.0), (2, 1.0))), "stops": (3, 4, 5), "least": 2**53},
    ),
    ("rows", {"rows": ((1, 0), (2, 0), (3, 0), (4, 0))}, {"rows": tuple((number, 0) for number in range(5))}),
]


@pytest.mark.parametrize(("word", "good", "bad"), CASES)
def test_a_submit_that_the_core_cannot_serve_is_refused(word: str, good: dict[str, Any], bad: dict[str, Any]) -> None:
    device = FakeDevice()
    assert reason(device, **good) == ""
    assert word in reason(device, **bad)


@pytest.mark.parametrize(("name", "low", "high"), [
    ("temperature", 0.0, LARGEST), ("top_p", 0.0, 1.0), ("min_p", 0.0, 1.0), ("presence", -LARGEST, LARGEST),
    ("frequency", -LARGEST, LARGEST), ("repetition", 0.0, LARGEST),
])  # fmt: skip
def test_a_setting_outside_its_range_is_refused(name: str, low: float, high: float) -> None:
    device = FakeDevice()
    for value in (low, high):
        assert reason(device, settings=Settings(**{name: value})) == ""
    beyond = (math.nextafter(low, -math.inf), math.nextafter(high, math.inf), math.nan, math.inf, -math.inf, 1e300)
    for value in beyond:
        assert name in reason(device, settings=Settings(**{name: value}))


def test_a_top_k_that_is_no_i32_is_refused() -> None:
    assert reason(FakeDevice(), settings=Settings(top_k=2**31 - 1)) == ""
    assert "top_k" in reason(FakeDevice(), settings=Settings(top_k=2**31))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39, -1e39])
def test_a_bias_that_is_no_f32_is_refused(value: float) -> None:
    device = FakeDevice()
    assert "bias" in reason(device, settings=Settings(bias=((1, value),)))
    assert reason(device, settings=Settings(bias=((1, LARGEST),))) == ""


def test_a_row_that_the_whole_memory_does_not_hold_is_refused() -> None:
    assert "memory" in reason(FakeDevice(units=6), prompt=(1,) * 10, limit=14)  # 6 blocks of 5
    assert reason(FakeDevice(units=7), prompt=(1,) * 10, limit=14) == ""
