"""The fake driver answers as a real one did: fake_cuda/transcript.py has the questions, transcript.json the answers.

On a GPU (make test-gpu) the driver there must still say what was recorded; with HELIOGRAPH_RECORD=<file> its answers
are written there instead.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fake_cuda.control import FakeCuda
from fake_cuda.transcript import PTX, RECORD, TEXT, Answers, transcript
from heliograph._native import CudaDevice

RECORDED: Answers = json.loads(RECORD.read_text()) if RECORD.is_file() else {}
NOT_YET = [] if RECORDED else [pytest.mark.gpu]  # nothing to compare with: recorded by the first run on a GPU
# What the fake does not do, and why no test needs it.
DEVIATIONS: dict[str, str] = {
    "block of 2048": "it runs host kernels, which have no threads",
    "block above the bounds": "as above",
    "capture in which is mapped": "the driver makes memory and refuses to wait; the fake refuses the memory, for pools",
    "node attribute 16": "the driver ignores it; the fake keeps it, so that its refusal can be tested",
}


@pytest.mark.parametrize("device", [pytest.param("fake-cuda", marks=NOT_YET)])
def test_the_fake_driver_answers_as_the_real_one_did(fake_cuda: FakeCuda, device: str) -> None:
    assert RECORDED, "record it: HELIOGRAPH_RECORD=tests/fake_cuda/transcript.json make test-gpu"
    answers = transcript(CudaDevice(), TEXT)
    assert answers.keys() == RECORDED.keys()
    assert {name: said for name, said in answers.items() if name not in DEVIATIONS} == {
        name: said for name, said in RECORDED.items() if name not in DEVIATIONS
    }


def test_every_question_gets_an_answer_from_the_fake_driver(fake_cuda: FakeCuda) -> None:
    answers = transcript(CudaDevice(), TEXT)
    assert len(answers) > 60
    assert answers.keys() >= DEVIATIONS.keys()
    assert sum("CUDA_ERROR" in said for said in answers.values()) > 20


@pytest.mark.gpu
def test_this_driver_answers_as_recorded() -> None:
    answers = transcript(CudaDevice(), PTX.read_bytes())
    if where := os.environ.get("HELIOGRAPH_RECORD"):
        Path(where).write_text(json.dumps(answers, indent=1) + "\n")
        return
    assert answers == RECORDED
