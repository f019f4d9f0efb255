"""`volery why`: what was decided of a record, a lease, a peer, what to do; and names that fit nothing, or too much."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from learner.ledger_rows import AuditRow
from learner.verification.confidence import Confidence
from node.errors import UsageError
from node.receipts import Receipts
from node.reports.rules import MEANINGS
from node.reports.why import why_in_ledger, why_in_receipts
from protocol.digest import digest_of
from protocol.ids import PolicyVersion
from protocol.work import Rule
from tests.node.ledgers import ALPHA, BETA, Story, open_story, peer_row
from tests.node.test_receipts import receipt

V0 = PolicyVersion(1, 0)


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = open_story(tmp_path / "ledger.sqlite")
    yield story
    story.ledger.close()


def test_a_peer_that_was_banned_is_told_why_and_what_it_cost(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas\x1b[31m"))
    lease = story.lease(ALPHA)
    story.deliver(lease, ALPHA, Rule.AUDIT, version=V0)
    row = AuditRow(
        lease=lease, peer=ALPHA, at_ms=story.now_ms, tokens=28, above=(20,), worst=1.5, evidence=30.0, passed=False,
        detail="20 of 28 tokens are off",
    )  # fmt: skip
    story.ledger.audited(row, Confidence(failed=1, banned="20 of 28 tokens are off"))
    for name in (ALPHA, ALPHA[-6:]):
        said = why_in_ledger(story.ledger.path, name)
        assert "\x1b" not in said
        assert "It was banned by its audit number 1: 20 of 28 tokens are off." in said
        assert MEANINGS[Rule.AUDIT].advice in said
        assert f"{lease.hex()[:8]}" in said
    said = why_in_ledger(story.ledger.path, lease.hex())
    assert "of 28 tokens, failed: 20 of 28 tokens are off. The largest gap was 1.5 nats." in said
    assert "counts against honesty" in said


def test_what_became_of_a_lease_that_nothing_was_wrong_with(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    trained, waiting, lost = (story.lease(ALPHA) for _ in range(3))
    for lease in (trained, waiting):
        story.deliver(lease, ALPHA, Rule.ADMITTED, Rule.ADMITTED, version=V0)
    story.ledger.leases_closed([lost], "lost", story.now_ms)
    story.train(1, {trained: 0})
    path = story.ledger.path
    assert "records admitted; trained on by step 1, at a lag of 0" in why_in_ledger(path, trained.hex())
    assert "records admitted; not trained on yet" in why_in_ledger(path, waiting.hex())
    assert "It was withdrawn" in why_in_ledger(path, lost.hex())
    assert "No audit of it is over yet." in why_in_ledger(path, ALPHA)
    one = why_in_ledger(path, digest_of(waiting + bytes([0])).hex()[:20])
    assert "1 record admitted" in one
    assert one.count("\n") < why_in_ledger(path, waiting.hex()).count("\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("abc", "is too short: name at least 4 characters"),
        ("beefbeef", "Nothing here is called 'beefbeef'. Name the beginning of"),
        ("%%%%", "Nothing here is called '%%%%'"),
        ("____", "Nothing here is called '____'"),
        ("' OR 1 = 1 --", "Nothing here is called"),
    ],
)
def test_names_that_fit_nothing_are_refused(story: Story, name: str, said: str) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    with pytest.raises(UsageError) as error:
        why_in_ledger(story.ledger.path, name)
    assert said in str(error.value)


def test_names_that_fit_several_things_are_refused_with_all_of_them(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.join(peer_row(BETA, "borealis"))
    leases = [story.lease(ALPHA) for _ in range(12)]
    common = leases[0].hex()[:4]
    with pytest.raises(UsageError) as error:
        why_in_ledger(story.ledger.path, common)
    assert "fits several; name more of it" in str(error.value)
    assert str(error.value).endswith("...")


def test_a_node_tells_of_its_own_receipts(tmp_path: Path) -> None:
    with closing(Receipts(tmp_path / "receipts.sqlite")) as receipts:
        one = receipt(1, Rule.ADMITTED, Rule.STALE)
        receipts.add(one, b"raw", engine_s=1.0)
        said = why_in_receipts(receipts, bytes(one.lease).hex()[:8])
        assert said.startswith(f"Lease {bytes(one.lease).hex()}, judged ")
        assert "1 record admitted" in said
        assert "is held against nobody" in said
        assert MEANINGS[Rule.STALE].advice in said
        record = bytes(one.verdicts[1].record).hex()
        assert "record admitted" not in why_in_receipts(receipts, record)
        with pytest.raises(UsageError, match="Nothing here is called"):
            why_in_receipts(receipts, ALPHA)
