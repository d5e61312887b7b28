"""What core.json must mean (docs/core-format.md 4): one function for each group of rules, pure, raising FormatError.

- ``memory``   target, limits, slot, regions, buffers (M30 to M37, M53)
- ``program``  modules, functions, graphs, entries, fields (M38, M40 to M42, M52)
- ``weights``  slices and tensors (M43 to M45)
- ``content``  choices, self-tests, text, blobs (M5, M47 to M51)
- ``meaning``  all of them, in order
"""
