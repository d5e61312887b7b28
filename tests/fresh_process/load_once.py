"""Loads a core once and says how that ended: python load_once.py CORE PUBLIC_KEY [threads]. The last line is JSON.

With "threads" 50 threads map and unmap memory all the time: stacks, arenas and libraries of a busy process.
"""

from __future__ import annotations

import json
import mmap
import random
import sys
import threading
from pathlib import Path

from heliograph.core.policy import Policy
from heliograph.core.verify import verify
from heliograph.errors import AddressTakenError
from heliograph.runtime.load import load


def map_and_unmap(stop: threading.Event, seed: int, wrong: list[int]) -> None:
    sizes = random.Random(seed)
    while not stop.is_set():
        with mmap.mmap(-1, sizes.randrange(1, 256) << 12) as memory:
            memory[:4] = seed.to_bytes(4, "little")
            if memory[:4] != seed.to_bytes(4, "little") or memory[4096:4100].strip(b"\0"):
                wrong.append(seed)


def main(core: str, key: str, mode: str = "") -> None:
    stop, wrong = threading.Event(), list[int]()
    threads = [threading.Thread(target=map_and_unmap, args=(stop, seed, wrong)) for seed in range(50 if mode else 0)]
    for thread in threads:
        thread.start()
    result: dict[str, object] = {"outcome": "loaded"}
    with verify(Path(core), Policy.only(bytes.fromhex(key))) as verified:
        try:
            with load(verified) as program:
                result["passed"] = [program.self_test(graph) for graph in range(len(program.core.graphs))]
        except AddressTakenError as error:
            result = {"outcome": "AddressTakenError", "found": error.found}
    stop.set()
    for thread in threads:
        thread.join()
    print(json.dumps(result | {"wrong": wrong}))


if __name__ == "__main__":
    main(*sys.argv[1:])
