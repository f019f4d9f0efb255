"""A record's training is proved to its author: from the learner's ledger to the node's own receipts."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from learner.trust.relay_credit import Credit
from node.commands.statements.format import ReputationLine
from node.commands.statements.sources import NodeReceipts
from node.learner_role.peers import proof_service
from node.learner_role.peers.proof_service import PAUSE_S, ProofService
from node.reports.readers.receipts_report import own_report
from node.reports.text.report_text import own_story
from node.rollout_role.proof_client import check_notes, check_proofs, check_reputation, tally_in
from node.rollout_role.worker import RolloutWorker
from node.runtime.events import EventLog
from node.state.receipt_queries import ReceiptQueries
from node.state.receipt_rows import KeptReputation
from protocol.accounting.credit_note import CreditNote, RelayShare
from protocol.accounting.rank import RANK, Rank
from protocol.accounting.reputation import DAY_MS, Band, ObservedDay
from protocol.accounting.reputation_note import reputation_note
from protocol.accounting.tally import MAX_PROOF_BYTES, Proof, TrainedRecord, check_proof, open_tally
from protocol.core.codec import decode, encode
from protocol.core.envelope import sign
from protocol.core.errors import Fault, PeerError
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PeerId, PolicyVersion, RecordId
from protocol.work import FromLearner, NumberedNote, ProofRequest, Proofs
from swarm.testing.memory_transport import MemoryNetwork
from tests.support.learner_fixture import FakePeer, Killed, Learner, Settings, open_learner, until
from tests.support.rollout_fixture import serve, work_with
from tests.support.swarm_fixture import open_node
from tests.support.trainer_fixture import NOW_MS, OTHER, PEER, SWARM, version

HERE, THERE = PEER.peer_id, OTHER.peer_id
START = ProofRequest(version=PolicyVersion(0, 0))

pytestmark = pytest.mark.usefixtures("mock_clock")


class Reputed:
    """A stand-in that has a note on every peer, of one moment, and the same rank for each."""

    def __init__(self, rank: Rank | None = None) -> None:
        self.ranked = rank

    def note(self, peer: PeerId, after_ms: int) -> bytes | None:
        return reputation(peer) if after_ms < NOW_MS else None

    def rank(self, peer: PeerId) -> Rank | None:
        return self.ranked


class Asker:
    """Asks a service as a peer would, and keeps the answers."""

    def __init__(self, desk: ProofService) -> None:
        self.desk = desk
        self.told: list[tuple[PeerId, FromLearner]] = []
        desk.context.signals.peer_told.subscribe(lambda news: self.told.append((news.peer, news.message)))

    async def ask(self, peer: PeerId, request: ProofRequest) -> Proofs:
        before = len(self.told)
        self.desk.ask(peer, request)
        await until(lambda: len(self.told) > before)
        who, message = self.told[-1]
        assert isinstance(message, Proofs)
        assert who == peer
        return message

    async def everything(self, peer: PeerId) -> list[tuple[PolicyVersion, int, TrainedRecord]]:
        """Return everything that is proved to `peer`, page by page."""
        found: list[tuple[PolicyVersion, int, TrainedRecord]] = []
        request = START
        while (answer := await self.ask(peer, request)).proofs:
            tally = open_tally(answer.tally, SWARM.authority)
            found += [(tally.version, proof.place, check_proof(proof, tally)) for proof in answer.proofs]
            request = ProofRequest(version=tally.version, place=answer.proofs[-1].place + 1)
        assert answer == Proofs()
        return found


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pauses between answers: the clock stands still."""
    monkeypatch.setattr(proof_service, "PAUSE_S", 0.0)


def consumed(root: Path, peer: PeerId) -> set[tuple[bytes, int]]:
    """Return (record, step) of all records that the ledger says were trained on."""
    with closing(sqlite3.connect(root / "ledger.sqlite")) as db:
        return set(db.execute("SELECT record, step FROM records WHERE step IS NOT NULL AND peer = ?", (peer,)))


async def asked_of(learner: Learner, *peers: PeerId) -> list[list[tuple[PolicyVersion, int, TrainedRecord]]]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(learner.sessions.proofs.run)
        asker = Asker(learner.sessions.proofs)
        found = [await asker.everything(peer) for peer in peers]
        nursery.cancel_scope.cancel()
    return found


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("publish_every", [1, 2, 4])
async def test_everybody_is_proved_what_is_theirs_and_all_of_it(
    tmp_path: Path, publish_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_service, "MAX_PROOFS", 3)
    settings = Settings(steps=6, staleness=4, publish_every=publish_every, prompts=4)
    async with open_learner(tmp_path, settings) as learner:
        await learner.train(FakePeer(), FakePeer(key=OTHER, rollouts=2))
        for peer, found in zip((HERE, THERE), await asked_of(learner, HERE, THERE), strict=True):
            assert {leaf.peer for _, _, leaf in found} == {peer}
            assert [(name, place) for name, place, _ in found] == sorted({(name, place) for name, place, _ in found})
            assert {(leaf.record, leaf.version.version) for _, _, leaf in found} == consumed(tmp_path, peer)
            assert len(found) > proof_service.MAX_PROOFS
        ((nobody,),) = ([await asked_of(learner, Keypair(bytes([9]) * 32).peer_id)],)
        assert nobody == [[]]


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize(
    ("call", "moment", "at"),
    [
        ("step_trained", "after", 5),
        ("version_published", "before", 5),
        ("version_published", "after", 5),
        ("checkpointed", "before", 4),
        ("checkpointed", "after", 4),
    ],
)
async def test_a_learner_killed_on_the_way_to_an_announcement_proves_what_survived(
    tmp_path: Path, call: str, moment: str, at: int
) -> None:
    """Records that the killed process had signed, but not made durable, prove nothing to the next one:
    they are free.
    """
    peer = FakePeer()
    async with open_learner(tmp_path) as learner:
        learner.ledger.dies = (call, moment, at)
        with pytest.RaisesGroup(Killed, flatten_subgroups=True, allow_unwrapped=True):
            await learner.train(peer)
    async with open_learner(tmp_path) as again:
        await again.train(peer)
        base = again.ledger.training.begun()[1][1]
        (found,) = await asked_of(again, HERE)
        assert {(leaf.record, leaf.version.version) for _, _, leaf in found} == consumed(tmp_path, HERE)
        assert all((leaf.version.incarnation == 1) == (leaf.version.version <= base) for _, _, leaf in found)
        assert len({leaf.record for _, _, leaf in found}) == len(found)


async def test_one_peer_is_answered_its_latest_question_and_not_too_often(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_service, "ANSWERS_SAVED", 1)
    async with open_learner(tmp_path, Settings(steps=2)) as learner, trio.open_nursery() as nursery:
        await learner.train(FakePeer())
        desk = learner.sessions.proofs
        asker = Asker(desk)
        nursery.start_soon(desk.run)
        first = await asker.ask(HERE, START)
        assert first.proofs
        for place in range(100):
            desk.ask(HERE, ProofRequest(version=version("1.2"), place=place))
        desk.ask(HERE, START)
        await asker.ask(THERE, START)
        await wait_all_tasks_blocked()
        assert [who for who, _ in asker.told] == [HERE, THERE], "a peer that asks too often must not delay the others"
        mock_clock.jump(PAUSE_S)
        await until(lambda: len(asker.told) == 3)
        assert asker.told[2] == (HERE, first)
        desk.ask(THERE, START)
        desk.forget(THERE)
        mock_clock.jump(PAUSE_S)
        await wait_all_tasks_blocked()
        assert len(asker.told) == 3
        nursery.cancel_scope.cancel()


async def test_who_has_asked_for_little_catches_up_at_once(
    tmp_path: Path, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_service, "ANSWERS_SAVED", 5)
    async with open_learner(tmp_path, Settings(steps=3)) as learner, trio.open_nursery() as nursery:
        await learner.train(FakePeer())
        asker = Asker(learner.sessions.proofs)
        nursery.start_soon(learner.sessions.proofs.run)
        assert await asker.everything(HERE), "there must be proofs of three versions before the empty answer"
        await asker.ask(HERE, START)
        learner.sessions.proofs.ask(HERE, START)
        await wait_all_tasks_blocked()
        assert len(asker.told) == 5
        mock_clock.jump(PAUSE_S)
        await until(lambda: len(asker.told) == 6)
        learner.sessions.proofs.ask(HERE, START)
        await wait_all_tasks_blocked()
        assert len(asker.told) == 6, "after that, one answer per pause"
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("hurry")
async def test_a_tally_that_the_ledger_does_not_bear_out_is_not_told(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        await learner.train(FakePeer())
        with learner.ledger.transaction() as db:
            db.execute("UPDATE record_rows SET step = 1 WHERE no = (SELECT max(no) FROM record_rows WHERE step = 2)")
        assert await asked_of(learner, HERE) == [[]]


@pytest.mark.usefixtures("hurry")
async def test_a_node_keeps_what_its_records_trained_to_the_last_version(tmp_path: Path) -> None:
    network, settings = MemoryNetwork(), Settings(steps=4, staleness=2)
    async with (
        open_learner(tmp_path, settings, network=network) as learner,
        open_node(network, SWARM, tmp_path, "worker", follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        await worker.transport.dial(learner.transport.addresses())

        async def work() -> None:
            await work_with(worker, learner, tmp_path, keeps_proofs=True)

        nursery.start_soon(work)
        await learner.train()
        nursery.cancel_scope.cancel()
        expected = consumed(tmp_path, worker.peer)
    with closing(ReceiptQueries(tmp_path / "receipts.sqlite")) as receipts:
        kept = list(receipts.proofs())
        leaves = []
        for one in kept:
            tally = open_tally(one.tally, SWARM.authority)
            leaves.append(check_proof(decode(Proof, one.proof, MAX_PROOF_BYTES), tally))
            assert one.version == tally.version
            assert one.record == leaves[-1].record
            assert receipts.receipt_for(leaves[-1].lease) is not None  # type: ignore[arg-type]
        assert {(leaf.record, leaf.version.version) for leaf in leaves} == expected
        assert {step for _, step in expected} == {1, 2, 3, 4}
        (again,) = receipts.proofs(RecordId(leaves[0].record))
        assert again == kept[0]


# Answers that a node rejects.


async def an_answer(root: Path) -> Proofs:
    """Return the first page that a learner has for PEER."""
    async with open_learner(root, Settings(steps=2)) as learner:
        await learner.train(FakePeer())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(learner.sessions.proofs.run)
            answer = await Asker(learner.sessions.proofs).ask(HERE, START)
            nursery.cancel_scope.cancel()
        return answer


async def test_what_does_not_hold_is_not_kept(tmp_path: Path) -> None:
    answer = await an_answer(tmp_path)
    first, *rest = answer.proofs
    assert rest
    assert len(check_proofs(START, answer, SWARM.authority, HERE)) == len(answer.proofs)
    replace = msgspec.structs.replace

    def fault(changed: Proofs, request: ProofRequest = START, peer: PeerId = HERE) -> Fault:
        with pytest.raises(PeerError) as caught:
            check_proofs(request, changed, SWARM.authority, peer)
        return caught.value.fault

    assert fault(answer, peer=THERE) is Fault.BROKEN_PROMISE
    assert fault(replace(answer, proofs=[first, first])) is Fault.BROKEN_PROMISE
    assert fault(replace(answer, proofs=[*reversed(answer.proofs)])) is Fault.BROKEN_PROMISE
    later = ProofRequest(version=version("1.1"), place=first.place + 1)
    assert fault(answer, later) is Fault.BROKEN_PROMISE
    assert fault(replace(answer, proofs=[replace(first, path=[])])) is Fault.BROKEN_PROMISE
    assert fault(replace(answer, tally=answer.tally[:-1] + bytes([answer.tally[-1] ^ 1]))) is Fault.BAD_SIGNATURE


@pytest.mark.usefixtures("hurry")
async def test_a_tally_other_than_the_manifest_s_is_told_and_not_kept(tmp_path: Path) -> None:
    """The learner would have made two statements about one version. Work goes on meanwhile."""
    network, troubles = MemoryNetwork(), list[str]()
    async with (
        open_learner(tmp_path, Settings(steps=3, staleness=2), network=network) as learner,
        open_node(network, SWARM, tmp_path, "worker", follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        serve(learner)
        await worker.transport.dial(learner.transport.addresses())

        def listen(role: RolloutWorker, events: EventLog) -> None:
            events.listen(lambda name, fields: troubles.append(str(fields.get("text"))) if name == "trouble" else None)

        async def work() -> None:
            await work_with(
                worker, learner, tmp_path, on_role=listen, keeps_proofs=True, tally_held=lambda name: b"another"
            )

        nursery.start_soon(work)
        nursery.start_soon(learner.train)
        await until(lambda: troubles != [])
        nursery.cancel_scope.cancel()
    assert "version 1.1 has another tally in its manifest than in its proofs" in troubles[0]
    with closing(ReceiptQueries(tmp_path / "receipts.sqlite")) as receipts:
        assert list(receipts.proofs()) == []


async def test_the_tally_of_a_version_is_found_in_the_manifest_that_lies_here(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        await learner.train(FakePeer())
        row = learner.ledger.evidence.tally_of_step(2)
        assert row is not None
        assert tally_in(learner.store, version("1.2")) == row.envelope
        assert tally_in(learner.store, version("1.9")) is None


# Credit notes.


def note(number: int, relay: PeerId = HERE, *, signer: Keypair = SWARM.learner) -> NumberedNote:
    signed = CreditNote(
        receipt=bytes(32),
        manifest=number.to_bytes(32, "big"),
        receiver=Keypair(bytes([8]) * 32).peer_id,
        shares=[RelayShare(relay, 700)],
        issued_ms=NOW_MS,
        certificate=SWARM.certificate,
    )
    return NumberedNote(number, sign(signer, SWARM.authority.swarm, signed))


def test_credit_that_does_not_hold_is_not_kept() -> None:
    after = ProofRequest(version=PolicyVersion(0, 0), notes=3)

    def checked(*notes: NumberedNote) -> list[int]:
        return [one.number for one in check_notes(after, Proofs(notes=list(notes)), SWARM.authority, HERE)]

    assert checked() == []
    assert checked(note(4), note(9)) == [4, 9]
    for wrong in ([note(3)], [note(4), note(4)], [note(9), note(4)], [note(4, THERE)], [note(4, signer=PEER)]):
        with pytest.raises(PeerError):
            checked(*wrong)


# Reputations.


def reputation(peer: PeerId = HERE, *, issued_ms: int = NOW_MS, signer: Keypair = SWARM.learner) -> bytes:
    day = NOW_MS // DAY_MS
    said = reputation_note(
        peer=peer, day=day, days=[ObservedDay(day=day, leases_in_time=9)], banned="", issued_ms=issued_ms,
        certificate=SWARM.certificate,
    )  # fmt: skip
    return sign(signer, SWARM.authority.swarm, said)


def test_a_reputation_that_does_not_hold_is_not_kept() -> None:
    def checked(raw: bytes, reputed: int | None = 0) -> KeptReputation | None:
        request = ProofRequest(version=PolicyVersion(0, 0), reputed=reputed)
        return check_reputation(request, Proofs(reputation=raw), SWARM.authority, HERE)

    assert checked(b"") is None
    kept = checked(reputation())
    assert kept is not None
    assert (kept.note.peer, kept.note.band, kept.raw) == (HERE, Band.STEADY, reputation())
    for wrong, reputed in (
        (reputation(THERE), 0),
        (reputation(), NOW_MS),
        (reputation(), None),
        (reputation(signer=PEER), 0),
        (reputation()[:-1] + bytes([reputation()[-1] ^ 1]), 0),
    ):
        with pytest.raises(PeerError):
            checked(wrong, reputed)


async def test_who_does_not_ask_for_its_reputation_is_not_told(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=2)) as learner, trio.open_nursery() as nursery:
        learner.sessions.proofs.reputations = Reputed()
        nursery.start_soon(learner.sessions.proofs.run)
        asker = Asker(learner.sessions.proofs)
        assert (await asker.ask(HERE, START)).is_empty
        asked = msgspec.structs.replace(START, reputed=0)
        assert await asker.ask(HERE, asked) == Proofs(reputation=reputation())
        assert (await asker.ask(HERE, msgspec.structs.replace(START, reputed=NOW_MS))).is_empty
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("hurry")
@pytest.mark.parametrize("rank", [None, Rank(place=2, peers=3, admitted=10, admitted_by_all=100)])
async def test_a_rank_is_told_with_each_answer_and_is_no_reason_to_ask_again(tmp_path: Path, rank: Rank | None) -> None:
    async with open_learner(tmp_path, Settings(steps=3)) as learner, trio.open_nursery() as nursery:
        learner.sessions.proofs.reputations = Reputed(rank)  # type: ignore[assignment]
        nursery.start_soon(learner.sessions.proofs.run)
        asker = Asker(learner.sessions.proofs)
        for asked in (START, msgspec.structs.replace(START, reputed=NOW_MS)):
            answer = await asker.ask(HERE, asked)
            assert answer.ext == ({} if rank is None else {RANK: encode(rank)})
            assert answer.is_empty
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("hurry")
async def test_a_node_keeps_how_it_stands_and_states_it(tmp_path: Path) -> None:
    network, told = MemoryNetwork(), list[dict[str, object]]()
    async with (
        open_learner(tmp_path, Settings(steps=3, staleness=2), network=network) as learner,
        open_node(network, SWARM, tmp_path, "worker", follows=True) as worker,
        trio.open_nursery() as nursery,
    ):
        learner.sessions.proofs.reputations = Reputed(Rank(place=2, peers=3, admitted=10, admitted_by_all=100))
        serve(learner)
        await worker.transport.dial(learner.transport.addresses())

        def listen(role: RolloutWorker, events: EventLog) -> None:
            watched = ("reputation_told", "rank_told")
            events.listen(lambda name, fields: told.append(dict(fields)) if name in watched else None)

        async def work() -> None:
            await work_with(worker, learner, tmp_path, on_role=listen, keeps_proofs=True)

        nursery.start_soon(work)
        await learner.train()
        nursery.cancel_scope.cancel()
        raw = reputation(worker.peer)
    assert told == [
        {"place": 2, "peers": 3, "admitted": 10, "admitted_by_all": 100}, {"band": "steady", "score": 1.0}
    ], "and once"  # fmt: skip
    with closing(ReceiptQueries(tmp_path / "receipts.sqlite")) as receipts:
        kept = receipts.reputation()
        assert kept is not None
        assert kept.raw == raw
        assert ReputationLine(note=raw) in list(NodeReceipts(receipts=receipts).lines(None, proofs=True))
        report = own_report(receipts, peer=worker.peer)
    assert report.peer.reputation is not None
    assert report.peer.reputation.band is Band.STEADY
    assert dict(own_story(report))["reputation"].startswith("Reputation 1.00 of 1, steady (availability 1.00")


async def test_a_relay_is_told_of_its_own_credit_from_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof_service, "MAX_NOTES", 2)
    async with open_learner(tmp_path, Settings(steps=1)) as learner, trio.open_nursery() as nursery:
        await learner.train(FakePeer(), FakePeer(key=OTHER))
        nursery.start_soon(learner.sessions.proofs.run)
        asker = Asker(learner.sessions.proofs)
        signed = {}
        for number in range(1, 6):
            relay = THERE if number == 3 else HERE
            signed[number] = note(number, relay).note
            credit = Credit(
                receiver=HERE if relay == THERE else THERE,
                manifest=ManifestHash(number.to_bytes(32, "big")),
                shares={relay: 700},
                raw=b"a relay receipt",
            )
            learner.ledger.peers.relays_credited([credit], NOW_MS, lambda credit, number=number: signed[number])  # type: ignore[misc]
        found, last = list[NumberedNote](), 0
        end = PolicyVersion(9, 0)
        while (answer := await asker.ask(HERE, ProofRequest(version=end, notes=last))).notes:
            assert len(answer.notes) <= 2
            found += answer.notes
            last = found[-1].number
        assert [one.note for one in found] == [signed[number] for number in (1, 2, 4, 5)]
        assert answer.is_empty
        theirs = await asker.ask(THERE, ProofRequest(version=end))
        assert [one.note for one in theirs.notes] == [signed[3]]
        nursery.cancel_scope.cancel()
