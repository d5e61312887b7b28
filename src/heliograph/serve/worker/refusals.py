"""Why rows cannot be served, in words that a client may read. A refusal ends the rows, never the worker."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.serve.frames import Settings, Submit
from heliograph.serve.worker.device import Device
from heliograph.serve.worker.row import Prompt

LARGEST = 3.4028234663852886e38  # of f32
RANGES = (
    ("temperature", 0.0, LARGEST),
    ("top_k", 0, (1 << 31) - 1),
    ("top_p", 0.0, 1.0),
    ("min_p", 0.0, 1.0),
    ("presence", -LARGEST, LARGEST),
    ("frequency", -LARGEST, LARGEST),
    ("repetition", 0.0, LARGEST),
)  # fmt: skip


def refusal(submit: Submit, prompt: Prompt, device: Device) -> str:
    """Why this core cannot serve a Submit as it is loaded; empty if it can."""
    return next(_reasons(submit, prompt, device), "")


def _reasons(submit: Submit, prompt: Prompt, device: Device) -> Iterator[str]:
    text = device.text
    if len(submit.prompt) > text.context:
        yield f"the prompt has {len(submit.prompt)} tokens, the model's context {text.context}"
    if len(submit.rows) > text.concurrency:
        yield f"{len(submit.rows)} rows at once, the core runs {text.concurrency}"
    if prompt.total >= device.units:
        yield f"prompt and limit need {prompt.total} blocks of memory, there are {device.units - 1}"
    for name, tokens in (
        ("the prompt", submit.prompt),
        ("the stop tokens", submit.stops),
        ("the biases", [token for token, _ in submit.settings.bias]),
    ):
        beyond = next((token for token in tokens if token >= text.vocabulary), None)
        if beyond is not None:
            yield f"token {beyond} in {name}, the vocabulary has {text.vocabulary}"
    yield from _wrong_settings(submit.settings)
    biased = {token for token, _ in submit.settings.bias} | (prompt.stops if submit.least else set())
    if len(biased) > device.biases:
        yield f"{len(biased)} tokens are biased or held back, the core has places for {device.biases}"


def _wrong_settings(settings: Settings) -> Iterator[str]:
    for name, low, high in RANGES:
        value = getattr(settings, name)
        if not low <= value <= high:  # false for NaN too
            yield f"{name} {value}, outside {low:g} to {high:g}"
    for token, value in settings.bias:
        if not -LARGEST <= value <= LARGEST:
            yield f"a bias of {value} on token {token}, outside the range of f32"
