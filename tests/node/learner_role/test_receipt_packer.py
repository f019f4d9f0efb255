"""Old receipts are packed while a learner works."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing
from trio.testing import MockClock

from learner.ledger.compaction import DAY_MS
from learner.ledger.sqlite.database import snapshot
from node.learner_role.receipt_packer import LOOK_S, ReceiptPacker
from tests.support.learner_fixture import FakePeer, Learner, Settings, open_learner, until


def counted(learner: Learner) -> tuple[int, int]:
    """Receipts that are whole, and those that are packed."""
    with snapshot(learner.root / "ledger.sqlite") as db:
        whole, packed = (db.query(f"SELECT count(*) FROM {table}")[0][0] for table in ("receipts", "packed_receipts"))
        return int(whole), int(packed)


async def test_receipts_are_packed_once_they_are_old_enough(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_learner(tmp_path, Settings(steps=2)) as learner, trio.open_nursery() as nursery:
        await learner.train(FakePeer())
        given = [one.receipt for one in learner.ledger.evidence.receipts()]
        assert counted(learner) == (len(given), 0)
        packer = ReceiptPacker(context=learner.context, keep_days=7.0)
        nursery.start_soon(packer.run)
        await trio.testing.wait_all_tasks_blocked()
        learner.wall.ms += round(7.1 * DAY_MS)
        mock_clock.jump(LOOK_S)
        await until(lambda: counted(learner) == (0, len(given)))
        assert [one.receipt for one in learner.ledger.evidence.receipts()] == given
        nursery.cancel_scope.cancel()
