"""Clients that come, change their minds and go, in any order, against the real engine on a fake device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from fake_device import FakeClock, FakeDevice
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, invariant, multiple, precondition, rule
from single_run import single_run

from heliograph.serve.frames import Cancel, Ended, Launched, Settings, Submit
from heliograph.serve.limits import Limits
from heliograph.serve.worker.engine import Engine
from heliograph.serve.worker.row import State
from heliograph.serve.worker.scheduler import Scheduler

VOCABULARY = 11
tokens = st.integers(0, VOCABULARY - 1)
some_settings = st.builds(
    Settings,
    temperature=st.sampled_from([0.0, 0.7]),
    top_k=st.sampled_from([0, 5]),
    bias=st.sampled_from([(), ((3, 1.0),)]),
)


class Clients(RuleBasedStateMachine):
    """Every step is checked against what the clients know and against what the engine holds."""

    rows = Bundle("rows")

    @property
    def scheduler(self) -> Scheduler:
        return self.engine._scheduler

    def __init__(self) -> None:
        super().__init__()
        self.device = FakeDevice(units=16)  # 15 blocks of 4 tokens, a row needs 6 at most: memory is short
        self.engine = Engine(self.device, FakeClock(), Limits(rounds_between_builds=7))
        self.number = 0
        self.submits: dict[int, tuple[Submit, int]] = {}  # of each row, with its seed
        self.order: list[int] = []  # in which rows were taken in
        self.gained: dict[int, list[int]] = defaultdict(list)
        self.ends: dict[int, str] = {}

    # ---- what clients do ----------------------------------------------------------------------------------------

    @rule(
        target=rows,
        seeds=st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=5),
        prompt=st.lists(tokens, min_size=1, max_size=25),
        limit=st.integers(1, 30),
        least=st.sampled_from([0, 0, 1, 3, 40]),
        stops=st.lists(tokens, max_size=5),
        given=some_settings,
    )
    def submit(
        self, seeds: list[int], prompt: list[int], limit: int, least: int, stops: list[int], given: Settings
    ) -> MultipleResults[int]:
        numbers = range(self.number, self.number + len(seeds))
        self.number += len(seeds)
        submit = Submit(
            tuple(zip(numbers, seeds, strict=True)), tuple(prompt), limit, least, tuple(stops), given
        )  # fmt: skip
        self.submits |= {number: (submit, seed) for number, seed in submit.rows}
        ended = self.engine.submit(submit)
        self.take_ends(ended)
        biased = {token for token, _ in given.bias} | (set(stops) if least else set())
        fits = len(prompt) <= 24 and len(seeds) <= 4 and len(biased) <= 4
        assert [each.end for each in ended] == ([] if fits else ["refused"] * len(seeds))
        if fits:
            self.order += numbers
        return multiple(*numbers)

    @rule(chosen=st.lists(rows, min_size=1, max_size=4))
    def cancel(self, chosen: list[int]) -> None:
        before = set(self.ends)
        ended = self.engine.cancel(Cancel(tuple(chosen)))
        self.take_ends(ended)
        assert {each.row for each in ended} == set(chosen) - before

    @precondition(lambda self: self.engine.busy)
    @rule()
    def round(self) -> None:
        built = len(self.device.built)
        decoding = [row.number for row in self.scheduler._decoding]
        launched = list(self.engine.round())
        assert [each.entry for each in launched] in (["decode"], ["prefill"], ["decode", "prefill"])
        for each in launched:
            self.take_launched(each)
            assert each.prepared == built
        if decoding:
            assert {gain.row for gain in launched[0].gains} == set(decoding)  # nobody waits for a second round

    @rule()
    def build(self) -> None:
        self.engine.build()

    # ---- what they see ------------------------------------------------------------------------------------------

    def take_ends(self, ended: Iterable[Ended]) -> None:
        for each in ended:
            assert each.row not in self.ends
            assert bool(each.message) == (each.end == "refused")
            self.ends[each.row] = each.end

    def take_launched(self, launched: Launched) -> None:
        assert 0 < launched.real <= launched.bucket
        assert launched.nanoseconds > 0
        for gain in launched.gains:
            assert gain.row not in self.ends
            self.gained[gain.row] += gain.tokens
            if gain.end:
                self.ends[gain.row] = gain.end

    @invariant()
    def tokens_are_those_of_a_single_run(self) -> None:
        for number, gained in self.gained.items():
            expected, end = single_run(*self.submits[number], self.device.text)
            assert gained == expected[: len(gained)]
            if self.ends.get(number) in ("stop", "length"):
                assert (gained, self.ends[number]) == (expected, end)

    @invariant()
    def rows_begin_in_the_order_in_which_they_came(self) -> None:
        waiting = [row.number for row in self.scheduler._waiting]
        left = [number for number in self.order if number not in self.ends]
        assert waiting == left[len(left) - len(waiting) :]

    @invariant()
    def every_block_and_slot_has_the_owners_that_it_should(self) -> None:
        running = [*self.scheduler._prefilling, *self.scheduler._decoding]
        owners: dict[int, int] = defaultdict(int)
        writers: dict[int, int] = defaultdict(int)
        prompts = {row.prompt: None for row in [*running, *self.scheduler._waiting]}
        for prompt in prompts:
            for block in prompt.shared or ():
                owners[block] += 1
        for row in running:
            for block in row.blocks:
                owners[block] += 1
            for block in row.blocks[row.prompt.common :]:
                writers[block] += 1
        blocks = self.scheduler.blocks
        assert {block: blocks.owners(block) for block in range(1, 16)} == {b: owners[b] for b in range(1, 16)}
        assert all(count == 1 for count in writers.values())
        assert all(owners[block] == 1 for block in writers)
        assert blocks.free == 15 - len([block for block, count in owners.items() if count])
        slots = [row.slot for row in running]
        assert sorted([*slots, *self.scheduler._slots]) == [0, 1, 2, 3]
        assert not [row for row in running if row.state in (State.WAITING, State.ENDED)]

    def teardown(self) -> None:
        """Everything comes to its end, within the rounds that it needs."""
        for _ in range(40 * (1 + len(self.submits))):
            if not self.engine.busy:
                break
            self.round()
        assert not self.engine.busy
        assert set(self.ends) == set(self.submits)
        self.tokens_are_those_of_a_single_run()
        self.every_block_and_slot_has_the_owners_that_it_should()
        assert self.scheduler.blocks.free == 15


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
