"""Read an invite as people pass it on: pasted with the text around it, or in a file, which may be missing yet."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from node.config.invite_text import is_invite, open_invite, refuse_invite
from node.runtime.errors import UsageError
from protocol.core.identity import Keypair
from protocol.core.invite import Invite, write_invite

OPERATOR = Keypair(b"\x01" * 32)
ADDRESSES = [f"/ip4/192.0.2.{number}/tcp/4001/p2p/{OPERATOR.peer_id}" for number in range(1, 5)]
INVITE = Invite(operator=OPERATOR.public, swarm=b"\x8a" * 32, addresses=ADDRESSES, name="kites")
TEXT = write_invite(INVITE)
assert len(TEXT) > 255, "longer than the name of any file"


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        open_invite(text, now_ms=0)
    return str(caught.value)


@pytest.mark.parametrize(
    "text", [TEXT, f'"{TEXT}"', f"volery join {TEXT}", f"\u201c{TEXT}\u201d", f"{TEXT[:99]}\n{TEXT[99:]}"]
)
def test_what_was_pasted(text: str) -> None:
    assert open_invite(text, now_ms=0) == INVITE


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_that_holds_it(tmp_path: Path, encoding: str) -> None:
    for name in ("invite", "volery1-invite.txt"):
        (tmp_path / name).write_text(f"Run this:\r\n  volery join {TEXT}\r\n", encoding=encoding)
        assert open_invite(str(tmp_path / name), now_ms=0) == INVITE


def test_a_pipe_that_tells_it() -> None:
    """`volery join <(ssh HOST cat state/invite)`."""
    reading, writing = os.pipe()
    os.write(writing, TEXT.encode())
    os.close(writing)
    try:
        assert open_invite(f"/dev/fd/{reading}", now_ms=0) == INVITE
    finally:
        os.close(reading)


@pytest.mark.parametrize("name", ["state/invite", "invite", "../invite.txt", "/nowhere/at/all", "my.invite"])
def test_a_file_that_is_not_there_yet(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = refusal(name)
    assert said.startswith(f"{name}: there is no such file, and an invite begins with volery1. Name the file")
    assert "The operator of the swarm has it" in said


def test_a_directory(tmp_path: Path) -> None:
    assert refusal(str(tmp_path)) == (
        f"{tmp_path} is a directory. Name the file in it that holds the invite, or paste the invite."
    )


@pytest.mark.parametrize("text", ["hello", "a" * 300, "x/" * 3000, "Volery1abc", "nul\0nul", "\udcff", ""])
def test_what_is_neither(text: str) -> None:
    assert "invite" in refusal(text)


def test_a_file_that_holds_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(range(256)))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name in ("file", "loop", "file/below"):
        said = refusal(str(tmp_path / name))
        assert ("loop cannot be read" if name == "loop" else "not an invite") in said


def test_an_invite_where_a_file_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_invite(TEXT)
    with pytest.raises(UsageError, match=r"is an invite, which `volery join` takes\. Name a swarm\.toml here\."):
        refuse_invite(Path(f'"{TEXT}"'), "a swarm.toml")
    (tmp_path / "volery1").mkdir()
    assert not is_invite("volery1"), "a directory may have that name"
    refuse_invite(Path("volery1"), "a swarm.toml")
