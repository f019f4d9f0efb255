"""Invites: golden text, damage by people and programs, and hostile ones with a valid checksum."""

from __future__ import annotations

from contextlib import suppress

import base58
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.digest import digest_of
from protocol.core.errors import LocalProtocolError
from protocol.core.genesis import Authority
from protocol.core.identity import Keypair
from protocol.core.ids import SwarmId
from protocol.core.invite import Invite, InviteError, holds_invite, read_invite, write_invite
from protocol.core.limits import MAX_ADDRESS_CHARS, MAX_ADDRESSES, MAX_INVITE_CHARS, MAX_MILLIS, PROTOCOL_VERSION
from tests.support.examples import examples

OPERATOR = Keypair(b"\x01" * 32)
INVITE = Invite(
    operator=OPERATOR.public,
    swarm=b"\x8a" * 32,
    addresses=[f"/ip4/192.0.2.1/tcp/4001/p2p/{OPERATOR.peer_id}"],
    token="swordfish",
    expires_ms=10_000,
    name="kites",
)
TEXT = write_invite(INVITE)


def wrapped(body: bytes) -> str:
    """Any bytes as an invite whose checksum is right."""
    return "volery1" + base58.b58encode(body + digest_of(body)[:4]).decode()


def refusal(text: str, now_ms: int = 0) -> str:
    with pytest.raises(InviteError) as caught:
        read_invite(text, now_ms=now_ms)
    return str(caught.value)


def test_golden_text() -> None:
    body = bytes.fromhex(
        "97"  # array of 7
        "01"  # protocol
        "c420 8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"  # operator
        "c420"
        + "8a"
        * 32  # swarm
        + "91"  # addresses: array of 1
        "b4 2f6970342f3139322e302e322e312f7463702f31"  # "/ip4/192.0.2.1/tcp/1"
        "a0"  # token: none
        "00"  # expires_ms: never
        "a5 6b69746573"  # name: "kites"
    )
    invite = Invite(operator=OPERATOR.public, swarm=b"\x8a" * 32, addresses=["/ip4/192.0.2.1/tcp/1"], name="kites")
    text = (
        "volery1fQNytwyt2DmDEfNkUhMFrnMgaSpoH1NZK3zDUNqfQf445GYZxe41nSQHsvesz25skjrtaXGcg"
        "CxmAKwvnGJ6gEgmExo6JwCmKydAmQX82Kt6h3my1uCyfUMUVE47wpUPD1N5XgaepkN8sc"
    )
    assert write_invite(invite) == text == wrapped(body)
    assert read_invite(text, now_ms=10**15) == invite


@given(
    st.binary(min_size=32, max_size=32),
    st.lists(
        st.text(st.characters(min_codepoint=33, exclude_categories=["Cc", "Cs"]), max_size=30), min_size=1, max_size=4
    ),
    st.text(max_size=20),
    st.integers(0, MAX_MILLIS),
)
def test_what_is_written_is_read(swarm: bytes, addresses: list[str], name: str, expires_ms: int) -> None:
    invite = Invite(operator=OPERATOR.public, swarm=swarm, addresses=addresses, expires_ms=expires_ms, name=name)
    assert read_invite(write_invite(invite), now_ms=expires_ms) == invite


def test_text_that_is_not_utf8_is_refused_in_words() -> None:
    with pytest.raises(LocalProtocolError, match="not UTF-8"):
        write_invite(msgspec.structs.replace(INVITE, addresses=["/dns4/a\udcffb/tcp/1"]))


def test_it_pins_operator_and_swarm() -> None:
    assert INVITE.authority == Authority(swarm=SwarmId(b"\x8a" * 32), operator=OPERATOR.public)


def test_chats_and_terminals_may_wrap_it() -> None:
    wrapped_lines = "\n  ".join(TEXT[n : n + 40] for n in range(0, len(TEXT), 40))
    assert read_invite(f"\t{wrapped_lines} \r\n", now_ms=0) == INVITE


LINES = [TEXT[n : n + 60] for n in range(0, len(TEXT), 60)]
SURROUNDED = {
    "quoted": f'"{TEXT}"',
    "in single quotes": f"'{TEXT}'",
    "in a word processor's quotes": f"\u201c{TEXT}\u201d",
    "the whole line": f"volery join {TEXT}",
    "the whole line, quoted, with options": f'  $ volery join "{TEXT}" --name atlas',
    "in a sentence": f"Please run volery join {TEXT}. Thanks a lot, Bob",
    "in angle brackets": f"<{TEXT}>, as agreed",
    "in Markdown": f"**Invite:** `{TEXT}`",
    "in a link": f"https://example.org/join#{TEXT}",
    "broken by a mail client": "volery join\n" + "\n".join(LINES) + "\n\nYours, Ann",
    "quoted by a mail client": "\n".join(f"> {line}" for line in ["join us:", *LINES, "see you"]),
    "quoted twice": "\n".join(f">> {line}\r" for line in LINES),
    "encoded as quoted-printable": "=\r\n".join(LINES),
    "with blanks that nobody sees": TEXT[:30] + "\u200b" + TEXT[30:90] + "\u00ad" + TEXT[90:] + "\ufeff",
    "after its prefix was named": f"the string that begins with volery1: {TEXT}",
    "twice": f"{TEXT} {TEXT}",
    "after one that was cut short": f"{TEXT[:90]} sorry, I mean {TEXT}",
}


@pytest.mark.parametrize("how", SURROUNDED)
def test_it_is_taken_out_of_what_surrounds_it(how: str) -> None:
    assert read_invite(SURROUNDED[how], now_ms=0) == INVITE
    assert holds_invite(SURROUNDED[how])


BLANKS = " \t\r\n>\"'`.,;:<()[]{}|*\u00a0\u200b\u201c"


@settings(max_examples=examples(200))
@given(st.lists(st.integers(7, len(TEXT) - 1), max_size=20), st.data(), st.text(BLANKS, max_size=5))
def test_wherever_it_is_broken(places: list[int], data: st.DataObject, around: str) -> None:
    text = TEXT
    for place in sorted(places, reverse=True):
        text = text[:place] + data.draw(st.text(BLANKS, min_size=1, max_size=3)) + text[place:]
    assert read_invite(around + text + around, now_ms=0) == INVITE


@settings(max_examples=examples(300))
@given(st.text(max_size=60))
def test_any_text_is_an_invite_or_refused(text: str) -> None:
    for asked in (text, f"volery1{text}", f"{text}{TEXT}"):
        with suppress(InviteError):
            assert read_invite(asked, now_ms=0) == INVITE


def test_a_text_without_end_is_read_in_little_time() -> None:
    """No more of it is tried than an invite may have."""
    assert "damaged" in refusal("volery1 " + "abc " * 100_000)


def test_it_expires_at_its_time() -> None:
    assert read_invite(TEXT, now_ms=10_000) == INVITE
    assert "expired 1.0 hours ago" in refusal(TEXT, now_ms=3_610_000)


@pytest.mark.parametrize("keep", range(8, len(TEXT)))
def test_cut_short(keep: int) -> None:
    assert "damaged" in refusal(TEXT[:keep])


@settings(max_examples=examples(300))
@given(st.integers(7, len(TEXT) - 1), st.sampled_from("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"))
def test_mistyped(at: int, letter: str) -> None:
    if TEXT[at] != letter:
        assert "damaged" in refusal(TEXT[:at] + letter + TEXT[at + 1 :])


@pytest.mark.parametrize("text", ["", "volery", "Volery1abc", "https://example.org", TEXT[1:], "x" + TEXT])
def test_not_an_invite(text: str) -> None:
    assert "not an invite" in refusal(text)


@pytest.mark.parametrize("letter", ["0", "O", "I", "l", "é", "\0", "-"])
def test_a_character_that_invites_never_contain(letter: str) -> None:
    assert "damaged" in refusal(TEXT + letter)


def test_too_long() -> None:
    assert "at most 4096" in refusal("volery1" + "1" * MAX_INVITE_CHARS)


@pytest.mark.parametrize(("version", "advice"), [(PROTOCOL_VERSION + 1, "Update volery"), (0, "new invite")])
def test_another_protocol_version_whatever_else_it_holds(version: int, advice: str) -> None:
    for rest in ([], ["a", {"different": "shape"}], [None] * 20):
        assert advice in refusal(wrapped(msgspec.msgpack.encode([version, *rest])))


FIELDS = msgspec.msgpack.decode(msgspec.msgpack.encode(INVITE))
HUGE = b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x90",
        b"\x80",
        b"\xc1",
        msgspec.msgpack.encode(FIELDS[:3]),
        msgspec.msgpack.encode(["1", *FIELDS[1:]]),
        msgspec.msgpack.encode([True, *FIELDS[1:]]),
        msgspec.msgpack.encode([-1, *FIELDS[1:]]),
        msgspec.msgpack.encode([1.0, *FIELDS[1:]]),
        msgspec.msgpack.encode([1, b"short", *FIELDS[2:]]),
        msgspec.msgpack.encode([*FIELDS[:3], [], *FIELDS[4:]]),
        msgspec.msgpack.encode([*FIELDS[:3], ["a"] * 17, *FIELDS[4:]]),
        msgspec.msgpack.encode([*FIELDS[:5], -1, FIELDS[6]]),
        msgspec.msgpack.encode(FIELDS) + b"\x00",
        b"\xdd" + HUGE,
        b"\x97\x01\xdd" + HUGE,
        b"\x97\x01\xa2\xff\xfe",
        b"\x97\xa2\xff\xfe",
        b"\x91" * 2000,
        b"\x97\x01" + b"\x91" * 2000,
        b"\x97\xd7\xff" + b"\xff" * 8,
        b"\x91\x81\x80\x01",  # a map as the key of a map
    ],
    ids=lambda body: body[:8].hex() or "empty",
)
def test_hostile_bodies_with_a_valid_checksum(body: bytes) -> None:
    assert "cannot be read" in refusal(wrapped(body))


def test_a_newer_invite_of_this_version_may_say_more() -> None:
    assert read_invite(wrapped(msgspec.msgpack.encode([*FIELDS, "later"])), now_ms=0) == INVITE


def test_what_nobody_could_read_back_is_not_written() -> None:
    long = ["a" * MAX_ADDRESS_CHARS] * MAX_ADDRESSES
    with pytest.raises(LocalProtocolError, match="fewer addresses"):
        write_invite(msgspec.structs.replace(INVITE, addresses=long))
    with pytest.raises(LocalProtocolError, match="Invite"):
        write_invite(msgspec.structs.replace(INVITE, addresses=[]))
