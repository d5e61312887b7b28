"""The process that clients talk to. It never touches a device: tokens come from a worker.

::

    app ─ openai_request ─▶ service ─ Submit ─▶ supervisor ◀─ frames ─▶ worker
     ▲                                             │ Launched
     └── openai_answer ◀─ text_stream ◀─ journal ◀─┘─▶ rounds

In reading order:

``start``           what ``heliograph serve`` calls: tell the worker, bind, and only then the imports
``spawn``           a worker's process (the first one is a copy: ``serve.fork``)
``face``            what the front reads of a core: its name, its digest, its tokenizer
``server``          the event loop: uvicorn, signals, the end
``connection``      bounds on a connection that uvicorn does not have
``app``             the endpoints that a start needs; ``others`` the rest, imported when asked for
``generate``        one request that generates: read, start, stream or collect, cancel
``openai_request``  bodies of the OpenAI dialect -> a plan (pure)
``openai_answer``   rows -> answers, chunks, errors of that dialect (pure)
``edge``            what every request passes; ``body`` and ``reply`` are the bounded ways in and out
``refusal``         why a request is not answered
``service``         admits requests, holds early ones, turns plans into rows
``generation``      the rows of one request, and the wait for their tokens
``journal``         the tokens of each row, exactly one end each (pure)
``text_stream``     tokens -> text, stop strings (pure)
``rounds``          counters of launches (pure)
``metrics``         what else is counted; ``exposition`` writes it down for /metrics
``supervisor``      the worker's life: start, silence, death, restart, stop
"""
