"""Captures as prepare.py does, then becomes the program that replays, in the same process.

Reads prepare.py's request. What the capture said is left in the file ``said`` of the cores folder; what is printed is
what the replays say.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from gpu.prepare import prepare
from heliograph.capture.environment import serving_environment, start_in_fixed_environment
from heliograph.runtime.handover import handover


def main(line: str) -> None:
    request = json.loads(line)
    said = prepare(request) | {"process": os.getpid()}
    cores = Path(request["cores"])
    (cores / "said").write_text(json.dumps(said))
    replay = Path(__file__).with_name("replay.py")
    handover([sys.executable, str(replay), said["core"], str(cores / "plan")], environment=serving_environment())


if __name__ == "__main__":
    start_in_fixed_environment()
    main(sys.stdin.read())
