"""An invite: the one string that a volunteer needs.

`volery1` followed by base58 of `[protocol, operator, swarm, addresses, token, expires_ms, name]` (MessagePack) and
the first four bytes of its sha2-256. The checksum finds a truncated or mistyped invite; trust comes from the operator
key and swarm id inside: whoever answers at the addresses must show the genesis that hashes to that id.
"""

from __future__ import annotations

from typing import Annotated

import base58
import msgspec
from msgspec import Meta

from protocol.codec import Address, Bytes32, Count, Millis, Name, checked, decode
from protocol.digest import digest_of
from protocol.errors import LocalProtocolError, PeerError
from protocol.genesis import Authority
from protocol.ids import PublicKey, SwarmId
from protocol.limits import MAX_ADDRESSES, MAX_INVITE_CHARS, MAX_TOKEN_CHARS, PROTOCOL_VERSION

PREFIX = "volery1"
CHECKSUM_BYTES = 4


class InviteError(ValueError):
    """The invite cannot be used. The message says why, and what to do about it."""


class Invite(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
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
    """Return the string to hand out; LocalProtocolError when it would be too long to read back."""
    body = msgspec.msgpack.encode(checked(invite))
    text = PREFIX + base58.b58encode(body + digest_of(body)[:CHECKSUM_BYTES]).decode()
    if len(text) > MAX_INVITE_CHARS:
        raise LocalProtocolError(
            f"an invite of {len(text)} characters, at most {MAX_INVITE_CHARS}: fewer addresses, please"
        )
    return text


def read_invite(text: str, *, now_ms: int) -> Invite:
    """Return what the invite says; InviteError when damaged, of another protocol version, or expired at `now_ms`."""
    text = "".join(text.split())
    if not text.startswith(PREFIX):
        raise InviteError(
            f"This is not an invite: it should begin with {PREFIX!r}. Copy the whole line that `volery learn` printed."
        )
    if len(text) > MAX_INVITE_CHARS:
        raise InviteError(
            f"This is not an invite: it has {len(text)} characters, an invite at most {MAX_INVITE_CHARS}."
        )
    try:
        raw = base58.b58decode(text.removeprefix(PREFIX))
    except ValueError:
        raise InviteError(
            "The invite is damaged: it holds a character that invites never contain. Copy it again."
        ) from None
    body, checksum = raw[:-CHECKSUM_BYTES], raw[-CHECKSUM_BYTES:]
    if digest_of(body)[:CHECKSUM_BYTES] != checksum:
        raise InviteError(
            "The invite is damaged: its checksum does not match. It was probably cut short; copy it again."
        )
    return _decode(body, now_ms)


def _decode(body: bytes, now_ms: int) -> Invite:
    version = _version_of(body)
    if version != PROTOCOL_VERSION:
        raise InviteError(
            f"The invite is for protocol version {version}, this program speaks {PROTOCOL_VERSION}. "
            f"{'Update volery' if version > PROTOCOL_VERSION else 'Ask the operator for a new invite'}."
        )
    try:
        invite: Invite = decode(Invite, body, MAX_INVITE_CHARS)
    except PeerError as error:
        raise InviteError(f"The invite cannot be read ({error.detail}). Ask the operator for a new one.") from None
    if invite.expires_ms and invite.expires_ms < now_ms:
        hours = (now_ms - invite.expires_ms) / 3_600_000
        raise InviteError(
            f"The invite expired {hours:.1f} hours ago. Ask the operator for a new one (`volery invite`)."
        )
    return invite


class _AnyInvite(msgspec.Struct, frozen=True, array_like=True):
    """What invites of all protocol versions have in common: the version comes first."""

    protocol: Count


def _version_of(body: bytes) -> int:
    try:
        head: _AnyInvite = decode(_AnyInvite, body, MAX_INVITE_CHARS)
    except PeerError as error:
        raise InviteError(f"The invite cannot be read ({error.detail}). Ask the operator for a new one.") from None
    return head.protocol
