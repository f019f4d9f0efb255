"""The key of an endpoint: its source, and that none can be guessed where others can reach it."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.commands.serve.keys import is_local, read_key
from node.runtime.errors import NodeError, UsageError

KEY = "0123456789abcdef"


def test_a_key_comes_from_the_line_or_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")
    assert read_key("", None, "127.0.0.1") is None
    assert read_key("short", None, "127.0.0.1") == "short"
    assert read_key(KEY, None, "0.0.0.0") == KEY
    assert read_key("", file, "::") == KEY


@pytest.mark.parametrize(
    ("key", "host"),
    [
        ("", "0.0.0.0"),
        ("", "example.org"),
        ("short", "::"),
        ("with space" * 3, "::1"),
        ("ä" * 20, "::1"),
        ("a" * 5000, ""),
    ],
    ids=["none", "none for a name", "short", "space", "not ASCII", "long"],
)
def test_another_is_refused(key: str, host: str) -> None:
    with pytest.raises(UsageError, match="openssl rand"):
        read_key(key, None, host)


@pytest.mark.parametrize("content", [None, ""], ids=["no file", "empty"])
def test_a_file_without_a_key_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "key"
    if content is not None:
        file.write_text(content)
    with pytest.raises(NodeError, match="key"):
        read_key("", file, "127.0.0.1")
    with pytest.raises(UsageError, match="one of them"):
        read_key(KEY, file, "127.0.0.1")


def test_local_addresses() -> None:
    assert all(is_local(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    assert not any(is_local(host) for host in ("0.0.0.0", "::", "", "10.0.0.1", "localhost.example.org"))
