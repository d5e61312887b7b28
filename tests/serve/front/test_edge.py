"""Which names can only mean this machine."""

from __future__ import annotations

import pytest

from heliograph.serve.front.edge import is_local


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:80", "localhost.", "a.localhost:1", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:80"],
)
def test_localhost_and_addresses_are(host: str) -> None:
    assert is_local(host)


@pytest.mark.parametrize(
    "host", ["", "example.com", "localhost.example.com", "127.0.0.1.example.com:80", "localhostx", ":80", "[::1", "é"]
)
def test_other_names_are_not(host: str) -> None:
    assert not is_local(host)
