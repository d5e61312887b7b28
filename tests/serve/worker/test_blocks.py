"""Blocks have owners, and are free when the last one has gone."""

from __future__ import annotations

import pytest

from heliograph.errors import UsageError
from heliograph.serve.worker.blocks import Blocks


def test_every_block_but_the_padding_block_is_handed_out_once() -> None:
    blocks = Blocks(9)
    assert blocks.free == 8
    taken = blocks.take(5) + blocks.take(3)
    assert sorted(taken) == list(range(1, 9))
    assert blocks.free == 0


def test_more_blocks_than_are_free_are_refused_and_none_is_taken() -> None:
    blocks = Blocks(9)
    blocks.take(5)
    with pytest.raises(UsageError):
        blocks.take(4)
    assert blocks.free == 3
    assert len(blocks.take(3)) == 3


def test_a_shared_block_is_free_when_its_last_owner_gives_it_back() -> None:
    blocks = Blocks(4)
    (block,) = blocks.take(1)
    blocks.share([block])
    assert blocks.owners(block) == 2
    blocks.give_back([block])
    assert (blocks.owners(block), blocks.free) == (1, 2)
    blocks.give_back([block])
    assert (blocks.owners(block), blocks.free) == (0, 3)


def test_a_double_free_is_refused() -> None:
    blocks = Blocks(4)
    taken = blocks.take(2)
    blocks.give_back(taken)
    with pytest.raises(UsageError):
        blocks.give_back(taken[:1])
    assert blocks.free == 3


@pytest.mark.parametrize("block", [0, -1, 4, 3], ids=["padding", "negative", "beyond", "free"])
def test_a_block_that_nobody_owns_is_neither_shared_nor_given_back(block: int) -> None:
    blocks = Blocks(4)
    assert blocks.take(1) == [1]
    for act in (blocks.share, blocks.give_back):
        with pytest.raises(UsageError):
            act([block])
    blocks.share([1])
    blocks.give_back([1])
