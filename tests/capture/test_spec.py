"""A spec that cannot be meant is refused where it is made; with the one field put right it is not."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.capture.examples import drawn, example
from heliograph.capture.spec import CaptureSpec, EntrySpec, Example, StateSpec, TensorSpec, graph_name, label
from heliograph.errors import UsageError


def call(model: object, **inputs: object) -> dict:
    return {}


def entry(**changes: Any) -> EntrySpec:
    fields: dict[str, Any] = {
        "name": "run",
        "buckets": ({"rows": 1}, {"rows": 2}),
        "inputs": {"x": TensorSpec(("rows", 4), "f32")},
        "call": call,
    }
    return EntrySpec(**{**fields, **changes})


def spec(**changes: Any) -> CaptureSpec:
    return CaptureSpec(**{"model": "test", "entries": (entry(),), **changes})


GROWING = {"kv": StateSpec((4,), "f16", grows=True)}
WRONG_AND_RIGHT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "no entry": ({"entries": ()}, {"entries": (entry(),)}),
    "numerics": ({"numerics": "exact"}, {"numerics": "fast"}),
    "a path for a name": ({"model": "model of /home/ada"}, {"model": "ada/model"}),
    "slot": ({"slot": 8}, {"slot": 7}),
    "two entries of one name": ({"entries": (entry(), entry())}, {"entries": (entry(), entry(name="other"))}),
    "units without growth": ({"units": 3}, {"units": 3, "state": GROWING}),
    "growth without units": ({"state": GROWING}, {"state": GROWING, "units": 1}),
    "two that grow": (
        {"state": {**GROWING, "more": StateSpec((4,), "f16", grows=True)}, "units": 1},
        {"state": {**GROWING, "more": StateSpec((4,), "f16")}, "units": 1},
    ),
    "type": ({"state": {"s": StateSpec((4,), "f12")}}, {"state": {"s": StateSpec((4,), "f16")}}),
    "shape of state": ({"state": {"s": StateSpec((0,), "f16")}}, {"state": {"s": StateSpec((1,), "f16")}}),
    "shared by dimension": (
        {"shared": {"m": TensorSpec(("rows",), "i32")}},
        {"shared": {"m": TensorSpec((3,), "i32")}},
    ),
    "input and state of one name": (
        {"state": {"x": StateSpec((4,), "f16")}},
        {"state": {"y": StateSpec((4,), "f16")}},
    ),
    "name": ({"entries": (entry(name="run/1"),)}, {"entries": (entry(name="run1"),)}),
    "no bucket": ({"entries": (entry(buckets=()),)}, {"entries": (entry(buckets=({"rows": 1},)),)}),
    "a bucket alone": ({"entries": (entry(buckets={"rows": 1}),)}, {"entries": (entry(buckets=({"rows": 1},)),)}),
    "inputs by number": ({"entries": (entry(inputs={"x": (4,)}),)}, {"entries": (entry(),)}),
    "a shape alone": (
        {"entries": (entry(inputs={"x": TensorSpec(4, "f32")}),)},
        {"entries": (entry(inputs={"x": TensorSpec((4,), "f32")}),)},
    ),
    "an entry alone": ({"entries": entry()}, {"entries": (entry(),)}),
    "order": (
        {"entries": (entry(buckets=({"rows": 2}, {"rows": 1})),)},
        {"entries": (entry(buckets=({"rows": 1}, {"rows": 2})),)},
    ),
    "twice": (
        {"entries": (entry(buckets=({"rows": 2}, {"rows": 2})),)},
        {"entries": (entry(buckets=({"rows": 2}, {"rows": 3})),)},
    ),
    "dimensions": (
        {"entries": (entry(buckets=({"rows": 2}, {"tokens": 3})),)},
        {"entries": (entry(buckets=({"rows": 2}, {"rows": 3})),)},
    ),
    "extent": (
        {"entries": (entry(buckets=({"rows": 0},)),)},
        {"entries": (entry(buckets=({"rows": 1},)),)},
    ),
    "unknown dimension": (
        {"entries": (entry(inputs={"x": TensorSpec(("tokens",), "f32")}),)},
        {"entries": (entry(inputs={"x": TensorSpec(("rows",), "f32")}),)},
    ),
}


@pytest.mark.parametrize(("wrong", "right"), WRONG_AND_RIGHT.values(), ids=WRONG_AND_RIGHT.keys())
def test_a_spec_is_refused_for_one_field_only(wrong: dict, right: dict) -> None:
    with pytest.raises(UsageError):
        spec(**wrong)
    spec(**right)


def test_a_bucket_is_labelled_by_its_extents() -> None:
    assert label({"rows": 8}) == "8"
    assert label({"rows": 4, "tokens": 128}) == "4x128"
    assert graph_name(entry(), {}) == "run/fixed"


def test_shapes_follow_the_bucket() -> None:
    assert TensorSpec(("rows", 3, "tokens"), "f32").resolve({"rows": 2, "tokens": 5}) == (2, 3, 5)


def test_drawn_inputs_keep_their_bounds_and_depend_on_the_seed_alone() -> None:
    field = TensorSpec(("rows",), "i32", low=-3, high=4)
    values = memoryview(drawn(field, {"rows": 4000}, "key")).cast("i").tolist()
    assert set(values) == set(range(-3, 5))
    assert drawn(field, {"rows": 9}, "key") == drawn(field, {"rows": 9}, "key")
    assert drawn(field, {"rows": 9}, "key") != drawn(field, {"rows": 9}, "other")
    floats = memoryview(drawn(TensorSpec((4000,), "f32", low=2, high=3), {}, "key")).cast("f").tolist()
    assert 2 <= min(floats) < 2.01
    assert 2.99 < max(floats) <= 3


@pytest.mark.parametrize("dtype", ["f32", "f64", "f16", "bf16", "i64", "i32", "i16", "i8", "u8", "bool"])
def test_inputs_of_every_type_can_be_drawn(dtype: str) -> None:
    assert set(drawn(TensorSpec((64,), dtype, low=0, high=0), {}, "key")) == {0}


def given(inputs: dict[str, bytes], real_rows: dict[str, int] | None = None) -> CaptureSpec:
    return spec(examples=lambda entry, bucket, seed: Example(inputs, real_rows))


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        (given({}), given({"x": bytes(16)})),
        (given({"x": bytes(16), "y": b""}), given({"x": bytes(16)})),
        (given({"x": bytes(12)}), given({"x": bytes(16)})),
        (given({"x": bytes(16)}, {"rows": 2}), given({"x": bytes(16)}, {"rows": 0})),
        (given({"x": bytes(16)}, {"tokens": 1}), given({"x": bytes(16)}, {"rows": 1})),
    ],
)
def test_an_example_that_does_not_fit_its_bucket_is_refused(wrong: CaptureSpec, right: CaptureSpec) -> None:
    with pytest.raises(UsageError):
        example(wrong, wrong.entries[0], {"rows": 1}, 0)
    assert example(right, right.entries[0], {"rows": 1}, 0).inputs == {"x": bytes(16)}
