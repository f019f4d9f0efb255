"""Send wrong messages over whole connections, through reception, services and ledger of a learner that goes on.

A peer with a key of its own sends what hypothesis draws, in any order, on one connection after the other. It draws
messages at the bounds of the protocol, distorted messages, and frames that are no messages.

Invariants:

- A frame that is no message only ends its connection, and the fault has a name.
- An honest peer joins, works and is credited meanwhile.
- Reports can be made from the ledger afterwards.
"""

from __future__ import annotations

import gc
import json
import operator
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from node import reports
from node.learner_role.peers import session_service
from node.learner_role.peers.session_service import WELCOME_EVERY_S, WELCOMES_AT_ONCE
from node.learner_role.shared.signals import connect_peers
from node.reports import swarm_report
from protocol.accounting.claims import MAX_ENERGY_SOURCES, Energy, EnergySource, Price
from protocol.accounting.relay_receipt import RelayReceipt
from protocol.core.codec import encode
from protocol.core.envelope import sign
from protocol.core.errors import Fault
from protocol.core.ids import PeerId, PolicyVersion
from protocol.core.limits import (
    MAX_ADDRESS_CHARS,
    MAX_CHUNKS,
    MAX_JOULES,
    MAX_MICROS_PER_HOUR,
    MAX_MILLIS,
    MAX_SECONDS,
    MAX_SPEED,
    MAX_WORK_BYTES,
    PROTOCOL_VERSION,
)
from protocol.trouble import MAX_TROUBLE_CHARS, MAX_TROUBLES, Trouble, TroubleKind
from protocol.work import (
    LEASE_RECALLS,
    MAX_HOURS_LEFT_S,
    PROOFS,
    RECEIPT_REVISIONS,
    WORK,
    Delivery,
    FromLearner,
    FromNode,
    Goodbye,
    Handback,
    Heartbeat,
    Hello,
    LeaseRequest,
    LeaseReturn,
    ProofRequest,
    Refused,
    Relayed,
    Started,
    Welcome,
    open_lease,
)
from swarm.transport.event_rate import Rate
from swarm.transport.framing import FrameStream
from swarm.transport.interface import StreamBroken
from swarm.work import server as reception
from swarm.work.server import WorkServer
from tests.integration.test_hostile_deliveries import examples
from tests.support.growth_check import grown, rows_of, sizes_of
from tests.support.learner_fixture import FakePeer, Learner, Settings, open_learner, until
from tests.support.message_mutations import JUNK, distort, kinds_drawn, packed, tree_of
from tests.support.trainer_fixture import OTHER, PEER, SWARM

ROOMY = Settings(prompts=8, group_size=2, ahead=2.0, steps=99, audits=True)


@pytest.fixture(autouse=True)
def read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read messages without a rate limit here; `tests/swarm/work/test_server.py` tests the limit."""
    monkeypatch.setattr(reception, "HEARTBEATS", Rate(per_s=1e9, burst=1e9))
    monkeypatch.setattr(reception, "MESSAGES", Rate(per_s=1e9, burst=1e9))
    monkeypatch.setattr(session_service, "LOGGED_HEARTBEATS", Rate(per_s=1e9, burst=1e9))


COUNTS = st.sampled_from([0, 1, 2, 1000, 2**31, 2**52, 2**53 - 1])
AMOUNTS = st.sampled_from([0.0, 5e-324, 1e-300, 0.5, 1.0, 1e6, MAX_SPEED])
SECONDS = st.sampled_from([0.0, 5e-324, 0.5, 1e6, MAX_SECONDS])
PRICES = st.sampled_from([0, 1, 2**31, MAX_MICROS_PER_HOUR])
REASON = operator.itemgetter(slice(MAX_TROUBLE_CHARS))
ADDRESSES = st.sampled_from(["", "=1+", "/ip4/1.2.3.4/tcp/1", "\N{SNOWMAN}" * 300])
TEXTS = st.sampled_from(["", "a peer", "\0", "\x1b[2J", "=1+1", "\N{RIGHT-TO-LEFT OVERRIDE}x", "\N{SNOWMAN}" * 100])
VERSIONS = st.builds(PolicyVersion, st.sampled_from([0, 1, 2, 2**53 - 1]), COUNTS)
IDS = st.integers(0, 60).map(lambda number: number.to_bytes(16, "big"))
"""Ids of leases, numbered from 1; the last ones are not granted yet."""
UNDERSTOOD = st.sets(st.sampled_from([LEASE_RECALLS, PROOFS, RECEIPT_REVISIONS, "x"])).map(
    lambda names: dict.fromkeys(names, b"\xff")
)

HELLOS = st.builds(
    Hello,
    protocol=st.just(PROTOCOL_VERSION),
    name=TEXTS,
    addresses=st.lists(ADDRESSES.map(lambda text: text[:MAX_ADDRESS_CHARS]), max_size=16),
    price=st.builds(Price, micros_per_hour=PRICES, currency=st.sampled_from(["USD", "ZZZ"])),
    engine=TEXTS,
    machine=TEXTS,
    leases=st.lists(IDS, max_size=8),
    ext=UNDERSTOOD,
)
BEATS = st.builds(
    Heartbeat,
    installed=st.none() | VERSIONS,
    pending=COUNTS,
    bytes_up=COUNTS,
    bytes_down=COUNTS,
    engine_s=SECONDS,
    tokens_per_s=AMOUNTS,
    hours_left_s=st.none() | st.sampled_from([0.0, 5e-324, 1.0, MAX_HOURS_LEFT_S]),
    energy=st.lists(
        st.builds(Energy, st.sampled_from(list(EnergySource)[:4]), st.sampled_from([0.0, 5e-324, 1.0, MAX_JOULES])),
        max_size=MAX_ENERGY_SOURCES,
    ),
    troubles=st.lists(
        st.builds(Trouble, st.sampled_from(list(TroubleKind)[:4]), COUNTS, TEXTS.map(REASON), VERSIONS),
        max_size=MAX_TROUBLES,
    ),
)


@st.composite
def relays(draw: st.DrawFn) -> Relayed:
    author = draw(st.sampled_from([PEER, PEER, PEER, OTHER]))
    receipt = RelayReceipt(
        manifest=draw(st.binary(min_size=32, max_size=32)),
        relays=draw(st.lists(st.sampled_from([OTHER.peer_id, PEER.peer_id, "x" * 52]), min_size=2, unique=True)),
        first=draw(st.sampled_from([0, 1, MAX_CHUNKS - 1])),
        givers=bytes(draw(st.lists(st.integers(0, 3), min_size=1, max_size=50))),
    )
    return Relayed(receipt=sign(author, SWARM.authority.swarm, receipt))


SAID: dict[str, st.SearchStrategy[Any]] = {
    "heartbeat": BEATS,
    "request": st.builds(LeaseRequest, rollouts=st.sampled_from([1, 7, 65_536])),
    "started": st.builds(Started, lease=IDS, version=VERSIONS),
    "return": st.builds(LeaseReturn, leases=st.lists(IDS, max_size=20), reason=TEXTS),
    "delivery": st.builds(Delivery, lease=IDS, records=st.lists(st.binary(max_size=40), max_size=5)),
    "relayed": relays(),
    "proofs": st.builds(
        ProofRequest,
        version=VERSIONS,
        place=COUNTS,
        notes=COUNTS,
        reputed=st.none() | st.sampled_from([0, 1, MAX_MILLIS]),
    ),
    "handback": st.builds(
        Handback, lease=IDS, records=st.lists(st.binary(max_size=40), min_size=1, max_size=5), reason=TEXTS
    ),
    "goodbye": st.builds(Goodbye, reason=TEXTS),
    "hello": HELLOS,
}


GREETING = Hello(protocol=PROTOCOL_VERSION, price=Price())
RELAYS = RelayReceipt(manifest=bytes(32), relays=[OTHER.peer_id, PEER.peer_id], first=0, givers=b"\1")

LAST = ("goodbye", "hello")
"""Messages that end a connection."""


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """Draw a frame after the greeting, and how it was made wrong: at the bounds, distorted, or noise."""
    match draw(st.sampled_from([*["legal"] * 17, "distorted", "noise", "junk"])):
        case "legal":
            name = draw(st.sampled_from([*[name for name in SAID if name not in LAST] * 4, *LAST]))
            return name, encode(draw(SAID[name]))
        case "distorted":
            message = draw(st.sampled_from(sorted(SAID)).flatmap(SAID.__getitem__))
            return "distorted", packed(distort(draw, tree_of(message)))
        case "noise":
            return "noise", draw(st.binary(max_size=60))
        case _:
            return "junk", packed(draw(st.sampled_from(JUNK)))


@dataclass(kw_only=True)
class Stage:
    """A learner at version 1.0 that serves its work protocol, and a hostile peer that is connected to it."""

    learner: Learner
    clock: MockClock
    honest: FakePeer = field(default_factory=lambda: FakePeer(key=OTHER))
    faults: list[tuple[PeerId, Fault, str]] = field(default_factory=list)
    hostile: Any = None
    server: Any = None

    async def speak(self, greeting: bytes, said: Sequence[bytes]) -> int:
        """Send these messages on one connection; return how many answers came before it ended."""
        stream = await self.hostile.open_stream(SWARM.learner.peer_id, WORK)
        frames = FrameStream(stream, MAX_WORK_BYTES)
        heard = 0
        try:
            for body in (greeting, *said):
                await frames.send_bytes(body)
            await stream.send_eof()
            while await frames.receive(FromLearner) is not None:
                heard += 1
        except StreamBroken:
            pass
        finally:
            await stream.abort()
        await until(lambda: PEER.peer_id not in self.server._sessions)
        await self.settle()
        return heard

    async def settle(self, pass_s: float = WELCOME_EVERY_S) -> None:
        """Let some time pass: writes are done, silent peers time out, and a peer that was here may come again."""
        await until(lambda: not self.learner.arriving.statistics().current_buffer_used)
        await until(lambda: not self.learner.capacity.leasing.judging)
        before = self.learner.sessions.rounds
        self.clock.jump(pass_s)
        await until(lambda: self.learner.sessions.rounds > before and not self.learner.sessions.writing)


@asynccontextmanager
async def staged(root: Path, clock: MockClock, settings: Settings = ROOMY) -> AsyncIterator[Stage]:
    async with open_learner(root, settings) as learner:
        stage = Stage(learner=learner, clock=clock)
        await learner.training.begin()
        stage.server = WorkServer(
            transport=learner.transport,
            desk=learner.sessions,
            inbox=learner.inbox,
            report=lambda peer, fault, detail: stage.faults.append((peer, fault, detail)),
        )
        connect_peers(learner.context.signals, stage.server)
        stage.server.start()
        async with (
            learner.transport.network.node("hostile", peer_id=PEER.peer_id) as stage.hostile,
            trio.open_nursery() as nursery,
        ):
            await stage.hostile.dial(learner.transport.addresses())
            for loop in (
                learner.sessions.run,
                learner.sessions.leases.run,
                learner.sessions.relays.run,
                learner.sessions.proofs.run,
            ):
                nursery.start_soon(loop)
            nursery.start_soon(learner.intake.run, learner.arriving)
            nursery.start_soon(learner.operator.run)
            yield stage
            nursery.cancel_scope.cancel()


def require_reports(learner: Learner) -> None:
    """Check that a report in every form can be made from the ledger."""
    report = swarm_report(learner.ledger.path, with_history=True)
    assert json.loads(reports.as_json(report))
    assert reports.as_csv(report)
    assert reports.as_text(report)
    assert reports.as_terminal(report, width=120)
    reports.write_html(report, learner.root / "report.html")
    assert learner.recorded()


async def work_once(stage: Stage) -> None:
    """Let the honest peer join, get a lease and deliver; check that all records are admitted."""
    learner, honest = stage.learner, stage.honest
    welcome = await learner.sessions.welcome(honest.id, hello_of(honest))
    assert isinstance(welcome, Welcome)
    grant = await learner.sessions.grant(honest.id, LeaseRequest(rollouts=2))
    assert grant.leases, grant.reason
    for raw in grant.leases:
        lease = open_lease(raw, SWARM.authority.swarm, learner=SWARM.learner.peer_id)
        await honest.answer(learner, lease)
        assert all(verdict.admitted for verdict in honest.receipts[lease.id].verdicts)  # type: ignore[index]
    await stage.settle()


def hello_of(peer: FakePeer) -> Hello:
    return Hello(protocol=PROTOCOL_VERSION, price=Price(), name="honest")


def test_every_message_that_a_node_may_send_is_drawn() -> None:
    assert kinds_drawn(SAID) == set(get_args(FromNode))


@pytest.mark.parametrize("times", [80, pytest.param(1000, marks=pytest.mark.slow)], ids=["few", "many"])
async def test_whatever_is_said_on_a_line_the_learner_goes_on(
    tmp_path: Path, mock_clock: MockClock, times: int
) -> None:
    found, heard = Counter[Fault](), Counter[str]()
    async with staged(tmp_path, mock_clock) as stage:

        @examples(times)
        @given(st.sampled_from([True] * 9 + [False]), HELLOS, st.lists(bodies(), min_size=4, max_size=30))
        @example(True, GREETING, [("relayed", encode(Relayed(receipt=sign(OTHER, SWARM.authority.swarm, RELAYS))))])
        def say(greets: bool, hello: Hello, said: list[tuple[str, bytes]]) -> None:
            greeting = encode(hello) if greets else said[0][1]
            stage.faults.clear()
            trio.from_thread.run(stage.speak, greeting, [body for _, body in said])
            for peer, fault, detail in stage.faults:
                assert (peer, bool(detail)) == (PEER.peer_id, True)
                found[fault] += 1
            heard.update(name for name, _ in stage.learner.log)
            stage.learner.log.clear()

        await trio.to_thread.run_sync(say)
        assert found.keys() >= {Fault.MALFORMED, Fault.BROKEN_PROMISE, Fault.UNAUTHORISED}
        assert heard.keys() >= {"peer_joined", "heartbeat", "leases_returned", "delivery_judged", "peer_left"}
        await work_once(stage)
        require_reports(stage.learner)


async def test_counts_that_grow_without_end_end_at_their_bound(tmp_path: Path, mock_clock: MockClock) -> None:
    """A node says again and again that it was started again, and that it has since moved as much as can be said."""
    async with staged(tmp_path, mock_clock) as stage:
        most = encode(Heartbeat(bytes_up=2**53 - 1, bytes_down=2**53 - 1, engine_s=MAX_SECONDS))
        greeting = encode(Hello(protocol=PROTOCOL_VERSION, price=Price(micros_per_hour=MAX_MICROS_PER_HOUR)))
        for _ in range(3):
            await stage.speak(greeting, [most, encode(Heartbeat())] * 1100)
        await work_once(stage)
        require_reports(stage.learner)


WARM_UP, MEASURED = 300, 1000
LEFT_BYTES = 256 * 1024
"""Bytes that 1000 useless messages may leave in memory: 250 each, without SQLite's own."""


async def test_a_thousand_messages_of_no_use_leave_nothing_behind(tmp_path: Path, mock_clock: MockClock) -> None:
    """On one connection: counts that go up and down, versions back and forth, leases of others, proofs of nothing."""
    corpus: list[bytes] = []
    of_no_use = [name for name in SAID if name not in (*LAST, "relayed", "request")]

    @examples(WARM_UP + MEASURED)  # each differs, so that a memory of messages would show
    @given(st.sampled_from(of_no_use).flatmap(SAID.__getitem__))
    def collect(message: Any) -> None:
        corpus.append(encode(message))

    collect()
    async with staged(tmp_path, mock_clock) as stage, trio.open_nursery() as nursery:
        learner = stage.learner
        stream = await stage.hostile.open_stream(SWARM.learner.peer_id, WORK)
        frames = FrameStream(stream, MAX_WORK_BYTES)
        await frames.send_bytes(encode(Hello(protocol=PROTOCOL_VERSION, price=Price())))
        nursery.start_soon(read_on, frames)

        async def say(first: int, number: int) -> None:
            for place in range(first, first + number):
                if place % 50 == 0:
                    await frames.send_bytes(encode(Heartbeat(bytes_up=place)))
                    await until(partial(_has_heard, learner, place))
                    await stage.settle(1.0)
                await frames.send_bytes(corpus[place % len(corpus)])
            # The last message may have been any: the peer has a version now, and all its questions were just answered.
            await frames.send_bytes(encode(Heartbeat(bytes_up=first + number, installed=learner.capacity.chain.head)))
            await until(partial(_has_heard, learner, first + number))
            await stage.settle(1.0)
            proofs = learner.sessions.proofs
            await until(lambda: not proofs._asked and not stage.server._waiting)
            proofs._paid.clear()
            await frames.send_bytes(encode(ProofRequest(version=PolicyVersion(0, 0))))
            await until(lambda: proofs._paid != {} and not proofs._asked)
            learner.log.clear()
            gc.collect()

        await say(0, WARM_UP)
        parts = (learner.run, learner.sessions, learner.intake, learner.recorder, learner.watch, learner.transport)
        sizes, rows, recorded = sizes_of(*parts), rows_of(learner.ledger.path), len(learner.recorded())
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        await say(WARM_UP, MEASURED)
        left = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert PEER.peer_id in learner.run.present, "the peer was cut off before the end"
        assert grown(sizes, sizes_of(*parts)) == {}
        assert rows_of(learner.ledger.path) == rows
        assert len(learner.recorded()) <= recorded + MEASURED // 50, "hours may be recorded at most twice a minute"
        assert left < LEFT_BYTES, left
        nursery.cancel_scope.cancel()


def _has_heard(learner: Learner, place: int) -> bool:
    return any(beat["bytes_up"] == place for beat in learner.logged("heartbeat"))


async def read_on(frames: FrameStream) -> None:
    """Read the answers, and ignore them."""
    while await frames.receive(FromLearner) is not None:
        pass


async def test_who_comes_and_goes_without_end_fills_no_ledger(tmp_path: Path, mock_clock: MockClock) -> None:
    async with staged(tmp_path, mock_clock) as stage:
        ledger, greeting = stage.learner.ledger, Hello(protocol=PROTOCOL_VERSION, price=Price())
        welcomed = [await stage.learner.sessions.welcome(PEER.peer_id, greeting) for _ in range(WELCOMES_AT_ONCE)]
        assert all(isinstance(one, Welcome) for one in welcomed)
        refused = await stage.learner.sessions.welcome(PEER.peer_id, greeting)
        assert isinstance(refused, Refused)
        assert refused.retry_after_ms == 1000 * WELCOME_EVERY_S
        assert "connection breaks" in refused.reason
        assert rows_of(ledger.path)["presence"] == WELCOMES_AT_ONCE
        assert isinstance(await stage.learner.sessions.welcome(OTHER.peer_id, greeting), Welcome), "others may come"
        mock_clock.jump(WELCOME_EVERY_S)
        assert isinstance(await stage.learner.sessions.welcome(PEER.peer_id, greeting), Welcome)
        assert isinstance(await stage.learner.sessions.welcome(PEER.peer_id, greeting), Refused)
