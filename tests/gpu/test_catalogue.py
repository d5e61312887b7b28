"""A catalogue of 4,000 functions in 4,000 small images: what verifying, loading and the first result take, and how that
grows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpu.runs import script

pytestmark = pytest.mark.gpu
SIZES = (100, 1000, 4000)
GROWTH = 2.5  # most by which an image may take longer among 4,000 than among 1,000; something quadratic takes 4 times
SMALL_MILLISECONDS = 40  # differences of less than this are noise


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    found = {}
    for count in SIZES:
        folder: Path = tmp_path_factory.mktemp("catalogue")
        built = script("catalogue.py", "build", str(count), str(folder))
        found[count] = script("catalogue.py", "load", built["core"], built["key"], str(time.time()))
        print(json.dumps(found[count]))
    return found


@pytest.mark.parametrize("count", SIZES)
def test_every_function_of_every_image_is_the_right_one(measured: dict[int, dict[str, Any]], count: int) -> None:
    assert all(measured[count]["right"])
    assert measured[count]["modules"] == count


@pytest.mark.parametrize(("kind", "name"), [("times", "verify"), ("phases", "modules"), ("times", "first result")])
def test_time_grows_with_the_number_of_images(measured: dict[int, dict[str, Any]], kind: str, name: str) -> None:
    thousand, all_of_them = (measured[count][kind][name] for count in SIZES[1:])
    assert all_of_them < GROWTH * 4 * thousand + SMALL_MILLISECONDS
