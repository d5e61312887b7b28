"""What the front reads of a core: its name, its digest and its text. The rest is the worker's to check."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from heliograph.core.manifest import Text as TextFacts
from heliograph.core.policy import Policy
from heliograph.core.verify_text import verify_text
from heliograph.errors import UsageError
from heliograph.runtime.template import Process
from heliograph.runtime.text import Text


class Face(msgspec.Struct, frozen=True):
    """A core as its clients see it."""

    name: str  # as signed
    digest: str  # of core.json
    numerics: str  # row-invariant or fast: what answers depend on
    facts: TextFacts
    text: Text
    nanoseconds: int  # that loading took


def load_face(core: Path, renderer: Process | None = None) -> Face:
    """Checks and reads it. Raises what ``core.verify`` does; UsageError for a core of no language model."""
    start = time.perf_counter_ns()
    verified = verify_text(core, Policy.local())
    facts = verified.core.text
    if facts is None:
        raise UsageError(
            f"serving {verified.name}", found="a core of no language model", required="a core with a tokenizer",
            hint="use replay for other models",
        )  # fmt: skip
    text = Text.of(verified, renderer)
    return Face(verified.name, verified.digest, verified.core.numerics, facts, text, time.perf_counter_ns() - start)
