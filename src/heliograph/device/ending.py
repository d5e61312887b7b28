"""A process that works on a device for another one ends with it."""

from __future__ import annotations

import os
import threading
import time


def end_with(parent: int) -> None:
    """Ends this process soon after the one that started it, however that one ends: a graph that hangs would not."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="end-with", daemon=True).start()
