"""The process that owns a core and a device: rows in, tokens out, round by round. It never sees text or HTTP.

::

    Submit ─▶ Row waiting ─ admit ─▶ prefilling ─ chunks ─▶ decoding ─ a token a round ─▶ ended ─▶ Launched | Ended

A row through its life: ``refusals`` lets it in, the ``scheduler`` gives it a slot and every block that it may need,
its prompt is stored one chunk a round, then every round gives it a token, until a stop token, its limit or its client
ends it. In reading order:

``row``        one sequence and the prompt it may share: a small state machine with one end
``blocks``     who owns which KV blocks, by counting
``scheduler``  who is admitted, what the next round launches: decisions only
``refusals``   why a Submit cannot be served, in words
``device``     what the engine asks of a device and a clock
``engine``     rounds: asks the scheduler, runs the device, tells what every row gained
``link``       frames on a non-blocking socket, with a bound on what was not taken
``main``       the process: start, the loop, the end

Everything down to ``engine`` is pure: a simulation drives it with a device that computes tokens by a formula
(``tests/serve/worker``). Imports ``runtime``, ``core`` and ``errors``, and of ``serve`` only ``frames`` and
``limits``; never ``front``, ``models``, ``capture``, torch, numpy, tokenizers, click or rich: a worker's imports
are part of the time to the first token.
"""
