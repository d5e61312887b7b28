"""All rules of core.json, in the order of docs/core-format.md."""

from __future__ import annotations

from heliograph.core.manifest import Core
from heliograph.core.rules import content, memory, program, weights


def check_meaning(core: Core, draft: bool = False) -> None:
    """FormatError naming the first rule that a decoded core breaks. A draft may hold unknown self-test results."""
    content.check_version(core)
    memory.check_target(core)
    memory.check_limits(core)
    memory.check_regions(core)
    memory.check_buffers(core)
    program.check_functions(core)
    program.check_globals(core)
    program.check_graphs(core)
    program.check_fields(core)
    weights.check_slices(core)
    weights.check_tensors(core)
    content.check_choices(core)
    content.check_self_tests(core, draft)
    content.check_text(core)
    content.check_blobs(core)
