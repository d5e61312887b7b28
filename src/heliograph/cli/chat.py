"""``heliograph chat``: talk to a server over HTTP, as a conversation or with one message."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import click

from heliograph.cli.answer import Answer, Server
from heliograph.cli.number import Number
from heliograph.cli.output import json_option, print_json, show_error
from heliograph.errors import ServeError, UsageError

# Text from elsewhere may not steer the terminal: no control characters but line breaks and tabs.
CONTROLS = dict.fromkeys([*range(0x20), 0x7F, *range(0x80, 0xA0)]) | {9: "\t", 10: "\n"}


@click.command("chat")
@click.argument("url", default="http://127.0.0.1:8000")
@click.option("--message", help="Ask this and end; also read from standard input if that is no terminal.")
@click.option("--system", help="System message.")
@click.option("--model", help="Name of the model; left out, the server's only one.")
@click.option("--max-tokens", type=click.IntRange(1), help="Most tokens of an answer; left out, the server decides.")
@click.option("--temperature", type=Number(0), help="0 takes the likeliest token.")
@click.option("--seed", type=int, help="Same seed, same answer.")
@json_option
def command(
    url: str, message: str | None, system: str | None, model: str | None, max_tokens: int | None,
    temperature: float | None, seed: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Talk to the server at URL (default http://127.0.0.1:8000).

    On a terminal a conversation begins: Ctrl-C stops an answer, /exit or Ctrl-D ends. Times and tokens per second go
    to standard error, so standard output holds answers only.
    """
    server = Server.at(url)
    talk = message is None and sys.stdin.isatty() and not as_json
    question = sys.stdin.read() if message is None and not talk else message or ""
    if not talk and not question.strip():
        raise UsageError(
            "reading the message", found="nothing", required="a message",
            hint="give it with --message or on standard input",
        )  # fmt: skip
    fields = {"model": model or server.only_model(), "max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    request = {name: value for name, value in fields.items() if value is not None}
    messages = [said("system", system)] if system else []
    if talk:
        converse(server, request, messages)
        return
    with Answer(server, {**request, "messages": [*messages, said("user", question)]}) as answer:
        for part in answer:
            if not as_json:
                show(part)
    if as_json:
        print_json(figures(answer))
    else:
        finish(answer)


def converse(server: Server, request: Mapping[str, object], messages: list[dict[str, str]]) -> None:
    """Turns until the person ends it. What was said stays, also of an answer that was stopped; a turn without an
    answer is dropped."""
    import readline  # noqa: F401, PLC0415 - gives `input` line editing; only a conversation needs its 5 ms

    click.echo(f"talking to {server}; Ctrl-C stops an answer, /exit or Ctrl-D ends", err=True)
    while True:
        try:
            question = input("> ").strip()
        except KeyboardInterrupt:
            click.echo()
            continue
        except EOFError:
            click.echo()
            return
        if question == "/exit":
            return
        if not question:
            continue
        turn = said("user", question)
        try:
            with Answer(server, {**request, "messages": [*messages, turn]}) as answer:
                try:
                    for part in answer:
                        show(part)
                except KeyboardInterrupt:
                    answer.finish_reason = "stopped"
        except ServeError as error:
            show_error(error, as_json=False)
            continue
        finish(answer)
        if answer.text:
            messages += turn, said("assistant", answer.text)


def show(part: str) -> None:
    """As it is, but to a terminal without what would steer it. (``click.echo`` would alter it elsewhere as well.)"""
    sys.stdout.write(part.translate(CONTROLS) if sys.stdout.isatty() else part)
    sys.stdout.flush()


def finish(answer: Answer) -> None:
    click.echo()
    click.echo(click.style(summary(answer), dim=True), err=True)


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def summary(answer: Answer) -> str:
    parts = [f"first token {(answer.first_ns - answer.sent_ns) / 1e9:.3f} s"] if answer.first_ns else ["no text"]
    if answer.tokens:
        parts += [f"{answer.tokens} tokens", f"{answer.tokens_per_second:.1f} tokens/s"]
    if answer.finish_reason != "stop":
        parts.append({"length": "cut at the limit of tokens"}.get(answer.finish_reason, answer.finish_reason))
    return ", ".join(parts)


def figures(answer: Answer) -> dict[str, Any]:
    """For scripts. Times are nanoseconds; ``first_token_at_ns`` is on the machine's monotonic clock."""
    return {
        "answer": answer.text, "id": answer.id, "model": answer.model, "finish_reason": answer.finish_reason,
        "usage": answer.usage, "first_token_ns": max(0, answer.first_ns - answer.sent_ns),
        "first_token_at_ns": answer.first_ns, "total_ns": max(0, answer.last_ns - answer.sent_ns),
        "tokens_per_second": answer.tokens_per_second,
    }  # fmt: skip
