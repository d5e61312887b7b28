"""The command line. One module a command; nothing here decides anything that a library caller could not.

Reading order:

- ``main``      what the console command calls: before everything else, then the command
- ``group``     the commands by name, exit codes, how an error is shown
- ``output``    what every command prints through: a person's view or one JSON object
- ``size``      a byte count on the command line; ``number`` a finite number
- ``capture``   model files -> signed core
- ``inspect``   what is in a core
- ``verify``    every byte of a core against its signature
- ``replay``    every bucket of a core, again and again, against its self-test
- ``generate``  a prompt answered by a core, without torch
- ``serve``     a core over HTTP
- ``chat``      talk to a server; ``answer`` is what comes back
- ``doctor``    what this machine can do, and whether a core fits it

Commands are imported when they are named, so that ``heliograph generate`` never imports torch.
"""
