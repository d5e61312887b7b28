"""Replays the core that classifier.py made, in a process without PyTorch: ``python examples/classify.py CORE``."""

from __future__ import annotations

import json
import random
import sys
from array import array
from pathlib import Path

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load

CLASSES, SIDE, ROWS = 10, 16, 3


def images() -> bytes:
    """ROWS pictures of noise as float32, the same in every process."""
    draw = random.Random(7)
    return array("f", (draw.uniform(-1, 1) for _ in range(ROWS * 3 * SIDE * SIDE))).tobytes()


def classify(core: Path) -> list[float]:
    """The scores of the images, from the smallest bucket that holds them."""
    with verify(core, Policy.local()) as verified, load(verified) as program:
        shape = program.bucket("classify", rows=ROWS)
        pictures = images()
        with program.view("classify", shape, "image") as image:
            image[: len(pictures)] = pictures
        program.run("classify", **shape)
        with program.view("classify", shape, "scores") as scores:
            return scores.cast("f").tolist()[: ROWS * CLASSES]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/classify.py CORE")
    print(json.dumps({"scores": classify(Path(sys.argv[1])), "torch": "torch" in sys.modules}))
