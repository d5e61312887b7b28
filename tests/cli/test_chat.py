"""`heliograph chat` as a script and as a person would use it, against a server whose answers are written down."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from scripted_server import LIMIT, STREAM, Script, UntilClientLeaves, piece, refusal, serving, whole

HELIOGRAPH = str(Path(sys.executable).parent / "heliograph")


def chat(*arguments: str, stdin: str = "", check: int = 0) -> subprocess.CompletedProcess[str]:
    run = subprocess.run(
        [HELIOGRAPH, "chat", *arguments], input=stdin, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert run.returncode == check, run.stderr
    return run


def contents(script: Script, request: int = -1) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in script.requests[request]["messages"]]


def test_a_message_is_answered_on_standard_output_and_figures_go_to_standard_error() -> None:
    with serving(whole("Pa", "ris.")) as script:
        run = chat(script.url, "--message", "Where?")
    assert run.stdout == "Paris.\n"
    assert "2 tokens" in run.stderr
    assert contents(script) == [("user", "Where?")]


def test_a_message_may_come_on_standard_input() -> None:
    with serving(whole("Yes.")) as script:
        assert chat(script.url, stdin="Is it?\n").stdout == "Yes.\n"
    assert contents(script) == [("user", "Is it?\n")]


def test_options_are_fields_of_the_request_and_what_is_not_given_is_not_sent() -> None:
    with serving(whole("a"), whole("b")) as script:
        chat(script.url, "--message", "Hi", "--system", "Be brief.", "--model", "m", "--max-tokens", "5",
             "--temperature", "0.5", "--seed", "7")  # fmt: skip
        chat(script.url, "--message", "Hi")
    given, bare = script.requests
    assert contents(script, 0) == [("system", "Be brief."), ("user", "Hi")]
    expected = {"model": "m", "max_tokens": 5, "temperature": 0.5, "seed": 7}
    assert {name: given[name] for name in expected} == expected
    assert set(expected) & set(bare) == {"model"}


def test_the_only_model_of_a_server_needs_no_name_and_of_several_one_must_be_named() -> None:
    with serving(whole("a")) as script:
        chat(script.url, "--message", "Hi")
    assert script.requests[0]["model"] == "scripted"
    for models in ((), ("one", "two")):
        with serving(whole("a"), models=models) as script:
            chat(script.url, "--message", "Hi", check=2)
            chat(script.url, "--message", "Hi", "--model", "two")
        assert [request["model"] for request in script.requests] == ["two"]


def test_a_script_gets_one_object() -> None:
    with serving(whole("a", "b", "c", finish="length")) as script:
        before = time.monotonic_ns()
        result = json.loads(chat(script.url, "--message", "Hi", "--json").stdout)
    assert (result["answer"], result["finish_reason"], result["usage"]["completion_tokens"]) == ("abc", "length", 3)
    assert before < result["first_token_at_ns"] <= time.monotonic_ns()
    assert 0 < result["first_token_ns"] <= result["total_ns"]
    assert result["tokens_per_second"] > 0


@pytest.mark.parametrize(
    "steps",
    [refusal(503, message="full"), refusal(400, message="no"), [STREAM, piece("half")]],
    ids=["503", "400", "cut"],
)
def test_a_refused_or_broken_answer_is_an_error_with_the_exit_code_of_the_server(steps: list[bytes]) -> None:
    with serving(steps) as script:
        run = chat(script.url, "--message", "Hi", "--json", check=9)
    assert json.loads(run.stderr)["error"] == "AnswerError"
    assert run.stdout == ""


def test_where_nothing_listens_is_an_error_that_says_what_to_start() -> None:
    with serving() as script:
        url = script.url
    error = json.loads(chat(url, "--message", "Hi", "--json", check=9).stderr)
    assert error["error"] == "UnreachableError"
    assert "heliograph serve" in error["hint"]


def test_an_empty_message_is_refused_before_a_server_is_asked() -> None:
    with serving() as script:
        chat(script.url, "--message", " ", check=2)
        chat(script.url, stdin="", check=2)
    assert script.requests == []


# ---- on a terminal
class Terminal:
    """A person at a terminal: types, and waits until something is shown."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process, self.descriptor, self.shown = process, descriptor, ""

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def see(self, text: str) -> None:
        """Waits until this is shown, and forgets what was shown up to there."""
        assert self._sees(text, LIMIT), f"{text!r} is not in {self.shown!r}"

    def interrupt_until(self, text: str) -> None:
        """Ctrl-C at a prompt, again if nothing happens: between showing a prompt and waiting for input the line editor
        does not notice the first one."""
        end = time.monotonic() + LIMIT
        self.type("\x03")
        while not self._sees(text, 1.0):
            assert time.monotonic() < end, f"{text!r} is not in {self.shown!r}"
            self.type("\x03")

    def _sees(self, text: str, limit: float) -> bool:
        end = time.monotonic() + limit
        while text not in self.shown:
            readable, _, _ = select.select([self.descriptor], [], [], max(0, end - time.monotonic()))
            if not readable:
                return False
            self.shown += os.read(self.descriptor, 4096).decode()
        self.shown = self.shown.partition(text)[2]
        return True

    def end(self) -> int:
        return self.process.wait(LIMIT)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "dumb"}
    command = [HELIOGRAPH, "chat", *arguments]
    # A session of its own, whose terminal this is: Ctrl-C typed here reaches it and nobody else. It means something,
    # also when the tests themselves run in the background of a shell, which has them ignore it.
    take = (
        "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        "signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", take, *command],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, env=environment,
    )  # fmt: skip
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        process.kill()
        process.wait(LIMIT)
        os.close(ours)


def test_a_conversation_keeps_what_was_said_until_exit() -> None:
    with serving(whole("I am", " one."), whole("Two.")) as script, terminal(script.url, "--system", "Count.") as person:
        person.see("> ")
        person.type("Who?\n")
        person.see("I am one.")
        person.see("tokens/s")
        person.see("> ")
        person.type("\nAnd?\n")
        person.see("Two.")
        person.see("> ")
        person.type("/exit\n")
        assert person.end() == 0
    assert contents(script) == [("system", "Count."), ("user", "Who?"), ("assistant", "I am one."), ("user", "And?")]


def test_end_of_input_ends_a_conversation() -> None:
    with serving() as script, terminal(script.url) as person:
        person.see("> ")
        person.type("\x04")
        assert person.end() == 0


def test_an_interrupt_stops_the_answer_alone_and_what_was_said_stays() -> None:
    silent, endless = [UntilClientLeaves()], [STREAM, piece("On and"), UntilClientLeaves()]
    with serving(silent, endless, whole("Yes.")) as script, terminal(script.url) as person:
        person.see("> ")
        person.interrupt_until("> ")
        person.type("Nothing?\n")
        assert script.asked.wait(LIMIT)
        person.type("\x03")
        assert script.left.wait(LIMIT)
        script.left.clear()
        person.see("stopped")
        person.see("> ")
        person.type("Go on.\n")
        person.see("On and")
        person.type("\x03")
        assert script.left.wait(LIMIT)
        person.see("stopped")
        person.see("> ")
        person.type("Enough?\n")
        person.see("Yes.")
        person.see("> ")
        person.type("\x04")
        assert person.end() == 0
    assert contents(script) == [("user", "Go on."), ("assistant", "On and"), ("user", "Enough?")]


def test_an_interrupt_ends_a_command_that_asks_once() -> None:
    with serving([UntilClientLeaves()]) as script, terminal(script.url, "--message", "Hi") as person:
        assert script.asked.wait(LIMIT)
        person.type("\x03")
        assert person.end() == 130
        assert script.left.wait(LIMIT)


def test_an_error_leaves_the_conversation_as_it_was() -> None:
    with serving(refusal(503, message="full"), whole("Yes.")) as script, terminal(script.url) as person:
        person.see("> ")
        person.type("First?\n")
        person.see("AnswerError")
        person.see("> ")
        person.type("Second?\n")
        person.see("Yes.")
    assert contents(script) == [("user", "Second?")]


def test_an_answer_cannot_steer_the_terminal() -> None:
    with serving(whole("a\x1b]0;title\x07b\x9bc\tü\n")) as script, terminal(script.url) as person:
        person.see("> ")
        person.type("Hi\n")
        person.see("a]0;titlebc")
    with serving(whole("a\x1b[1mb")) as script:
        assert chat(script.url, "--message", "Hi").stdout == "a\x1b[1mb\n"
