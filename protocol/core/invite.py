"""An invite: the one string that a volunteer needs.

`volery1` followed by base58 of `[protocol, operator, swarm, addresses, token, expires_ms, name]` (MessagePack) and
the first four bytes of its sha2-256. The checksum finds a truncated or mistyped invite; trust comes from the operator
key and swarm id inside: whoever answers at the addresses must show the genesis that hashes to that id.

People paste it as it came: in quotes, in a sentence, after `volery join`, broken over lines by a mail client that marks
each with `>`. It is taken out of such a text, and the checksum says where it ends.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import Annotated, Any

import base58
import msgspec
from msgspec import Meta

from protocol.core.codec import Address, Bytes32, Count, Millis, Name, Row, decode, require_bounds
from protocol.core.dates import ago, moment
from protocol.core.digest import digest_of
from protocol.core.errors import LocalProtocolError, PeerError
from protocol.core.genesis import Authority
from protocol.core.ids import PublicKey, SwarmId
from protocol.core.limits import MAX_ADDRESSES, MAX_INVITE_CHARS, MAX_TOKEN_CHARS, PROTOCOL_VERSION

PREFIX = "volery1"
CHECKSUM_BYTES = 4

MAX_PIECES = 256
"""Parts in which an invite is looked for: lines of 16 characters are shorter than any that a mail client makes."""

_BEGINS = re.compile(rf"(?<![^\W_]){PREFIX}")
"""Not within a word: what stands before may belong to it."""

_BETWEEN = frozenset(("Cf", "Pc", "Pe", "Pf", "Pi", "Po", "Ps", "Sk", "Sm", "Zl", "Zp", "Zs"))
"""Kinds of characters (Unicode's) that surround an invite, or stand between its lines: blanks, quotes, brackets, marks.
Letters, digits, hyphens and controls are none: they may be a slip in it."""


class InviteError(ValueError):
    """The invite cannot be used. The message says why, and what to do about it."""


class Invite(Row, frozen=True, kw_only=True, array_like=True):
    """What an invite says. `expires_ms` 0 means never."""

    protocol: Count = PROTOCOL_VERSION
    operator: Bytes32
    swarm: Bytes32
    addresses: Annotated[list[Address], Meta(min_length=1, max_length=MAX_ADDRESSES)]
    token: Annotated[str, Meta(max_length=MAX_TOKEN_CHARS)] = ""
    expires_ms: Millis = 0
    name: Name = ""

    @property
    def authority(self) -> Authority:
        return Authority(swarm=SwarmId(self.swarm), operator=PublicKey(self.operator))


def write_invite(invite: Invite) -> str:
    """Return the string to hand out; LocalProtocolError when it would be too long to read back, or has text that is
    not UTF-8."""
    try:
        body = msgspec.msgpack.encode(require_bounds(invite))
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"an invite with text that is not UTF-8: {error.object!r}") from None
    text = PREFIX + base58.b58encode(body + digest_of(body)[:CHECKSUM_BYTES]).decode()
    if len(text) > MAX_INVITE_CHARS:
        raise LocalProtocolError(
            f"an invite of {len(text)} characters, at most {MAX_INVITE_CHARS}: fewer addresses, please"
        )
    return text


def holds_invite(text: str) -> bool:
    """Whether an invite stands in `text`, whole or damaged."""
    return _BEGINS.search(text) is not None


def read_invite(text: str, *, now_ms: int) -> Invite:
    """Return what the first whole invite in `text` says, whatever surrounds it.

    InviteError where there is none, or it is damaged, of another protocol version, or expired at `now_ms`.
    """
    begins = [found.start() for found in _BEGINS.finditer(text)]
    if not begins:
        raise InviteError(
            f"This is not an invite: it should begin with {PREFIX!r}. Copy the whole line that `volery learn` printed."
        )
    damaged: InviteError | None = None
    for begin, end in zip(begins, [*begins[1:], len(text)], strict=True):
        try:
            body = _body_in(text[begin + len(PREFIX) : end])
        except InviteError as error:
            damaged = damaged or error
        else:
            return _decode(body, now_ms)
    assert damaged is not None
    raise damaged


def _body_in(text: str) -> bytes:
    """The body of the invite that stands after its prefix at the beginning of `text`. Raises InviteError."""
    pieces = list(islice(_pieces(text), MAX_PIECES))
    for candidate in accumulate(pieces, initial=""):
        if len(PREFIX) + len(candidate) > MAX_INVITE_CHARS:
            break
        try:
            raw = base58.b58decode(candidate)
        except ValueError:
            break
        if digest_of(raw[:-CHECKSUM_BYTES])[:CHECKSUM_BYTES] == raw[-CHECKSUM_BYTES:]:
            return raw[:-CHECKSUM_BYTES]
    raise _damage(pieces[0] if pieces else "")


def _damage(first: str) -> InviteError:
    """What is wrong with an invite whose checksum fits at no end; `first` is its first piece, mostly all of it."""
    if (size := len(PREFIX) + len(first)) > MAX_INVITE_CHARS:
        return InviteError(f"This is not an invite: it has {size} characters, an invite at most {MAX_INVITE_CHARS}.")
    try:
        base58.b58decode(first)
    except ValueError:
        return InviteError("The invite is damaged: it holds a character that invites never contain. Copy it again.")
    return InviteError("The invite is damaged: its checksum does not match. It was probably cut short; copy it again.")


def _pieces(text: str) -> Iterator[str]:
    """What stands between blanks, quotes and the like."""
    piece = ""
    for character in text:
        if character.isspace() or unicodedata.category(character) in _BETWEEN:
            if piece:
                yield piece
            piece = ""
        else:
            piece += character
    if piece:
        yield piece


def _decode(body: bytes, now_ms: int) -> Invite:
    head: _AnyInvite = _read(_AnyInvite, body)
    if (version := head.protocol) != PROTOCOL_VERSION:
        raise InviteError(
            f"The invite is for protocol version {version}, this program speaks {PROTOCOL_VERSION}. "
            f"{'Update volery' if version > PROTOCOL_VERSION else 'Ask the operator for a new invite'}."
        )
    invite: Invite = _read(Invite, body)
    if invite.expires_ms and invite.expires_ms < now_ms:
        raise InviteError(
            f"The invite expired {ago(now_ms - invite.expires_ms)} ago, at {moment(invite.expires_ms)}: this machine's "
            f"clock says {moment(now_ms)}. Set the clock if that is wrong; else ask the operator for a new invite."
        )
    return invite


class _AnyInvite(msgspec.Struct, frozen=True, array_like=True):
    """What invites of all protocol versions have in common: the version comes first."""

    protocol: Count


def _read(kind: Any, body: bytes) -> Any:
    try:
        return decode(kind, body, MAX_INVITE_CHARS)
    except PeerError as error:
        raise InviteError(f"The invite cannot be read ({error.detail}). Ask the operator for a new one.") from None
