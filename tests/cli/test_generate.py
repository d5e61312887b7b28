"""``heliograph generate``: an answer is a text of its own, unless it continues the prompt (--raw)."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from heliograph.cli import generate
from heliograph.core.manifest import Text as TextFacts
from heliograph.runtime.text import Text
from tiny_tokenizer import sentence_piece


@pytest.mark.parametrize(("options", "answer"), [([], "Hi"), (["--raw"], " Hi")])
def test_a_raw_prompt_is_continued_with_its_space(
    options: list[str], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = sentence_piece()
    facts = TextFacts(
        tokenizer="0" * 64, chat_template="0" * 64, bos=1, eos=(2,), vocabulary=300, context=512, block_tokens=16,
        concurrency=8, bos_text="<s>", eos_text="</s>",
    )  # fmt: skip
    text = Text(facts, tokenizer.to_str().encode(), "{{ messages[0].content }}")
    program = SimpleNamespace(phases={}, staged=SimpleNamespace(bytes_read=0))
    monkeypatch.setattr(generate, "verify", lambda *given: nullcontext())
    monkeypatch.setattr(generate, "load", lambda *given, **more: nullcontext(program))
    monkeypatch.setattr(generate, "generate", lambda *given: iter(tokenizer.encode("Hi").ids))
    monkeypatch.setattr(Text, "of", lambda verified: text)
    shown = CliRunner().invoke(generate.command, [str(tmp_path), "Hi", *options], catch_exceptions=False)
    told = CliRunner().invoke(generate.command, [str(tmp_path), "Hi", "--json", *options], catch_exceptions=False)
    text.close()
    assert shown.output == answer + "\n"
    assert json.loads(told.output)["answer"] == answer
