"""Who is admitted when, which buckets run, how copies of a prompt share it."""

from __future__ import annotations

from heliograph.serve.frames import Submit
from heliograph.serve.worker.row import Prompt, Row
from heliograph.serve.worker.scheduler import Chunk, Decode, Scheduler, smallest

READY = {"decode": [1, 2, 4], "prefill": [2, 4, 8]}
CONTEXT, BLOCK = 24, 4


def rows(scheduler: Scheduler, first: int, *, copies: int = 1, count: int = 4, limit: int = 4) -> list[Row]:
    """Rows of one Submit, numbered from ``first``, in the queue."""
    numbers = range(first, first + copies)
    prompt = Prompt.of(Submit(tuple((number, 0) for number in numbers), (1,) * count, limit), CONTEXT, BLOCK)
    made = [Row(number, 0, prompt) for number in numbers]
    for row in made:
        scheduler.add(row)
    return made


def numbers(of: list[Row]) -> list[int]:
    return [row.number for row in of]


def decode_all(scheduler: Scheduler) -> None:
    """Every admitted row is as if its prompt were stored."""
    for row in list(scheduler._prefilling):
        row.stored = len(row.prompt.tokens)
        scheduler.start(row)


def test_the_smallest_ready_bucket_that_holds_the_work_is_chosen_or_the_largest() -> None:
    assert [smallest([2, 8], wanted) for wanted in (1, 2, 3, 8, 9)] == [2, 2, 8, 8, 8]


def test_rows_are_admitted_in_order_while_slots_are_free() -> None:
    scheduler = Scheduler(slots=2, units=100)
    made = [rows(scheduler, number)[0] for number in range(4)]
    assert numbers(scheduler.admit()) == [0, 1]
    assert scheduler.admit() == []
    assert (scheduler.load.running, scheduler.load.waiting) == (2, 2)
    scheduler.end(made[0])
    assert numbers(scheduler.admit()) == [2]


def test_a_row_that_does_not_fit_holds_back_those_behind_it() -> None:
    scheduler = Scheduler(slots=4, units=1 + 6)
    small = rows(scheduler, 0, limit=4)[0]  # 2 blocks
    rows(scheduler, 1, limit=16)  # 5
    rows(scheduler, 2, limit=4)  # 2, which would fit
    assert numbers(scheduler.admit()) == [0]
    scheduler.end(small)
    assert numbers(scheduler.admit()) == [1]


def test_every_block_that_a_row_may_need_is_reserved_when_it_is_admitted() -> None:
    scheduler = Scheduler(slots=4, units=100)
    (row,) = rows(scheduler, 0, count=5, limit=10)
    scheduler.admit()
    assert len(row.blocks) == 4
    assert scheduler.blocks.free == 99 - 4


def test_a_round_has_all_decoding_rows_and_at_most_one_chunk() -> None:
    scheduler = Scheduler(slots=4, units=100)
    first = [rows(scheduler, number)[0] for number in range(2)]
    scheduler.admit()
    decode_all(scheduler)
    later = [rows(scheduler, number, count=11)[0] for number in (2, 3)]
    scheduler.admit()
    work = scheduler.next_round(READY)
    assert work.decode == Decode(2, tuple(first))
    assert work.chunk == Chunk(8, later[0], 0, 8)


def test_a_prompt_is_stored_in_the_largest_chunks_and_one_that_holds_the_rest() -> None:
    scheduler = Scheduler(slots=4, units=100)
    (row,) = rows(scheduler, 0, count=19)
    scheduler.admit()
    chunks = []
    while row.stored < 19:
        chunk = scheduler.next_round(READY).chunk
        assert chunk is not None
        chunks.append((chunk.bucket, chunk.start, chunk.end))
        row.stored = chunk.end
    assert chunks == [(8, 0, 8), (8, 8, 16), (4, 16, 19)]


def test_rows_that_the_largest_ready_bucket_does_not_hold_take_turns() -> None:
    scheduler = Scheduler(slots=5, units=100)
    made = [rows(scheduler, number)[0] for number in range(5)]
    scheduler.admit()
    decode_all(scheduler)
    served: list[int] = []
    for _ in range(5):
        work = scheduler.next_round({"decode": [1, 2], "prefill": [2]}).decode
        assert work is not None
        served += numbers(list(work.rows))
    assert served == numbers(made) * 2


def test_rows_keep_their_places_while_all_of_them_fit() -> None:
    scheduler = Scheduler(slots=4, units=100)
    made = [rows(scheduler, number)[0] for number in range(3)]
    scheduler.admit()
    decode_all(scheduler)
    assert [scheduler.next_round(READY).decode for _ in range(3)] == [Decode(4, tuple(made))] * 3


def test_copies_share_the_whole_blocks_of_their_prompt_and_write_only_to_their_own() -> None:
    scheduler = Scheduler(slots=4, units=100)
    made = rows(scheduler, 0, copies=3, count=10, limit=4)  # 4 blocks each, 2 of them shared
    scheduler.admit()
    shared = made[0].blocks[:2]
    assert all(row.blocks[:2] == shared for row in made)
    own = [block for row in made for block in row.blocks[2:]]
    assert len({*own, *shared}) == 3 * 2 + 2
    assert scheduler.blocks.free == 99 - 8


def test_later_copies_begin_after_what_the_first_has_stored() -> None:
    scheduler = Scheduler(slots=4, units=100)
    made = rows(scheduler, 0, copies=2, count=10)
    scheduler.admit()
    for end in (8, 10):
        chunk = scheduler.next_round(READY).chunk
        assert chunk is not None
        assert (chunk.row, chunk.end) == (made[0], end)
        made[0].stored = end
        made[0].prompt.store(end)
    scheduler.start(made[0])
    assert scheduler.next_round(READY).chunk == Chunk(2, made[1], 8, 10)


def test_the_next_copy_goes_on_where_the_first_left() -> None:
    scheduler = Scheduler(slots=4, units=100)
    made = rows(scheduler, 0, copies=2, count=20)
    scheduler.admit()
    made[0].stored = 8
    made[0].prompt.store(8)
    scheduler.end(made[0])
    assert scheduler.next_round(READY).chunk == Chunk(8, made[1], 8, 16)


def test_shared_blocks_stay_for_copies_that_still_wait_and_go_with_the_last_one() -> None:
    scheduler = Scheduler(slots=1, units=100)
    made = rows(scheduler, 0, copies=2, count=10)
    scheduler.admit()
    shared = made[0].blocks[:2]
    scheduler.end(made[0])
    assert [scheduler.blocks.owners(block) for block in shared] == [1, 1]
    scheduler.end(made[1])  # it never ran
    assert scheduler.blocks.free == 99


def test_copies_that_do_not_fit_together_run_one_after_the_other() -> None:
    scheduler = Scheduler(slots=4, units=1 + 5)
    made = rows(scheduler, 0, copies=2, count=10, limit=4)  # 4 blocks, then 2 more
    assert numbers(scheduler.admit()) == [0]
    scheduler.end(made[0])
    assert numbers(scheduler.admit()) == [1]
    scheduler.end(made[1])
    assert scheduler.blocks.free == 5
