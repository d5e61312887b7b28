"""What a process computed, another process computes bit by bit, in any order, many times over, without torch."""

from __future__ import annotations

from pathlib import Path

from replay_shuffled import replays

from heliograph.core.policy import Policy
from heliograph.core.sign import SigningKey
from heliograph.core.verify import verify
from heliograph.runtime.load import load
from study import Script

TIMES = 50


def test_fifty_replays_of_every_bucket_in_a_fresh_process_are_bit_equal(
    script: Script, fresh_core: Path, fresh_key: SigningKey
) -> None:
    with verify(fresh_core, Policy.only(fresh_key.public_bytes)) as verified, load(verified, workers=1) as program:
        here = replays(program, seed=1, times=TIMES)
    first = script("replay_shuffled.py", "2", str(TIMES))
    second = script("replay_shuffled.py", "3", str(TIMES))
    assert len(here) == 3 * TIMES == len(set(here.values()))
    assert first["digests"] == here
    assert second["digests"] == here


def test_the_replaying_process_has_neither_torch_nor_numpy(script: Script) -> None:
    result = script("replay_shuffled.py", "1", "1")
    assert result["modules"] == []
    assert result["libraries"] == []
