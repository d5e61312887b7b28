"""Loads a core and replays it, in a process without PyTorch.

Reading order:

- ``budget``     how much memory a load may use: what its device, the control group and the machine have left
- ``plan``       what a core needs and how many units of growth fit: pure arithmetic
- ``memory``     regions reserved at their addresses, mapped, protected
- ``staging``    weights read by several threads straight into their region, checked there
- ``pinned``     on a CUDA device: through pinned memory, checked there
- ``catalogue``  graphs rebuilt in stored order, compared, instantiated
- ``loaded``     a core in this process: what the program and the checker both stand on
- ``spans``      on a CUDA device: all inputs of a bucket in one copy, all outputs in another
- ``patterns``   bytes that state and scratch are filled with before a test
- ``selftest``   a graph's stored inputs run and compared with its stored results
- ``gate``       the states of a program and which calls each allows
- ``program``    the loaded core: named entries, buffers, state; the only thing that launches
- ``load``       from a verified core to a program, or back to nothing
- ``cuda``       what a load does on a CUDA device alone: limits, variables, function attributes, memory taken
- ``handover``   the preparing process becomes the serving program
- ``text``       a language model's tokenizer: encoding, chats, decoding token by token
- ``template``   its chat template, rendered by ``render`` in a bounded process
- ``sampling``   what decides a row's tokens
- ``steps``      a language model's buckets filled and run, for many rows that come and go
- ``generate``   prompts in chunks, then one token a step: the plain way to run a language model's core

The checker, which runs on drafts in processes of its own:

- ``check``      its command: ``python -m heliograph.runtime.check``
- ``tries``      which tries are made, how they are compared, the report
- ``child``      one process, its time limit, and what it was doing when it ended
- ``attempt``    what such a process does
- ``replay``     all buckets replayed under one condition of scratch
- ``scratch``    that condition
- ``narrow``     which bytes of scratch matter, by halves down to 256
- ``numbers``    NaN in raw bytes
- ``maps``       what is mapped into this process

Imports ``core``, ``device``, ``errors`` and the native extension; never torch, numpy, ``capture`` or ``models``.
"""
