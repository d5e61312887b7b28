"""The artifact: what a core is, byte by byte, how it is written, signed and checked. docs/core-format.md is the law.

Reading order:

- ``format``      every constant that can change a byte
- ``manifest``    the types of core.json and provenance.json
- ``refusal``     the error of a broken rule
- ``encoding``    canonical JSON: one encoder, one decoder
- ``templates``   graphs as data, and the columns they are stored in
- ``columns``     graphs.safetensors as bytes: header rules, nothing else
- ``digest``      BLAKE3, with threads where they pay
- ``layout``      where buffers, slices and chunks lie: pure arithmetic
- ``names``       core names: made, and checked
- ``policy``      which keys are trusted here
- ``sign``        the keys that sign
- ``envelope``    core.sig: the DSSE envelope and the signed statement
- ``folder``      files below a core's folder, opened once, no links followed
- ``rules``       what core.json must mean
- ``catalogue``   graphs.safetensors against core.json
- ``image``       what a kernel image must be
- ``target``      whether a core fits a machine
- ``signed``      the first steps of every verification; how blobs are read
- ``verify``      the only maker of a ``VerifiedCore``
- ``verify_text`` the text of a core for who does not run it
- ``weights``     chunks of the weights, read and checked
- ``storage``     synced writes, holes, rename without replacing
- ``store``       blobs shared between cores by content
- ``slices``      the weights image written as slices
- ``workplace``   the locked folder of a draft
- ``write``       drafts, publication
- ``provenance``  what a record must not tell
- ``report``      what the checker is asked and answers

Imports ``errors`` and ``_native`` only; neither torch nor numpy.
"""
