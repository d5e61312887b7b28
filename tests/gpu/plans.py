"""Whether a load of a core fits into what is free now: python plans.py CORE. No torch. Prints one JSON object: what the
plan needs, or "refused"."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpu.no_torch  # noqa: F401
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.device.cuda import open_cuda
from heliograph.errors import OutOfMemoryError
from heliograph.runtime.load import load


def main(core: Path) -> None:
    device = open_cuda(compiles=False)
    said: dict[str, object] = {"free": device.free_bytes}
    with verify(core, Policy.local()) as verified:
        try:
            with load(verified, device=device, ready=()) as program:
                plan = program._loaded.plan
                said |= {"needed": plan.needed, "executables": plan.executables}
        except OutOfMemoryError as error:
            said["refused"] = f"{error.found}; {error.required}"
    device.close()
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
