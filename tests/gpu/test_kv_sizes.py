"""The number of blocks of keys and values is chosen at load: smaller, as at capture, larger, beyond 4 GiB. Wherever the
blocks of a sequence lie, it gets the same bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu.factories import UNITS
from gpu.runs import HERE, prepared, replayed, script
from tiny_models import random_model, write_gguf

pytestmark = pytest.mark.gpu
GIB = 1 << 30
UNIT = 64 << 10  # bytes of a block: 2 layers, keys and values, 4 heads, 16 tokens, 128 halves
BEYOND = 5 * GIB // UNIT  # with the last blocks above 4 GiB, and above 2^31 elements
SIZES = (9, 20, UNITS, 4 * UNITS, BEYOND)


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("kv")
    sizes = {"hidden_size": 512, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4}
    write_gguf(folder / "m.gguf", random_model("llama", **sizes), matrices="Q4_1", embedding="Q8_0")
    factory = f"{HERE / 'factories.py'}:blocks"
    return prepared(folder / "cores", factory, str(folder / "m.gguf"), retain="executable", replays=3)


@pytest.fixture(scope="module")
def measured(captured: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {units: script("units.py", captured["core"], str(units)) for units in SIZES}


@pytest.mark.parametrize("units", SIZES)
def test_a_sequence_gets_the_same_bits_wherever_its_blocks_lie(measured: dict[int, dict[str, Any]], units: int) -> None:
    told = measured[units]
    assert told["units"] == units
    assert told["unit bytes"] == UNIT
    assert told["places"]["last"] == told["places"]["first"]
    assert told["places"]["scattered"] == told["places"]["first"]
    assert told["places"]["first"]["written"]
    assert told["after_ready"] == {"modules_loaded": 0, "bytes_mapped": 0}
    print(json.dumps({"units": units, "pool bytes": told["pool bytes"], "tokens": told["places"]["last"]["tokens"]}))


def test_the_number_of_blocks_decides_nothing_else(measured: dict[int, dict[str, Any]]) -> None:
    assert len({told["places"]["last"]["steps"] for told in measured.values()}) == 1
    assert measured[BEYOND]["pool bytes"] > 4 * GIB


def test_replays_are_those_of_the_capture(captured: dict[str, Any]) -> None:
    assert replayed(captured)["digests"] == captured["digests"]
