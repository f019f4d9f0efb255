"""A ledger older than the members' versions is detected by the learner's own signature, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from node.learner_role.peers.forgotten_versions import MAX_JUMP, Forgotten
from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import certify_learner
from protocol.core.identity import Keypair
from protocol.core.ids import PolicyVersion, PublicKey
from protocol.versions.announcement import Announcement, announce
from tests.support.learner_fixture import FakePeer, Learner, Settings, open_learner
from tests.support.trainer_fixture import NOW_MS, OTHER, SWARM


def announced(
    incarnation: int, version: int, *, signer: Keypair = SWARM.learner, certificate: bytes = SWARM.certificate
) -> bytes:
    """An announcement of a version that this learner's ledger knows nothing of."""
    said = Announcement(
        version=PolicyVersion(incarnation, version),
        manifest=bytes([incarnation % 256] * 32),
        manifest_bytes=9,
        total_bytes=9,
        certificate=certificate,
    )
    return announce(signer, SWARM.authority, said)


def watching(learner: Learner) -> Forgotten:
    return Forgotten(context=learner.context, transport=learner.transport, report=lambda peer, fault, detail: None)


async def test_a_version_that_a_member_holds_and_the_ledger_does_not_raises_the_incarnation_for_good(
    tmp_path: Path,
) -> None:
    async with open_learner(tmp_path, Settings(steps=4)) as learner:
        await learner.training.begin()
        head, kept = learner.capacity.chain.head, learner.trainer.calls.count("load")
        assert head.incarnation == 1
        await watching(learner).hear(announced(4, 25))
        [told] = learner.logged("ledger_restored")
        assert told["version"] == "4.25"
        await learner.train(FakePeer())
        assert learner.capacity.chain.head == PolicyVersion(5, 4)
        assert learner.ledger.training.begun() == [(1, 0), (5, 0)]
        assert learner.trainer.calls.count("load") == kept + 1, "train begins as it always does, and no more than that"
        for lost in (PolicyVersion(2, 0), PolicyVersion(3, 0), PolicyVersion(4, 0), PolicyVersion(4, 25)):
            assert not learner.capacity.chain.contains(lost)
    async with open_learner(tmp_path, Settings(steps=4)) as again:
        await again.training.begin()
        assert again.capacity.chain.head.incarnation == 6


async def test_it_goes_on_above_in_the_middle_of_a_run_and_loses_nothing(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=6)) as learner:
        peer, forgotten = FakePeer(), watching(learner)

        async def restored() -> None:
            while learner.capacity.chain.head.version < 2:
                await learner.run.wait_changed()
            await forgotten.hear(announced(3, 9))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restored)
            await learner.train(peer)
        assert learner.trainer.calls.count("load") == 1, "the trainer keeps its state"
        assert learner.capacity.chain.head == PolicyVersion(4, 6)
        [(first, base), (second, at)] = learner.ledger.training.begun()
        assert (first, base, second) == (1, 0, 4)
        assert at >= 2
        trained = learner.ledger.training.newest_steps(9)
        assert [row.step for row in trained] == [1, 2, 3, 4, 5, 6]
        assert {row.incarnation for row in trained} == {1, 4}
        taken = learner.ledger.query("SELECT count(*), count(DISTINCT lease || idx) FROM records WHERE step > 0")
        assert taken == [(6 * 4, 6 * 4)]


async def test_what_the_ledger_knows_changes_nothing(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=3)) as learner:
        await learner.train(FakePeer())
        newest = learner.run.announcement
    async with open_learner(tmp_path, Settings(steps=3)) as again:
        await again.training.begin()
        await watching(again).hear(newest)
        assert again.run.forgotten == 0
        assert not again.logged("ledger_restored")


STRANGER = Keypair.generate()
REPLACED = certify_learner(
    SWARM.operator, SWARM.authority, learner=PublicKey(OTHER.public), not_before_ms=0, not_after_ms=NOW_MS - 1
)


@pytest.mark.parametrize(
    ("raw", "fault"),
    [
        (announced(4, 25, signer=STRANGER), Fault.UNAUTHORISED),
        (announced(4, 25, signer=OTHER, certificate=REPLACED), Fault.UNAUTHORISED),
        (announced(4, 25)[:-1] + bytes([announced(4, 25)[-1] ^ 1]), Fault.BAD_SIGNATURE),
        (announced(MAX_JUMP + 2, 25), Fault.BROKEN_PROMISE),
        (b"noise", Fault.MALFORMED),
    ],
)
async def test_nobody_who_lies_makes_it_jump(tmp_path: Path, raw: bytes, fault: Fault) -> None:
    async with open_learner(tmp_path, Settings(steps=3)) as learner:
        await learner.training.begin()
        with pytest.raises(PeerError) as refused:
            await watching(learner).hear(raw)
        assert refused.value.fault is fault
        assert learner.run.forgotten == learner.ledger.training.incarnations_seen() == 0


async def test_of_its_own_key_a_certificate_that_has_ended_is_proof_enough(tmp_path: Path) -> None:
    """Who restores a copy after months shows nodes a renewed certificate, and they hold the old one."""
    ended = certify_learner(
        SWARM.operator, SWARM.authority, learner=PublicKey(SWARM.learner.public), not_before_ms=0, not_after_ms=1
    )
    async with open_learner(tmp_path, Settings(steps=3)) as learner:
        await learner.training.begin()
        await watching(learner).hear(announced(4, 25, certificate=ended))
        assert learner.run.forgotten == 4


async def test_what_lies_beside_the_ledger_is_looked_at_before_the_first_version(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "7.30").mkdir(parents=True)
    (tmp_path / "checkpoints" / ".9.30.partial").mkdir()
    async with open_learner(tmp_path, Settings(steps=3)) as learner:
        watching(learner).look_here(tmp_path / "checkpoints")
        await learner.training.begin()
        assert learner.capacity.chain.head.incarnation == 8


async def test_the_store_is_looked_at_as_well(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        await learner.train(FakePeer())
    async with open_learner(tmp_path, Settings(steps=3)) as learner:
        await learner.train(FakePeer())
    for file in tmp_path.glob("ledger.sqlite*"):
        file.unlink()
    (tmp_path / "gone").mkdir()
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        watching(learner).look_here(tmp_path / "gone")
        assert learner.run.forgotten == 2
