"""Every bound of the server in one table: no wait, count or size is unbounded. What a frame may hold stands with its
format in ``frames``, what a chat template may cost in ``runtime.template``.

Times are seconds. docs/serving.md shows this table; a test compares them.
"""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True):
    # ---- a request
    body: int = 8 << 20  # bytes of a request's body
    header: int = 64 << 10  # bytes of a request's line and headers
    messages: int = 4096  # messages of a conversation
    stops: int = 16  # stop strings
    stop_length: int = 1024  # characters of one
    stop_tokens: int = 256  # stop tokens
    biases: int = 256  # entries of logit_bias that a request may name; the core's own bound may be lower
    prompts: int = 64  # prompts of one completion request
    encode: float = 10.0  # to render a chat template and make tokens of a prompt, the wait for a thread included
    body_wait: float = 30.0  # for a request's body to arrive
    # ---- the queue
    waiting: int = 1024  # requests that wait or run; more are answered 503
    bodies: int = 256 << 20  # bytes of their bodies together; more are answered 503
    rows: int = 1 << 17  # that wait or run; more are answered 503
    unread: int = 16 << 20  # bytes of frames that the worker has not taken; new requests are answered 503
    hold: float = 120.0  # an early request waits this long for the core to be loaded
    # ---- a connection
    stall: float = 60.0  # a client that takes nothing for so long is dropped
    keep_alive: float = 75.0  # an idle connection, or one whose headers do not come to an end, stays open
    connections: int = 16384  # at a time; more are closed at once
    ping: float = 15.0  # an SSE comment after so much silence
    # ---- the worker
    start: float = 300.0  # from its start to Loaded, and from there to Ready
    silence: float = 120.0  # without a frame while rows are under way: it hangs
    unsent: int = 16 << 20  # bytes of frames that the front has not taken: the worker pauses
    rounds_between_builds: int = 256  # one bucket is built in so many rounds while rows run
    quiet: float = 0.2  # without a row, then buckets are built one after the other
    early: float = 0.02  # after its event loop began the front has heard the clients that came before; see Proceed
    # ---- the end
    shutdown: float = 30.0  # SIGTERM: running requests may end
    stop: float = 5.0  # the worker may end after Stop, before it is killed
    restarts: int = 3  # of the worker within `restart_window`; then the server ends
    restart_window: float = 60.0


LIMITS = Limits()
