"""A model's text is tried before it goes into a core."""

from __future__ import annotations

import pytest

from heliograph.models.model_text import ModelText, check_text
from heliograph.runtime.text import Pieces
from tiny_tokenizer import byte_level


@pytest.mark.parametrize("token", [0, 258])
def test_a_token_that_cannot_be_decoded_is_found_at_capture(monkeypatch: pytest.MonkeyPatch, token: int) -> None:
    whole = Pieces.bytes_of

    def bytes_of(pieces: Pieces, given: int) -> bytes:
        if given == token:
            raise ValueError
        return whole(pieces, given)

    text = ModelText(byte_level().to_str().encode(), "", -1, (2,), "", "", 259)
    check_text(text)
    monkeypatch.setattr(Pieces, "bytes_of", bytes_of)
    with pytest.raises(ValueError):
        check_text(text)
