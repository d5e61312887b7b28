"""Prepares, then becomes the program that serves: python hand_over.py CORE PUBLIC_KEY WHAT.

WHAT: "clean" closes everything first; "alive" does not. The serving side is this file again with "serve".
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.device.host import open_host
from heliograph.errors import UsageError
from heliograph.runtime.handover import handover
from heliograph.runtime.load import load


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def is_open(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def prepare(core: str, key: str, what: str) -> None:
    leaked, listening = os.memfd_create("leaked", 0), os.memfd_create("listening", 0)
    os.set_inheritable(leaked, True)
    device = open_host(workers=2)
    ballast = bytearray(256 << 20)
    ballast[::4096] = b"\1" * (len(ballast) // 4096)
    with verify(Path(core), Policy.only(bytes.fromhex(key))) as verified:
        program = load(verified, device=device)
        program.self_test(0)
        if what == "clean":
            program.close()
        told = [str(number) for number in (os.getpid(), leaked, listening, resident())]
        command = [sys.executable, __file__, core, key, "serve", *told]
        try:
            handover(command, devices=[device], keep=[listening])
        except UsageError as error:
            print(json.dumps({"refused": error.found, "still passes": program.self_test(0)}))


def serve(core: str, key: str, pid: str, leaked: str, listening: str, before: str) -> None:
    descriptors = {name: str(Path(f"/proc/self/fd/{name}").readlink()) for name in (leaked, listening) if is_open(name)}
    at_start = resident()
    with verify(Path(core), Policy.only(bytes.fromhex(key))) as verified, load(verified) as program:
        passed = [program.self_test(graph) for graph in range(len(program.core.graphs))]
    print(
        json.dumps(
            {
                "same process": int(pid) == os.getpid(),
                "leaked": "leaked" in descriptors.get(leaked, ""),
                "listening": "listening" in descriptors.get(listening, ""),
                "resident before": int(before),
                "resident after": at_start,
                "passed": passed,
            }
        )
    )


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[2] == "serve":
        serve(arguments[0], arguments[1], *arguments[3:])
    else:
        prepare(*arguments)
