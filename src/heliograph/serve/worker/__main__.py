"""``python -m heliograph.serve.worker FD``, or by its path: a worker on an inherited socket."""

import gc
import signal
import sys
import time

if __name__ == "__main__":
    began = time.perf_counter_ns()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # before the imports: from a terminal it reaches the whole group
    gc.disable()  # until the core is loaded: nothing that a start makes is garbage worth looking for
    from heliograph.serve.worker.main import main

    sys.exit(main(int(sys.argv[1]), began))
