"""The two readers agree on every altered core, well signed or not."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import independent_reader
from heliograph.cli.inspect import describe
from heliograph.core import manifest
from heliograph.core.encoding import decode
from heliograph.core.format import COLUMNS, PROVENANCE_JSON
from heliograph.core.manifest import Core, Provenance
from heliograph.core.policy import Policy
from heliograph.core.rules.meaning import check_meaning
from heliograph.core.verify import verify
from heliograph.errors import CoreError, FormatError, OutOfMemoryError, SelfTestError, TargetError
from heliograph.runtime.load import load
from tiny_core import TinyCore, tiny_core
from tiny_cuda_core import tiny_cuda_core

PARTS = tiny_core(weight_bytes=64 << 10, text=True)
CORE = PARTS.files()["core.json"]
CUDA = tiny_cuda_core(weight_bytes=64 << 10, text=True).files()["core.json"]
PROVENANCE = PARTS.files()[PROVENANCE_JSON]


def product_verdict(data: bytes) -> str:
    try:
        check_meaning(decode(data, Core, "reading"))
    except FormatError as error:
        return error.rule
    return ""


def independent_verdict(data: bytes) -> str:
    try:
        core = independent_reader.document(data, "core")
        independent_reader.check_core(core)
        independent_reader.check_blobs(core)
    except independent_reader.Refused as error:
        return error.rule
    return ""


def both(data: bytes) -> str:
    """The common verdict. The readers may find different rules broken when several are."""
    mine, other = product_verdict(data), independent_verdict(data)
    assert (mine == "") == (other == ""), (mine, other)
    return mine


@settings(max_examples=1500, deadline=None)
@given(st.sampled_from([CORE, CUDA]), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
def test_they_agree_on_every_altered_byte_of_core_json(core: bytes, at: float, value: int) -> None:
    """M1 to M5, M30 to M53"""
    data = bytearray(core)
    data[int(at * len(data))] ^= value
    both(bytes(data))


@settings(max_examples=400, deadline=None)
@given(st.integers(0, len(PROVENANCE) - 1), st.integers(1, 255))
def test_they_agree_on_every_altered_byte_of_provenance_json(at: int, value: int) -> None:
    """M1 to M4"""
    data = bytearray(PROVENANCE)
    data[at] ^= value
    try:
        decode(bytes(data), Provenance, "reading")
        mine = True
    except FormatError:
        mine = False
    try:
        independent_reader.document(bytes(data), "provenance")
        other = True
    except independent_reader.Refused:
        other = False
    assert mine == other


def places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value in a JSON document."""
    found = [way] if way else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        found += places(part, (*way, key))
    return found


WAYS = {core: places(json.loads(core)) for core in (CORE, CUDA)}
NUMBERS = [0, 1, 2, 7, 8, 63, 64, 255, 256, 257, 4096, 1 << 20, 1 << 31, 1 << 32, (1 << 53) - 1, -1, 1 << 53]
WORDS = ["", "..", "a/b", "weights", "scratch", "io", "host", "cuda", "f32", "u8", "0" * 64, "0x100100000000"]
ODD = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.sampled_from([None, True, False, [], {}, [0], "1", 1.5]),
    st.integers(0, (1 << 53) - 1),
)


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_they_agree_on_every_altered_value_of_core_json(draw: st.DataObject) -> None:
    """M4, M5, M30 to M53: values exchanged, doubled, taken away, made odd."""
    core = draw.draw(st.sampled_from([CORE, CUDA]))
    plain = json.loads(core)
    for _ in range(draw.draw(st.integers(1, 2))):
        way = draw.draw(st.sampled_from(WAYS[core]))
        place = plain
        try:
            for part in way[:-1]:
                place = place[part]
            old = place[way[-1]]
        except (KeyError, IndexError, TypeError):
            continue
        how = draw.draw(st.sampled_from(["odd", "near", "drop", "double", "from elsewhere"]))
        if how == "near" and isinstance(old, int):
            place[way[-1]] = old + draw.draw(st.sampled_from([-256, -8, -1, 1, 8, 256]))
        elif how == "drop":
            del place[way[-1]]
        elif how == "double" and isinstance(place, list):
            place.append(old)
        elif how == "from elsewhere":
            other = [
                value for value in (lookup(json.loads(core), way) for way in WAYS[core]) if type(value) is type(old)
            ]
            place[way[-1]] = draw.draw(st.sampled_from(other)) if other else None
        else:
            place[way[-1]] = draw.draw(ODD)
    both(json.dumps(plain, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode())


def lookup(value: Any, way: tuple[Any, ...]) -> Any:
    for part in way:
        value = value[part]
    return value


@pytest.mark.parametrize("seed", range(12))
def test_they_agree_on_well_signed_cores_with_altered_graphs(tiny: TinyCore, tmp_path: Path, seed: int) -> None:
    """M60 to M87: flipped bytes of graphs.safetensors under a fresh, valid signature."""
    generator = random.Random(seed)
    tiny = tiny if seed % 2 else tiny_cuda_core(weight_bytes=64 << 10)
    policy = Policy.only(tiny.key.public_bytes)
    data = tiny.graphs_bytes()
    for number in range(25):
        altered = bytearray(data)
        for _ in range(generator.randint(1, 2)):
            altered[generator.randrange(len(altered))] ^= 1 << generator.randrange(8)
        path = tiny.write(tmp_path / str(number), graphs=bytes(altered))
        try:
            verify(path, policy).close()
            mine = True
        except CoreError:
            mine = False
        try:
            independent_reader.read(path, [tiny.key.public_bytes], weights=False)
            other = True
        except independent_reader.Refused:
            other = False
        assert mine == other


MISMATCH = (TargetError, SelfTestError, OutOfMemoryError)  # the core is whole: another machine, results, more memory
NEAR = (-4096, -256, -8, -1, 1, 8, 256, 4096)


@pytest.mark.parametrize("seed", range(4))
def test_what_verify_accepts_can_be_inspected_and_loaded(tmp_path: Path, seed: int) -> None:
    """M30 to M53: values of core.json made odd, under a fresh, valid signature."""
    generator = random.Random(seed)
    policy = Policy.only(PARTS.key.public_bytes)
    ways = [way for way in WAYS[CORE] if seed % 2 or way[0] == "regions"]
    loaded = 0
    for number in range(300):
        plain = json.loads(CORE)
        way = generator.choice(ways)
        place, old = lookup(plain, way[:-1]), lookup(plain, way)
        near = type(old) is int and generator.random() < 0.8
        place[way[-1]] = old + generator.choice(NEAR) if near else generator.choice([*NUMBERS, *WORDS, None, True, []])
        if product_verdict(data := json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()):
            continue
        path = replace(PARTS, core=decode(data, Core, "reading")).write(tmp_path / str(number))
        try:
            verified = verify(path, policy)
        except CoreError:
            continue
        with verified:
            assert describe(verified)["digest"] == verified.digest
            with suppress(*MISMATCH), load(verified, workers=1):
                loaded += 1
    assert loaded > 0


def test_both_readers_know_the_same_columns_and_fields() -> None:
    theirs = {
        name: (dtype, (width,) if width > 1 else ()) for name, (dtype, width) in independent_reader.COLUMNS.items()
    }
    assert theirs == dict(COLUMNS)
    records = {
        name: set(kind.__struct_fields__)
        for name, kind in vars(manifest).items()
        if isinstance(kind, type) and issubclass(kind, manifest.Record) and kind is not manifest.Record
    }
    named = {"SelfTest": "self_test", "Text": "text_model"}
    for name, fields in records.items():
        assert independent_reader.SCHEMA[named.get(name, name.lower())].keys() == fields
    assert msgspec.json.decode(CORE, type=Core).format == 0
