"""HTTP from processes without PyTorch. Two processes and what they say to each other.

::

    client ── HTTP ──▶ front ── frames over a unix socket ──▶ worker ── Program ──▶ device

The front never touches a device, a worker never touches HTTP. In reading order:

``frames``   the messages between them: schema, version, bounds
``limits``   every bound on a wait, a size or a count, in one table
``worker``   scheduler in rounds, KV blocks, the loaded core
``front``    HTTP, text, requests and the journal of their tokens, the supervisor of the worker
``fork``     the first worker and renderer, as copies of the process that becomes the front

Neither imports torch, numpy, ``capture`` or ``models``.
"""
