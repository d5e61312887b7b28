"""What the extension takes from the C++ library, beside whatever else is loaded into its process."""

from __future__ import annotations

import re
from pathlib import Path

from heliograph import _native

from .elf import Elf

# std::istream, ostream, iostream, their templates, what they are made of, and locales; of either string ABI.
STREAMS = re.compile(r"_ZT?[A-Z]*N?K?S[iod]|stream|streambuf|6locale|8ios_base|use_facet")


def test_the_extension_uses_no_streams_of_the_c_plus_plus_library() -> None:
    """Another library's streams may win for the whole process, and then a number that is written ends it."""
    file = _native.__file__
    assert file is not None
    used = [symbol.name for symbol in Elf(Path(file).read_bytes()).symbols if not symbol.defined]
    assert any(name.startswith("_ZNSt") for name in used)
    assert [name for name in used if STREAMS.search(name)] == []
