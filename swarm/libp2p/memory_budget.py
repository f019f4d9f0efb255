"""Limit the memory that connections may take: one budget for all strangers, one for all members, a share for each.

A stranger is a peer that has shown a key and nothing else. A member is a peer that the layer above trusts
(`Transport.trust`) or that we dialled. The budget counts bytes that arrived and were not read, bytes that wait to be
written, and bytes of incomplete messages (`Stream.retain`). A connection that exceeds its own share is ended. When a
class exceeds its budget, the connection of that class that holds most is ended. So a stranger never costs a member
anything.

The worst case of memory, in MiB. Everything else that a connection needs has a constant size:

    strangers                                                            members
    bytes held           STRANGERS_BYTES                         32      MEMBERS_BYTES                       512
    a read, decrypted    MAX_STRANGERS * 2 * 32 KiB               8      per connection 2 * 256 KiB
    a write, encrypted   MAX_STRANGERS * 2 * 64 KiB              16      per connection 2 * 256 KiB
    OpenSSL, objects     MAX_STRANGERS * 100 KiB                 13      per connection 100 KiB
    control frames       MAX_STRANGERS * 512 * 60 B               4      per connection 4096 * 60 B
    streams' tasks       MAX_STRANGERS * STRANGER_STREAMS * 16 KiB   24  per connection 256 * 16 KiB
    handshakes           MAX_HANDSHAKES * 100 KiB                25

A pure core.

Invariants:

- After each call, once the connections that it names are gone, no class holds more than its budget and no account more
  than its share.
- A member is never named because of what strangers hold, and a stranger never because of what members hold.
- A closed account holds nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1024 * 1024

MAX_STRANGERS = 128
"""Strangers' connections at once, apart from those of members. A node that joins is a stranger for a second or two."""

STRANGER_STREAMS = 12
"""Streams that a stranger may hold open towards us. An honest one has gossip, greeting, holdings, chunks, identify and
a few questions."""

STRANGER_BYTES = 8 * MIB
"""Bytes that one stranger's connection may hold: an answer of the largest size (4 MiB), and as much again."""

STRANGERS_BYTES = 32 * MIB
"""Bytes that all strangers' connections together may hold."""

MEMBER_BYTES = 64 * MIB
"""Bytes that one member's connection may hold: four of the largest deliveries, or a dozen chunks with questions."""

MEMBERS_BYTES = 512 * MIB
"""Bytes that all members' connections together may hold. Twelve uploads of the largest chunks take 48 MiB. A hundred
members that each ask for the manifest of a model of 70 B parameters take 100 MiB."""


@dataclass(frozen=True, kw_only=True)
class Over:
    """Effect: end this account's connection. `of_all`: its whole class holds too much, and it holds most of that."""

    number: int
    of_all: bool


@dataclass(kw_only=True)
class _Account:
    is_member: bool
    held: int = 0
    is_over: bool = False


@dataclass(kw_only=True)
class Budget:
    """Count what each connection and each class holds. Accounts have numbers, which the caller makes."""

    stranger_bytes: int = STRANGER_BYTES
    strangers_bytes: int = STRANGERS_BYTES
    member_bytes: int = MEMBER_BYTES
    members_bytes: int = MEMBERS_BYTES
    _accounts: dict[int, _Account] = field(default_factory=dict)
    _held: list[int] = field(default_factory=lambda: [0, 0])

    def open(self, number: int, *, is_member: bool) -> None:
        """Open an account for a new connection, which holds nothing yet."""
        self._accounts[number] = _Account(is_member=is_member)

    def close(self, number: int) -> None:
        """Close the account of a connection that ended, and free what it holds. Do nothing if it is closed already."""
        if (account := self._accounts.pop(number, None)) is not None:
            self._held[account.is_member] -= account.held

    def change(self, number: int, delta: int) -> list[Over]:
        """Add `delta` bytes, or subtract them, from what an account holds; return the connections that must end."""
        if (account := self._accounts.get(number)) is None:
            return []
        held = account.held = account.held + delta
        of_all = self._held[account.is_member] = self._held[account.is_member] + delta
        if delta < 0 or (held <= self.stranger_bytes and of_all <= self.strangers_bytes):  # as good as always
            return []
        return self._exceeded(number, account)

    def promote(self, number: int, *, is_member: bool) -> list[Over]:
        """Move an account, with what it holds, to the other class; return the connections that must end."""
        if (account := self._accounts.get(number)) is None or account.is_member is is_member:
            return []
        self._held[account.is_member] -= account.held
        account.is_member = is_member
        self._held[is_member] += account.held
        return self._exceeded(number, account)

    def _exceeded(self, number: int, account: _Account) -> list[Over]:
        share, budget = (
            (self.member_bytes, self.members_bytes)
            if account.is_member
            else (self.stranger_bytes, self.strangers_bytes)
        )
        over: list[Over] = []
        if account.held > share and not account.is_over:
            account.is_over = True
            over.append(Over(number=number, of_all=False))
        excess = self._held[account.is_member] - budget
        if excess <= 0:
            return over
        those = [(n, one) for n, one in self._accounts.items() if one.is_member is account.is_member]
        excess -= sum(one.held for _, one in those if one.is_over)  # these are about to free theirs
        for largest, one in sorted(those, key=lambda entry: (-entry[1].held, -entry[0])):
            if excess <= 0:
                break
            if not one.is_over:
                one.is_over = True
                excess -= one.held
                over.append(Over(number=largest, of_all=True))
        return over
