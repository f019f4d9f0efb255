"""Write and read invites: the text that a volunteer needs to join.

An invite is `volery1` followed by base58 of `[protocol, operator, swarm, addresses, token, expires_ms, name]`
(MessagePack) and the first four bytes of its sha2-256. The checksum detects a truncated or mistyped invite. Trust comes
from the operator key and swarm id inside: the node at the addresses must show the genesis that hashes to that id.

People paste an invite as they received it: in quotes, in a sentence, after `volery join`, or broken over lines by a
mail client that marks each with `>`. `read_invite` finds it in such a text; the checksum shows where it ends.
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
"""Largest number of pieces that are joined to find an invite. A piece then has 16 characters, and mail clients make
longer lines than that."""

_BEGINS = re.compile(rf"(?<![^\W_]){PREFIX}")
"""The beginning of an invite. It is not searched within a word."""

_BETWEEN = frozenset(("Cf", "Pc", "Pe", "Pf", "Pi", "Po", "Ps", "Sk", "Sm", "Zl", "Zp", "Zs"))
"""Unicode categories of characters that surround an invite or separate its lines: spaces, quotes, brackets, marks.
Letters, digits, hyphens and controls are not among them, because they may be a typing error inside the invite."""


COPY = "Copy the whole line, or ask the operator of the swarm to send it again."
"""What to do about an invite that is not whole."""


class InviteError(ValueError):
    """The invite cannot be used. The message says why, and what to do about it."""


class Invite(Row, frozen=True, kw_only=True, array_like=True):
    """The contents of an invite. `expires_ms` 0 means that it never expires."""

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
    """Return the invite as text. Raise LocalProtocolError if it would be too long to be read, or contains text that is
    not UTF-8."""
    try:
        body = msgspec.msgpack.encode(require_bounds(invite))
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"an invite with text that is not UTF-8: {error.object!r}") from None
    text = PREFIX + base58.b58encode(body + digest_of(body)[:CHECKSUM_BYTES]).decode()
    if len(text) > MAX_INVITE_CHARS:
        raise LocalProtocolError(
            f"the invite has {len(text)} characters, at most {MAX_INVITE_CHARS} are allowed: give it fewer addresses"
        )
    return text


def holds_invite(text: str) -> bool:
    """Return whether `text` contains an invite, whole or damaged."""
    return _BEGINS.search(text) is not None


def read_invite(text: str, *, now_ms: int) -> Invite:
    """Return the contents of the first undamaged invite in `text`.

    Raises InviteError if there is none, or if it is damaged, of another protocol version, or expired at `now_ms`.
    """
    begins = [found.start() for found in _BEGINS.finditer(text)]
    if not begins:
        raise InviteError(f"This is not an invite: it should begin with {PREFIX!r}. {COPY}")
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
    """Return the body of the invite whose text after the prefix begins `text`. Raises InviteError."""
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
    """Return the error for an invite whose checksum matches nowhere; `first` is its first piece, usually all of it."""
    if (size := len(PREFIX) + len(first)) > MAX_INVITE_CHARS:
        return InviteError(
            f"This is not an invite: it has {size} characters, and an invite has at most {MAX_INVITE_CHARS}."
        )
    try:
        base58.b58decode(first)
    except ValueError:
        return InviteError(f"The invite is damaged: it contains a character that invites never have. {COPY}")
    return InviteError(f"The invite is damaged: its checksum does not match. It was probably cut short. {COPY}")


def _pieces(text: str) -> Iterator[str]:
    """Yield the parts of `text` between spaces, quotes and similar characters."""
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
            f"The invite is for protocol version {version}, but this program uses version {PROTOCOL_VERSION}. "
            f"{'Update volery' if version > PROTOCOL_VERSION else 'Ask the operator for a new invite'}."
        )
    invite: Invite = _read(Invite, body)
    if invite.expires_ms and invite.expires_ms < now_ms:
        raise InviteError(
            f"The invite expired {ago(now_ms - invite.expires_ms)} ago, at {moment(invite.expires_ms)}; this machine's "
            f"clock shows {moment(now_ms)}. If the clock is wrong, set it; otherwise ask the operator for a new invite."
        )
    return invite


class _AnyInvite(msgspec.Struct, frozen=True, array_like=True):
    """The part that invites of all protocol versions share: the version comes first."""

    protocol: Count


def _read(kind: Any, body: bytes) -> Any:
    try:
        return decode(kind, body, MAX_INVITE_CHARS)
    except PeerError as error:
        raise InviteError(f"The invite cannot be read ({error.detail}). Ask the operator for a new one.") from None
