"""R31: long prompts one after the other, then four long answers at once, on a core of four rows (fake device)."""

from __future__ import annotations

from collections.abc import Sequence

from fake_device import FakeClock, FakeDevice, text
from single_run import single_run

from heliograph.serve.frames import Launched, Settings
from heliograph.serve.front.journal import End, Journal, Row, Work, submit_of
from heliograph.serve.front.rounds import Rounds
from heliograph.serve.front.text_stream import TextStream
from heliograph.serve.worker.engine import Engine

PROMPTS = (831, 1777, 2896, 4110)
ANSWER, ROWS = 1024, 4


class Silent:
    """No text: nothing here stops at a string."""

    def add(self, token: int) -> str:
        return ""

    def end(self) -> str:
        return ""


class Server:
    """Front and worker without their sockets: journal and counters, engine and device."""

    def __init__(self) -> None:
        core = text(context=8192, block_tokens=16, concurrency=ROWS)
        self.device = FakeDevice(core, units=1 + 8192 // 16 * ROWS, sizes={"decode": (1, 2, 4), "prefill": (16, 256)})
        self.engine = Engine(self.device, FakeClock())
        self.journal, self.rounds = Journal(), Rounds()

    def ask(self, prompt: int, limit: int, seed: int = 0) -> Row:
        """A request with a prompt of so many tokens, end of text ignored."""
        tokens = tuple((seed + 7 * place) % 11 for place in range(prompt))
        work = Work(tokens, (seed,), limit, 0, (), (), Settings(temperature=1.0))
        (row,) = self.journal.open(work, lambda: TextStream(Silent(), ()), lambda kept: None)
        assert self.engine.submit(submit_of([row])) == []
        return row

    def run(self) -> list[Launched]:
        launched = []
        while self.engine.busy:
            for each in self.engine.round():
                launched.append(each)
                self.rounds.count(each, sum(self.journal.take(gain)[0] for gain in each.gains))
        return launched

    def whole(self, rows: Sequence[Row]) -> bool:
        """Whether each row has the tokens of its single run and ended with its limit."""
        wanted = [(single_run(submit_of([row]), row.seed, self.device.text)[0], End.LENGTH) for row in rows]
        return [(row.tokens, row.end) for row in rows] == wanted


def test_four_answers_of_1024_tokens_after_long_prompts_account_for_4_times_1023() -> None:
    server = Server()
    free = server.engine._scheduler.blocks.free
    for prompt in PROMPTS:
        row = server.ask(prompt, 16, seed=prompt)
        launched = server.run()
        assert sum(each.real for each in launched if each.entry == "prefill") == prompt
        assert server.whole([row])
    assert (server.rounds.rounds, server.rounds.emitted) == (4 * 15, 4 * 15)
    server.rounds = Rounds()  # of this phase
    rows = [server.ask(100, ANSWER, seed=number) for number in range(ROWS)]
    server.run()
    assert server.whole(rows)
    rounds = server.rounds
    assert (rounds.emitted, rounds.first_tokens) == (ROWS * (ANSWER - 1), ROWS)
    assert rounds.rounds * rounds.tokens_per_round == ROWS * (ANSWER - 1)
    assert server.engine._scheduler.blocks.free == free


def test_a_fifth_long_answer_waits_for_a_row_and_is_whole() -> None:
    server = Server()
    rows = [server.ask(PROMPTS[number % 4], 64, seed=number) for number in range(ROWS + 1)]
    launched = server.run()
    assert max(each.load.running for each in launched) == ROWS
    assert launched[0].load.waiting == 1
    assert server.whole(rows)
    assert server.rounds.emitted == (ROWS + 1) * 63
