"""A classifier in plain PyTorch: captured here, then replayed by a process that has no PyTorch (classify.py).

    python examples/classifier.py CORES      writes its core into the folder CORES, and replays it
    heliograph capture examples/classifier.py:classifier

The model is convolutions and an MLP with random weights. The scores that PyTorch computes here and those of the
replaying process have to agree within float rounding.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import torch
from classify import CLASSES, ROWS, SIDE, images
from torch import nn

from heliograph.capture import CaptureSpec, EntrySpec, TensorSpec, capture


def classifier() -> tuple[nn.Module, CaptureSpec]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 32),
        nn.GELU(),
        nn.LayerNorm(32),
        nn.Linear(32, CLASSES),
        nn.Softmax(dim=-1),
    ).eval()
    classify = EntrySpec(
        "classify",
        buckets=({"rows": 1}, {"rows": 4}),
        inputs={"image": TensorSpec(("rows", 3, SIDE, SIDE), "f32")},
        call=lambda model, image: {"scores": model(image)},
    )
    return model, CaptureSpec("classifier", (classify,))


def main(cores: Path) -> None:
    model, spec = classifier()
    core = capture(model, spec, cores=cores)
    print(f"captured {core.name}")
    with torch.no_grad():
        expected = model(torch.frombuffer(bytearray(images()), dtype=torch.float32).view(ROWS, 3, SIDE, SIDE))

    command = [sys.executable, str(Path(__file__).with_name("classify.py")), str(core)]
    replayed = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    scores = torch.tensor(replayed["scores"]).view(ROWS, CLASSES)
    difference = float((scores - expected).abs().max())
    print(f"replayed without torch: {not replayed['torch']}, largest difference of a score: {difference:.1e}")
    if replayed["torch"] or difference > 1e-5:
        sys.exit("the replay differs from PyTorch")
    for row, best in enumerate(scores.argmax(1).tolist()):
        print(f"image {row}: class {best}, score {scores[row, best]:.3f}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/classifier.py CORES")
    main(Path(sys.argv[1]))
