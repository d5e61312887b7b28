"""Rebuilds every graph of a core in a process without torch, and prints what the driver then has, with the flags of the
executables as they are read back: python rebuild.py CORE."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gpu.no_torch  # noqa: F401
from gpu.described import described
from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.runtime.load import load


def main(core: Path) -> None:
    said: dict[str, object] = {}
    flags = []
    with verify(core, Policy.local()) as verified, load(verified) as program:
        catalogue = program._loaded.catalogue
        for number, graph in enumerate(program.core.graphs):
            template = catalogue.build(number)
            catalogue.compare(template, number)
            said[graph.name] = described(template)
            template.close()
            flags.append([graph.flags, catalogue.executable(number).flags])
    print(json.dumps({"templates": said, "flags": flags, "torch": "libtorch" in Path("/proc/self/maps").read_text()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
