"""Old receipts are packed while a learner works."""

from __future__ import annotations

from pathlib import Path

from learner.ledger.sqlite.database import snapshot
from node.learner_role.receipt_packer import ReceiptPacker
from protocol.core.dates import DAY_MS
from tests.support.learner_fixture import FakePeer, Learner, Settings, open_learner


def counted(learner: Learner) -> tuple[int, int]:
    """Receipts that are whole, and those that are packed."""
    with snapshot(learner.root / "ledger.sqlite") as db:
        whole, packed = (db.query(f"SELECT count(*) FROM {table}")[0][0] for table in ("receipts", "packed_receipts"))
        return int(whole), int(packed)


async def test_receipts_are_packed_once_they_are_old_enough(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings(steps=2)) as learner:
        await learner.train(FakePeer())
        ended_ms, given = learner.wall.ms, [one.receipt for one in learner.ledger.evidence.receipts()]
        for days, left in ((6.9, len(given)), (7.1, 0)):
            learner.wall.ms = ended_ms + round(days * DAY_MS)
            packer = ReceiptPacker(context=learner.context, keep_days=7.0)
            assert await packer.pack() == len(given) - left
            assert counted(learner) == (left, len(given) - left)
        assert [one.receipt for one in learner.ledger.evidence.receipts()] == given
