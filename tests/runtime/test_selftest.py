"""Which cases of a self-test are run, and that a start leaves nothing of them behind."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from heliograph.core.manifest import Case
from heliograph.core.verify import VerifiedCore
from heliograph.errors import SelfTestError
from heliograph.runtime.load import load
from heliograph.runtime.program import Program
from heliograph.runtime.selftest import chosen_cases, self_test


@pytest.fixture
def program(verified: VerifiedCore) -> Iterator[Program]:
    with load(verified) as loaded:
        yield loaded


def wrong(case: Case) -> Case:
    return msgspec.structs.replace(case, outputs="1" * 64)


def test_a_start_runs_two_cases_and_a_whole_test_all(program: Program) -> None:
    loaded = program._loaded
    test = loaded.core.self_tests[0]
    first, second, *_ = test.cases
    last_is_wrong = msgspec.structs.replace(test, cases=(first, second, wrong(first)))
    self_test(loaded, 0, chosen_cases(last_is_wrong, whole=False))
    with pytest.raises(SelfTestError) as refused:
        self_test(loaded, 0, chosen_cases(last_is_wrong, whole=True))
    assert "case 2" in refused.value.doing
    second_is_wrong = msgspec.structs.replace(test, cases=(first, wrong(second), first))
    with pytest.raises(SelfTestError) as refused:
        self_test(loaded, 0, chosen_cases(second_is_wrong, whole=False))
    assert "case 1" in refused.value.doing


def test_after_a_start_state_inputs_and_outputs_are_zero(program: Program) -> None:
    for name in ("total", "cache"):
        with program.state(name) as state:
            assert not any(state)
    for entry in program.core.entries:
        for bucket in entry.buckets:
            for field in (*bucket.inputs, *bucket.outputs):
                assert not any(program.read(entry.name, dict(bucket.shape), field.name)), field.name
