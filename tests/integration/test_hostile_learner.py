"""A hostile learner sends anything to a rollout node as it is shipped: the connection may end, the node does not.

Hypothesis draws leases, receipts, proofs, introductions and recalls: at the bounds of the protocol, distorted, for
other nodes, repeated and in any order. Each script has a connection of its own. One node lives through all of them with
connection, role, engine, store and receipts. Then the learner is honest once more, and the node works.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from node.engine.common_worker.generate_call import Call
from node.engine.lease_requests import learners_clock, requests_of
from node.engine.worker_engine import _generate_request
from node.rollout_role.worker import RolloutWorker
from node.runtime.events import EventLog
from node.state.receipt_queries import ReceiptQueries
from protocol.accounting.reputation import DAY_MS, ObservedDay
from protocol.accounting.reputation_note import ReputationNote, reputation_note
from protocol.accounting.tally import MAX_PROOF_BYTES, Proof, Tally, TrainedRecord, check_proof, open_tally, proofs_for
from protocol.accounting.tally import tree_of as tree_of_records
from protocol.core.codec import decode, encode, pack_tokens, require_bounds
from protocol.core.envelope import Kind, seal, sign
from protocol.core.errors import PeerError
from protocol.core.ids import PeerId, PolicyVersion
from protocol.core.limits import (
    MAX_GROUP_SIZE,
    MAX_MILLIS,
    MAX_PUBLISH_EVERY,
    MAX_STALENESS,
    MAX_TOKEN_ID,
    MAX_WORK_BYTES,
    MIN_TEMPERATURE,
    PROTOCOL_VERSION,
)
from protocol.scores import ScoreGrant, ScoreLease
from protocol.versions.exchange import PeerAddresses
from protocol.work import (
    KEY_IN_USE,
    PROOFS,
    RELAY_RECEIPTS,
    WORK,
    Acknowledgement,
    Delivery,
    Farewell,
    FromLearner,
    FromNode,
    Grant,
    InboxFull,
    Introduction,
    Lease,
    LeaseRecall,
    LeaseReturn,
    NumberedNote,
    Proofs,
    Receipt,
    Refused,
    Revised,
    Rule,
    Sampler,
    Timing,
    Verdict,
    Welcome,
    Window,
    open_lease,
    read_record,
)
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transport.framing import FrameStream, open_frames
from swarm.transport.interface import Stream, StreamBroken
from swarm.work.client import NotWelcome, RunFinished
from tests.integration.test_hostile_deliveries import examples
from tests.support.growth_check import sizes_of
from tests.support.learner_fixture import watched
from tests.support.message_mutations import JUNK, distort, kinds_drawn, packed, tree_of
from tests.support.rollout_fixture import work_with
from tests.support.store_fixture import small_model
from tests.support.swarm_fixture import open_node, peer_of
from tests.support.trainer_fixture import NOW_MS, OTHER, SWARM

NODE = "node"
SWARM_ID = SWARM.authority.swarm
FILES = {**small_model(1), "config.json": b"{}"}
VERSION = SWARM.publish(FILES, version=1)

COUNTS = st.sampled_from([0, 1, 2, 1000, 2**31, 2**53 - 1])
MOMENTS = st.sampled_from([0, NOW_MS, MAX_MILLIS])
IDS = st.integers(1, 12).map(lambda number: number.to_bytes(16, "big"))
TEXTS = st.sampled_from(["", "no", "\0", "\x1b[2J", "=1+1", "\N{SNOWMAN}" * 100])
ADDRESSES = st.sampled_from(["", "no", "=1+", "/ip4/1.2.3.4/tcp/1", "\N{SNOWMAN}" * 100])
VERSIONS = st.builds(PolicyVersion, st.sampled_from([0, 1, 2**53 - 1]), COUNTS)
BYTES32 = st.binary(min_size=32, max_size=32)


def welcome(**changes: Any) -> Welcome:
    terms = {"protocol": PROTOCOL_VERSION, "now_ms": NOW_MS, "heartbeat_ms": 1000, "staleness": 1, "publish_every": 1}
    return Welcome(**terms | {"ext": {RELAY_RECEIPTS: b"", PROOFS: b""}} | changes)


LEASES = st.builds(
    Lease,
    id=IDS,
    peer=st.sampled_from([peer_of(NODE)] * 39 + [OTHER.peer_id]),
    task=TEXTS,
    prompt=st.lists(st.sampled_from([*[0, 5] * 10, MAX_TOKEN_ID]), min_size=1, max_size=8).map(pack_tokens),
    seeds=st.lists(st.sampled_from([0, 1, 2**63, 2**64 - 1]), min_size=1, max_size=4),
    sampler=st.builds(Sampler, temperature=st.sampled_from([MIN_TEMPERATURE, 1e-3, 1.0, 100.0])),
    stop_ids=st.lists(st.sampled_from([0, 1, MAX_TOKEN_ID]), max_size=5),
    max_new_tokens=st.integers(1, 12),
    minimum=st.sampled_from([PolicyVersion(0, 0), PolicyVersion(1, 1), PolicyVersion(1, 1), PolicyVersion(1, 1)]),
    issued_ms=MOMENTS,
    deadline_ms=st.sampled_from([*[NOW_MS + 60_000] * 6, 0, NOW_MS, NOW_MS + 5_000, MAX_MILLIS]),
) | st.builds(
    Lease,
    id=IDS,
    peer=st.just(peer_of(NODE)),
    task=TEXTS,
    prompt=st.just(pack_tokens([1])),
    seeds=st.just([1]),
    sampler=st.just(Sampler()),
    stop_ids=st.just([0]),
    max_new_tokens=st.just(1),
    minimum=st.just(PolicyVersion(9, 9)),
    issued_ms=MOMENTS,
    deadline_ms=st.sampled_from([0, NOW_MS, NOW_MS + 2_000]),
)
"""Leases of few tokens: how long an engine generates is up to its owner's limits. A lease of a version that never comes
has a deadline, since a node waits for it until then."""


def sealed(kind: Kind, message: Any) -> bytes:
    return seal(SWARM.learner, SWARM_ID, kind, encode(message))


VERDICTS = st.builds(
    Verdict,
    record=BYTES32,
    index=st.sampled_from([0, 1, MAX_GROUP_SIZE - 1]),
    rule=st.sampled_from(list(Rule)),
    reward=st.none() | st.sampled_from([0.0, -1e15, 1e15]),
    detail=TEXTS,
)
RECEIPTS = st.builds(
    Receipt,
    lease=IDS,
    peer=st.sampled_from([peer_of(NODE)] * 9 + [OTHER.peer_id]),
    version=VERSIONS,
    issued_ms=MOMENTS,
    tokens=COUNTS,
    verdicts=st.lists(VERDICTS, max_size=4),
    certificate=st.just(SWARM.certificate),
)
SIGNED_RECEIPTS = RECEIPTS.map(lambda receipt: sealed(Kind.RECEIPT, receipt))


@st.composite
def odd(draw: st.DrawFn, kind: Kind, messages: st.SearchStrategy[Any]) -> bytes:
    """Draw messages that were distorted and then signed by the learner."""
    return seal(SWARM.learner, SWARM_ID, kind, packed(distort(draw, tree_of(draw(messages)))))


TRAINED = [
    TrainedRecord(bytes([number]) * 32, peer, bytes(16), number, PolicyVersion(1, 5))
    for number, peer in enumerate([peer_of(NODE), peer_of(NODE), OTHER.peer_id])
]
LEAVES, TREE = tree_of_records(TRAINED)
TALLIES = st.builds(
    Tally,
    version=st.sampled_from([PolicyVersion(1, 5), PolicyVersion(1, 6), PolicyVersion(2**53 - 1, 2**53 - 1)]),
    after=st.sampled_from([0, 4, 5]),
    records=st.sampled_from([TREE.size, 0, 2**53 - 1]),
    root=st.sampled_from([TREE.root, bytes(32)]),
    issued_ms=st.sampled_from([0, NOW_MS]),
    certificate=st.just(SWARM.certificate),
)


def stood(peer: PeerId, number: int, issued_ms: int) -> ReputationNote:
    """Return a reputation that is valid, but perhaps another peer's, and of another time."""
    today = NOW_MS // DAY_MS
    days = [ObservedDay(day=today, leases_in_time=number, bytes_given=number)]
    certificate = SWARM.certificate
    return reputation_note(
        peer=peer, day=today, days=days, banned="", issued_ms=issued_ms, certificate=certificate
    )  # fmt: skip


REPUTATIONS = st.builds(stood, st.sampled_from([peer_of(NODE)] * 3 + [OTHER.peer_id]), COUNTS, MOMENTS)


@st.composite
def proofs(draw: st.DrawFn) -> Proofs:
    """Draw proofs as a node asks for whenever it is connected: of its own records and others', out of order, repeated,
    without a tally.
    """
    tally = draw(TALLIES.map(lambda tally: sealed(Kind.TALLY, tally)) | odd(Kind.TALLY, TALLIES) | st.just(b""))
    places = draw(st.lists(st.integers(0, 2), max_size=4))
    found = [proofs_for(LEAVES, TREE, [place])[0] for place in places]
    notes = [NumberedNote(draw(COUNTS), draw(st.binary(max_size=40))) for _ in range(draw(st.integers(0, 2)))]
    stands = draw(
        st.just(b"")
        | REPUTATIONS.map(lambda note: sealed(Kind.REPUTATION, note))
        | odd(Kind.REPUTATION, REPUTATIONS)
        | st.binary(max_size=40)
    )
    return Proofs(tally=tally, proofs=found, notes=notes if draw(st.booleans()) else [], reputation=stands)


SCORING = st.builds(
    ScoreLease,
    id=IDS,
    peer=st.sampled_from([peer_of(NODE)] * 9 + [OTHER.peer_id]),
    teacher=BYTES32,
    prompt=st.just(pack_tokens([1])),
    completions=st.lists(st.just(pack_tokens([2, 3])), min_size=1, max_size=3),
    temperature=st.sampled_from([MIN_TEMPERATURE, 1.0, 100.0]),
    issued_ms=MOMENTS,
    deadline_ms=MOMENTS,
).map(lambda lease: sealed(Kind.SCORE_LEASE, lease))
"""A generating node should be granted none of these: it returns them."""

GRANTED = LEASES.map(lambda lease: sealed(Kind.LEASE, lease))
SAID: dict[str, st.SearchStrategy[Any]] = {
    "grant": st.builds(
        Grant,
        leases=st.sampled_from([False] * 9 + [True]).flatmap(
            lambda is_odd: st.lists(GRANTED | odd(Kind.LEASE, LEASES) if is_odd else GRANTED, min_size=1, max_size=4)
        ),
        # a lease of the past would be waited for that long
        now_ms=st.sampled_from([NOW_MS, NOW_MS, NOW_MS, MAX_MILLIS]),
        reason=TEXTS,
        retry_after_ms=st.sampled_from([0, 1, 600_000]),
    ),
    "scoring": st.builds(
        ScoreGrant,
        leases=st.lists(SCORING | st.binary(max_size=40), max_size=3),
        now_ms=st.just(NOW_MS),
        reason=TEXTS,
        retry_after_ms=st.sampled_from([0, 1]),
    ),
    "recall": st.builds(LeaseRecall, leases=st.lists(IDS, max_size=5), minimum=VERSIONS),
    "acknowledgement": st.builds(
        lambda receipt, lease: Acknowledgement(lease=lease or receipt.lease, receipt=sealed(Kind.RECEIPT, receipt)),
        RECEIPTS,
        st.sampled_from([b""] * 9 + [bytes(16)]),
    ),
    "full": st.builds(InboxFull, lease=IDS, retry_after_ms=st.sampled_from([0, 600_000])),
    "revised": st.builds(Revised, receipt=SIGNED_RECEIPTS | odd(Kind.RECEIPT, RECEIPTS)),
    "window": st.builds(Window, staleness=st.sampled_from([0, 1, 1 << 20])),
    "introduction": st.builds(
        Introduction,
        peers=st.lists(
            st.builds(
                PeerAddresses,
                peer=st.sampled_from([OTHER.peer_id, "x" * 52]),
                addresses=st.lists(ADDRESSES, max_size=3),
            ),
            max_size=5,
        ),
    ),
    "proofs": proofs(),
    "welcome": st.builds(
        welcome,
        now_ms=MOMENTS,
        heartbeat_ms=st.sampled_from([100, 600_000]),
        staleness=st.sampled_from([0, MAX_STALENESS]),
        publish_every=st.sampled_from([1, MAX_PUBLISH_EVERY]),
        newest=st.none() | VERSIONS,
    ),
    "refused": st.builds(
        Refused,
        reason=TEXTS,
        retry_after_ms=st.sampled_from([0, 2_000, None, None]),
        ext=st.sampled_from([{}, {KEY_IN_USE: b""}]),
    ),
    "farewell": st.builds(Farewell, reason=TEXTS),
}

LAST = ("welcome", "refused", "farewell")
"""Messages that end a connection, and sometimes the role."""

RESTARTED = (RunFinished, NotWelcome)
"""Errors with which a role ends when its learner says so. Here its owner starts it again each time."""


def test_every_message_that_a_learner_may_send_is_drawn() -> None:
    assert kinds_drawn(SAID) == set(get_args(FromLearner))


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    match draw(st.sampled_from([*["legal"] * 28, "distorted", "junk"])):
        case "legal":
            name = draw(st.sampled_from([*[*(one for one in SAID if one not in LAST), "grant", "grant"] * 2, *LAST]))
            return encode(draw(SAID[name]))
        case "distorted":
            return packed(distort(draw, tree_of(draw(st.sampled_from(sorted(SAID)).flatmap(SAID.__getitem__)))))
        case _:
            return packed(draw(st.sampled_from(JUNK)))


@dataclass(kw_only=True)
class ScriptedLearner:
    """The learner's messages on the next connection, and those it received. It answers deliveries when
    `acknowledges`.
    """

    script: Sequence[bytes] = ()
    acknowledges: bool = True
    lines: int = 0
    heard: Counter[str] = field(default_factory=Counter)
    delivered: list[Delivery] = field(default_factory=list)

    async def serve(self, stream: Stream) -> None:
        self.lines += 1
        said, self.script = list(self.script), ()
        try:
            async with open_frames(stream, MAX_WORK_BYTES) as frames:
                await frames.receive(FromNode)
                await frames.send(welcome())
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._hear, frames)
                    for body in said:
                        await frames.send_bytes(body)
                        await trio.sleep(0.01)
                    if said:
                        await trio.sleep(1)
                        nursery.cancel_scope.cancel()
        except* StreamBroken:
            pass

    async def _hear(self, frames: FrameStream) -> None:
        while (message := await frames.receive(FromNode)) is not None:
            self.heard[type(message).__name__] += 1
            match message:
                case Delivery() if self.acknowledges:
                    self.delivered.append(message)
                    await frames.send(Acknowledgement(lease=message.lease, receipt=self._receipt(message)))
                case LeaseReturn():
                    self.heard["leases returned"] += len(message.leases)

    def _receipt(self, delivery: Delivery) -> bytes:
        verdicts = [
            Verdict(record=read_record(raw, SWARM_ID).id, index=place, rule=Rule.ADMITTED)
            for place, raw in enumerate(delivery.records)
        ]
        receipt = Receipt(
            lease=delivery.lease, peer=peer_of(NODE), version=PolicyVersion(1, 1), issued_ms=NOW_MS, tokens=1,
            verdicts=verdicts, certificate=SWARM.certificate,
        )  # fmt: skip
        return sign(SWARM.learner, SWARM_ID, receipt)


@pytest.mark.parametrize("times", [40, pytest.param(400, marks=pytest.mark.slow)], ids=["few", "many"])
async def test_whatever_the_learner_says_the_node_goes_on(tmp_path: Path, mock_clock: MockClock, times: int) -> None:
    network, learner = MemoryNetwork(), ScriptedLearner()
    roles: list[RolloutWorker] = []
    endings = Counter[str]()

    def begin(role: RolloutWorker, events: EventLog) -> None:
        role.counts.tokens_per_s = 1.0  # leases that no engine takes may come for longer than an owner would wait
        role.retry_policy.give_up_s = (
            math.inf
        )  # leases that no engine takes may come for longer than an owner would wait
        role.service.offer(VERSION)
        roles.append(role)

    async def pass_time(until_is: Callable[[], bool]) -> None:
        while not until_is():
            mock_clock.jump(0.25)
            for _ in range(8):
                await trio.to_thread.run_sync(int)

    async def say(script: Sequence[bytes]) -> None:
        learner.script, before = script, learner.lines
        await network_cut()
        await pass_time(lambda: learner.lines > before)
        await pass_time(lambda: learner.lines > before + 1 or not learner.script)
        for _ in range(6):
            mock_clock.jump(0.25)
            await trio.to_thread.run_sync(int)

    async def network_cut() -> None:
        network.cut(peer_of(NODE), SWARM.learner.peer_id)
        await trio.lowlevel.checkpoint()

    async with (
        watched(),
        network.node("learner", peer_id=SWARM.learner.peer_id) as transport,
        open_node(network, SWARM, tmp_path, NODE) as node,
        trio.open_nursery() as nursery,
    ):
        transport.handle(WORK, learner.serve)
        node.hold(VERSION, FILES)

        class Reached:
            """The part of a learner that `work_with` uses."""

            transport = network._nodes[SWARM.learner.peer_id]

        async def work() -> None:
            while True:
                try:
                    await work_with(node, Reached(), tmp_path, 0.0, begin, keeps_proofs=True)  # type: ignore[arg-type]
                except* RESTARTED as ended:
                    endings.update(one.__name__ for one in RESTARTED if ended.subgroup(one) is not None)
                await trio.sleep(0.01)

        nursery.start_soon(work)
        await pass_time(lambda: learner.lines > 0)

        @examples(times)
        @example([encode(Farewell(reason="over"))])
        @example([encode(Refused(reason="no"))])
        @given(st.lists(bodies(), min_size=1, max_size=12))
        def hear(script: list[bytes]) -> None:
            learner.acknowledges = len(script) % 3 > 0
            trio.from_thread.run(say, script)

        await trio.to_thread.run_sync(hear)
        assert learner.heard["Delivery"] > 0
        assert learner.heard["leases returned"] > 0
        assert endings.keys() >= {"RunFinished", "NotWelcome"}
        role = roles[-1]
        sizes = {path: size for path, size in sizes_of(role).items() if "learner" not in path}
        assert max(sizes.values(), default=0) < 2048, sizes
        # Honest again.
        learner.acknowledges = True
        learner.delivered.clear()
        lease = Lease(
            id=b"\x77" * 16, peer=peer_of(NODE), task="even", prompt=pack_tokens([1, 2]), seeds=[1, 2],
            sampler=Sampler(), stop_ids=[0], max_new_tokens=4, minimum=PolicyVersion(1, 1), issued_ms=NOW_MS,
            deadline_ms=NOW_MS + 60_000,
        )  # fmt: skip
        await say([])
        while not any(one.lease == lease.id for one in learner.delivered):
            await say([encode(Grant(leases=[sealed(Kind.LEASE, lease)], now_ms=NOW_MS))] * 3)
        await pass_time(lambda: not role.holding)
        assert role.counts.pending == 0, "a lease that was granted twice must count once"
        nursery.cancel_scope.cancel()
    kept = proofs_kept(tmp_path / "receipts.sqlite")
    assert kept <= {one.record for one in TRAINED[:2]}, "the node kept a proof that is invalid or another's"
    assert learner.heard["ProofRequest"] > 0


def proofs_kept(path: Path) -> set[bytes]:
    """Return the records whose proofs the node keeps, after checking each proof."""
    with closing(ReceiptQueries(path)) as receipts:
        stored = list(receipts.proofs())
    for one in stored:
        leaf = check_proof(decode(Proof, one.proof, MAX_PROOF_BYTES), open_tally(one.tally, SWARM.authority))
        assert (leaf.record, leaf.peer) == (one.record, peer_of(NODE))
    return {one.record for one in stored}


def test_no_clock_of_a_learners_makes_a_time_that_no_record_can_say() -> None:
    assert learners_clock(NOW_MS, 250) == NOW_MS + 250
    assert learners_clock(NOW_MS, -(2**53)) == 0
    assert learners_clock(NOW_MS + 5, MAX_MILLIS - NOW_MS) == MAX_MILLIS
    assert require_bounds(Timing(started_ms=MAX_MILLIS, generation_ms=0)).started_ms == MAX_MILLIS


def test_an_engine_takes_every_lease_that_can_be_said() -> None:
    """A lease beyond an engine's integers is refused where it is read; every other lease becomes a request."""

    @examples(100)
    @given(LEASES, st.sampled_from([0, MAX_TOKEN_ID, MAX_TOKEN_ID + 1, 2**32 - 1]))
    def check(lease: Lease, token: int) -> None:
        said = packed(tree_of(lease) | {"prompt": pack_tokens([1, token]), "stop_ids": [token]})
        raw = seal(SWARM.learner, SWARM_ID, Kind.LEASE, said)
        if token > MAX_TOKEN_ID:
            with pytest.raises(PeerError, match="malformed"):
                open_lease(raw, SWARM_ID, learner=SWARM.learner.peer_id)
            return
        requests = requests_of(open_lease(raw, SWARM_ID, learner=SWARM.learner.peer_id))
        header, arrays = _generate_request(requests)
        call = Call.parse(json.loads(json.dumps(header | {"id": 1})), arrays)
        assert [row.prompt for row in call.rows] == [(1, token)] * len(requests)
        assert all(row.temperature > 0 for row in call.rows)

    check()
