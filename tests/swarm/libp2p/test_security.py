"""Secure a connection: the number of round trips, the peer, and what is sent before the peer is known.

Lines here have a delay in virtual time, so that round trips can be counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing
from libp2p.custom_types import TProtocol

from protocol.core.ids import PeerId
from swarm.libp2p.circuit import CircuitConnection
from swarm.libp2p.multistream import GREETING, encode_message
from swarm.libp2p.security import (
    NOISE,
    TLS,
    HandshakeFailed,
    Identity,
    NotTakenAtOnce,
    SecureChannel,
    SecurityTable,
    secure_inbound,
    secure_outbound,
    security_table,
)
from swarm.libp2p.tls.transport import TlsTransport
from swarm.libp2p.yamux.connection import YAMUX_PROTOCOL

DIALLER, LISTENER, OTHER = (Identity.from_seed(seed * 32) for seed in (b"d", b"l", b"o"))

DELAY_S = 1.0
"""One way."""

ROUND_TRIP_S = 2 * DELAY_S
MOST_MESSAGES = 100
"""On their way at a time; a handshake has a dozen."""

HANDSHAKE, ALERT, CLIENT_HELLO = 22, 21, 1
"""Types of TLS records, and of the first handshake message (RFC 8446, 4 and 5.1)."""


@dataclass
class Line:
    """One end of a line whose bytes take DELAY_S; `change` may change what is sent."""

    into: trio.MemorySendChannel[tuple[float, bytes]]
    out_of: trio.MemoryReceiveChannel[tuple[float, bytes]]
    change: Callable[[bytes], bytes] = bytes
    said: list[bytes] = field(default_factory=list)
    held: bytes = b""

    async def send_all(self, data: bytes) -> None:
        self.said.append(data)
        await self.into.send((trio.current_time() + DELAY_S, self.change(data)))

    async def receive_some(self, max_bytes: int) -> bytes:
        if not self.held:
            try:
                at, self.held = await self.out_of.receive()
            except trio.EndOfChannel:
                return b""
            await trio.sleep_until(at)
        taken, self.held = self.held[:max_bytes], self.held[max_bytes:]
        return taken

    async def aclose(self) -> None:
        await self.into.aclose()


class End(CircuitConnection):
    """A raw connection on such a line."""

    def __init__(self, line: Line, *, is_initiator: bool) -> None:
        super().__init__(line, is_initiator=is_initiator)  # type: ignore[arg-type]
        self.line = line


def ends() -> tuple[End, End]:
    """The dialler's first."""
    into, out_of = trio.open_memory_channel[tuple[float, bytes]](MOST_MESSAGES)
    back, out_of_back = trio.open_memory_channel[tuple[float, bytes]](MOST_MESSAGES)
    return End(Line(into, out_of_back), is_initiator=True), End(Line(back, out_of), is_initiator=False)


@dataclass
class Outcome:
    """What became of one side, and when."""

    channel: SecureChannel | None = None
    error: Exception | None = None
    at_s: float = 0.0


async def meet(
    dialler: SecurityTable,
    listener: SecurityTable,
    *,
    wanted: PeerId = LISTENER.peer_id,
    at_once: bool = True,
    on: tuple[End, End] | None = None,
) -> tuple[Outcome, Outcome]:
    """Both sides' outcomes, the dialler's first; a failed one hangs up."""
    one, other = on or ends()
    outcomes = Outcome(), Outcome()
    began_s = trio.current_time()

    async def run(outcome: Outcome, end: End) -> None:
        try:
            if end is one:
                outcome.channel = await secure_outbound(one, dialler, wanted, YAMUX_PROTOCOL, at_once=at_once)
            else:
                outcome.channel = await secure_inbound(other, listener, YAMUX_PROTOCOL)
        except HandshakeFailed as error:
            outcome.error = error
            await end.close()
        outcome.at_s = trio.current_time() - began_s

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, outcomes[0], one)
        nursery.start_soon(run, outcomes[1], other)
    return outcomes


def older(identity: Identity) -> SecurityTable:
    """Return the security protocols of a peer that negotiates its muxer after TLS."""
    return {TProtocol(TLS): TlsTransport(identity.key_pair)}


async def test_security_and_muxer_take_one_round_trip(autojump_clock: trio.testing.MockClock) -> None:
    dialler, listener = await meet(security_table(DIALLER), security_table(LISTENER))
    assert dialler.channel is not None
    assert listener.channel is not None
    assert (dialler.channel.remote, listener.channel.remote) == (LISTENER.peer_id, DIALLER.peer_id)
    assert dialler.channel.muxer == listener.channel.muxer == YAMUX_PROTOCOL
    assert dialler.at_s == ROUND_TRIP_S
    assert listener.at_s == ROUND_TRIP_S + DELAY_S


@pytest.mark.parametrize(
    ("dialler", "listener", "at_once", "round_trips"),
    [
        (security_table, security_table, False, 2),
        (older, security_table, True, 2),
        (security_table, older, True, 2),
        (older, older, False, 3),
    ],
    ids=["a patient dialler", "an older dialler", "an older listener", "as it was"],
)
async def test_with_whom_it_takes_more(
    dialler: Callable[[Identity], SecurityTable],
    listener: Callable[[Identity], SecurityTable],
    at_once: bool,
    round_trips: int,
    autojump_clock: trio.testing.MockClock,
) -> None:
    one, other = await meet(dialler(DIALLER), listener(LISTENER), at_once=at_once)
    assert one.channel is not None
    assert other.channel is not None
    assert one.at_s == round_trips * ROUND_TRIP_S


@pytest.mark.parametrize("offers", [(TLS, NOISE), (TLS,)])
async def test_whoever_speaks_noise_alone_must_be_connected_to_anew(
    offers: Sequence[str], autojump_clock: trio.testing.MockClock
) -> None:
    dialler, listener = security_table(DIALLER, offers), security_table(LISTENER, (NOISE,))
    one, other = await meet(dialler, listener)
    assert isinstance(one.error, NotTakenAtOnce)
    assert "/tls/1.0.0 was answered with 'na'" in str(one.error)
    assert other.error is not None
    one, other = await meet(dialler, listener, at_once=False)
    if NOISE in offers:
        assert one.channel is not None
        assert one.channel.remote == LISTENER.peer_id
    else:
        assert "the peer does not speak /tls/1.0.0" in str(one.error)
        assert not isinstance(one.error, NotTakenAtOnce)


async def test_a_peer_that_hangs_up_without_a_word_may_be_asked_again(autojump_clock: trio.testing.MockClock) -> None:
    """Its reason is lost where a relay resets the circuit behind it."""
    one, other = ends()
    await other.close()
    with pytest.raises(NotTakenAtOnce, match="hung up"):
        await secure_outbound(one, security_table(DIALLER), LISTENER.peer_id, YAMUX_PROTOCOL)


async def test_another_peer_than_the_wanted_one_is_not_asked_again_and_never_learns_who_called(
    autojump_clock: trio.testing.MockClock,
) -> None:
    on = ends()
    one, other = await meet(security_table(DIALLER), security_table(LISTENER), wanted=OTHER.peer_id, on=on)
    assert f"{LISTENER.peer_id} answered instead of {OTHER.peer_id}" in str(one.error)
    assert not isinstance(one.error, NotTakenAtOnce)
    assert other.channel is None
    assert len(on[0].line.said) == 1, "only the first bytes may be sent, which hold no secret"


async def test_before_anybody_answered_a_dialler_says_what_any_dialler_says(
    autojump_clock: trio.testing.MockClock,
) -> None:
    on = ends()
    await meet(security_table(DIALLER), security_table(LISTENER), on=on)
    first = on[0].line.said[0]
    proposal = encode_message(GREETING) + encode_message(TLS)
    assert first.startswith(proposal)
    hello = first.removeprefix(proposal)
    assert (hello[0], hello[5]) == (HANDSHAKE, CLIENT_HELLO)
    assert 5 + int.from_bytes(hello[3:5]) == len(hello), "one record, and nothing behind it"
    key = DIALLER.key_pair.public_key.to_bytes()
    assert key not in first
    assert b"yamux" in first, "the muxers that it speaks are public"


async def test_a_listener_says_nothing_of_its_own_before_it_knows_who_called(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its half of the handshake is encrypted, and no data follow it, though TLS would allow that."""
    on = ends()
    _, listener = await meet(security_table(DIALLER), security_table(LISTENER), on=on)
    assert listener.channel is not None
    said = b"".join(on[1].line.said)
    assert said.startswith(encode_message(GREETING) + encode_message(TLS))
    assert LISTENER.key_pair.public_key.to_bytes() not in said
    assert listener.at_s > DELAY_S


@pytest.mark.parametrize("to", [b"/yamuX/1.0.0", b"/mplex/6.7.0"])
async def test_whoever_is_between_them_cannot_take_the_muxer_away(
    to: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    one, other = ends()
    one.line.change = lambda data: data.replace(YAMUX_PROTOCOL.encode(), to)
    dialler, listener = await meet(security_table(DIALLER), security_table(LISTENER), on=(one, other))
    assert dialler.error is not None
    assert listener.error is not None
    assert not isinstance(dialler.error, NotTakenAtOnce)
