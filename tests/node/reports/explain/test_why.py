"""`volery why`: decisions on a record, a lease or a peer, next steps; and names that fit none or several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from learner.ledger.reputation import BAN, PARDON
from learner.ledger.rows import AuditRow, SelectionRow
from learner.ledger.trust import AuditOutcome
from learner.trust.audit_history import AuditHistory, after, pardoned
from learner.trust.ban_evidence import Found, Margin, count_above, log_evidence
from learner.trust.margins import TINY as MARGINS
from learner.trust.margins import Arithmetic, margins_of
from learner.trust.selection_test import CompletionValue, DeliveryOutcome
from node.learner_role.training.fixed_settings import note_names
from node.reports.explain.why import REJECTIONS_SHOWN, why_in_ledger, why_in_receipts
from node.reports.model.verdict_meanings import MEANINGS
from node.runtime.errors import UsageError
from node.runtime.formatting import moment
from node.state.receipt_rows import KeptReputation
from node.state.receipts import Receipts
from protocol.accounting.reputation import DAY_MS, ObservedDay
from protocol.accounting.reputation_note import reputation_note
from protocol.core.digest import digest_of
from protocol.core.ids import LeaseId, PeerId, PolicyVersion, short
from protocol.work import Rule
from tests.node.state.test_receipts import receipt
from tests.support.ledgers import ALPHA, BETA, GAMMA, LEARNER, Story, open_story, peer_row

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
        lease=lease, peer=ALPHA, at_ms=story.now_ms, tokens=28, counts=(), worst=1.5, evidence=30.0, passed=False,
        detail="20 of 28 tokens are off",
    )  # fmt: skip
    story.ledger.trust.audited([AuditOutcome(row=row, known=AuditHistory(failed=1, banned="20 of 28 tokens are off"))])
    for name in (ALPHA, ALPHA[-6:]):
        said = why_in_ledger(story.ledger.path, name).text
        assert "\x1b" not in said
        assert "It was banned by its audit number 1: 20 of 28 tokens are off." in said
        assert MEANINGS[Rule.AUDIT].advice in said
        assert f"{lease.hex()[:8]}" in said
    said = why_in_ledger(story.ledger.path, lease.hex()).text
    assert "of 28 tokens, failed: 20 of 28 tokens are off. The largest gap was 1.5 nats." in said
    assert "counts against honesty" in said


def test_a_task_is_called_what_people_call_it(story: Story) -> None:
    lease = story.lease(ALPHA)
    name = story.ledger.work.lease(lease).task
    assert f" of {name}, issued" in why_in_ledger(story.ledger.path, lease.hex()).text
    note_names(story.ledger, {name: "vowels"})
    assert " of vowels, issued" in why_in_ledger(story.ledger.path, lease.hex()).text


def test_what_became_of_a_lease_that_nothing_was_wrong_with(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    trained, waiting, lost, recalled, returned = (story.lease(ALPHA) for _ in range(5))
    for lease in (trained, waiting):
        story.deliver(lease, ALPHA, Rule.ADMITTED, Rule.ADMITTED, version=V0)
    for lease, status in ((lost, "lost"), (recalled, "recalled"), (returned, "returned")):
        story.ledger.work.leases_closed([lease], status, story.now_ms)
    theirs, ours = (
        tuple(CompletionValue(tokens=4, reward=reward) for reward in rewards) for rewards in ((0.0, 0.5), (1.0, 0.5))
    )
    drawn = SelectionRow(
        lease=returned,
        peer=ALPHA,
        at_ms=story.now_ms,
        outcome=DeliveryOutcome.WITHHELD,
        withheld=0.1,
        theirs=theirs,
        ours=ours,
        heard=1,
        log_wealth=(0.0,),
    )
    story.ledger.trust.selection_tested(drawn)
    story.train(1, {trained: 0})
    path = story.ledger.path
    assert "records admitted; trained on by step 1, at a lag of 0" in why_in_ledger(path, trained.hex()).text
    assert "records admitted; not trained on yet" in why_in_ledger(path, waiting.hex()).text
    assert "It was withdrawn" in why_in_ledger(path, lost.hex()).text
    assert "It was recalled" in why_in_ledger(path, recalled.hex()).text
    assert "returned it" not in why_in_ledger(path, recalled.hex()).text
    answer = why_in_ledger(path, returned.hex()).text
    assert "Its peer returned it." in answer
    assert "the mean reward of the withheld completions is 0.25, of other seeds 0.75." in answer
    assert "No audit of it is finished yet." in why_in_ledger(path, ALPHA).text
    one = why_in_ledger(path, digest_of(waiting + bytes([0])).hex()[:20]).text
    assert "1 record admitted" in one
    assert one.count("\n") < why_in_ledger(path, waiting.hex()).text.count("\n")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("abc", "is too short: name at least 4 characters"),
        ("beefbeef", "Nothing in {path} is called 'beefbeef'. Name the beginning of"),
        ("%%%%", "Nothing in {path} is called '%%%%'"),
        ("____", "Nothing in {path} is called '____'"),
        ("' OR 1 = 1 --", "Nothing in {path} is called"),
    ],
)
def test_names_that_fit_nothing_are_refused(story: Story, name: str, said: str) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    with pytest.raises(UsageError) as error:
        why_in_ledger(story.ledger.path, name)
    assert said.format(path=story.ledger.path) in str(error.value)


def test_names_that_fit_several_things_are_refused_with_all_of_them(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.join(peer_row(BETA, "borealis"))
    leases = [story.lease(ALPHA) for _ in range(12)]
    common = leases[0].hex()[:4]
    with pytest.raises(UsageError) as error:
        why_in_ledger(story.ledger.path, common)
    assert "matches several; name more of it" in str(error.value)
    assert str(error.value).endswith("...")


def replay_of_one(story: Story, times: int) -> tuple[LeaseId, bytes]:
    """A record that was admitted, and came again under leases which are issued before and after its own."""
    before = [story.lease(ALPHA) for _ in range(times // 2)]
    lease = story.lease(ALPHA)
    story.deliver(lease, ALPHA, *[Rule.ADMITTED] * 4, version=V0)
    for other in (*before, *(story.lease(ALPHA) for _ in range(times - len(before)))):
        story.deliver(other, ALPHA, Rule.UNKNOWN_LEASE, version=V0)
    record = digest_of(lease + bytes([2]))
    with story.ledger.transaction() as db:
        db.execute("DELETE FROM record_payloads")
        db.execute("UPDATE record_rows SET record = ?, no = -no WHERE rule = 'unknown_lease'", (record,))
    return lease, record


def test_a_record_that_came_again_is_told_once_with_where_else_it_came(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    lease, record = replay_of_one(story, 20)
    story.train(1, {lease: 0})
    said = why_in_ledger(story.ledger.path, record.hex()).text
    assert said.startswith(f"Lease {lease.hex()} of ")
    assert "1 record admitted; trained on by step 1" in said
    last = said.splitlines()[-1]
    assert last.startswith("The same record also came under 20 other leases: unknown_lease under 0")
    assert last.endswith(" and 12 more.")
    assert last.count(", ") == 7
    assert "also came under" not in why_in_ledger(story.ledger.path, lease.hex()).text


def test_a_record_that_was_never_admitted_is_told_by_where_it_came_first(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    first, second = story.lease(ALPHA), story.lease(ALPHA)
    for lease in (first, second):
        story.deliver(lease, ALPHA, Rule.STALE, version=V0)
    record = digest_of(first + b"\0")
    with story.ledger.transaction() as db:
        db.execute("UPDATE record_rows SET record = ?", (record,))
    said = why_in_ledger(story.ledger.path, record.hex()).text
    assert said.startswith(f"Lease {first.hex()} of ")
    assert said.endswith(f"The same record also came under 1 other lease: stale under {second.hex()[:8]}.")


def test_a_record_is_named_by_its_lease_and_its_place_in_it(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    lease = LeaseId(bytes.fromhex("fc6f3622") + bytes(12))
    old = story.lease(ALPHA)
    with story.ledger.transaction() as db:
        db.execute("UPDATE lease_rows SET lease = ? WHERE lease = ?", (lease, old))
    story.deliver(lease, ALPHA, Rule.ADMITTED, Rule.STALE, version=V0)
    said = why_in_ledger(story.ledger.path, "fc6f3622/1").text
    assert "1 record stale" in said
    assert f"  1  {digest_of(lease + bytes([1])).hex()[:16]}" in said
    assert "admitted" not in said
    with pytest.raises(UsageError, match="There is no record 7 in that lease; the records in it are: 0, 1"):
        why_in_ledger(story.ledger.path, "FC6F3622/7")
    for name in ("fc6f3623/0", "fc6f3622/", "fc6f3622/1/1", digest_of(lease + b"\0").hex()[:8] + "/0"):
        with pytest.raises(UsageError, match=f"Nothing in {story.ledger.path} is called"):
            why_in_ledger(story.ledger.path, name)


def test_a_peer_is_told_of_by_its_name_where_one_has_it(story: Story) -> None:
    for peer, name in ((ALPHA, "al"), (BETA, "honest-9"), (GAMMA, "honest-9\u200b"), (LEARNER, ALPHA[-6:])):
        story.join(peer_row(peer, name))
    assert why_in_ledger(story.ledger.path, "al").text.startswith(f"al, {ALPHA}: ")
    assert why_in_ledger(story.ledger.path, ALPHA[-6:]).text.startswith(f"al, {ALPHA}: "), "ids win over names"
    with pytest.raises(UsageError, match="Several peers have the name 'honest-9'; name one by its id") as error:
        why_in_ledger(story.ledger.path, "honest-9")
    assert {line.strip() for line in str(error.value).splitlines()[1:]} == {BETA, GAMMA}
    story.join(peer_row(ALPHA, "\x00"))
    with pytest.raises(UsageError, match="is too short"):
        why_in_ledger(story.ledger.path, "")


def test_a_node_tells_of_a_record_that_it_delivered_again_once(tmp_path: Path) -> None:
    with closing(Receipts(tmp_path / "receipts.sqlite")) as receipts:
        for number in range(1, 13):
            rules = [Rule.ADMITTED if number == 5 else Rule.UNKNOWN_LEASE] * 2
            receipts.add(receipt(number, *rules), b"raw", engine_s=1.0)
        record = bytes(receipt(5, Rule.ADMITTED).verdicts[0].record).hex()
        said = why_in_receipts(receipts, record, ALPHA)
        assert said.startswith(f"Lease {5:032x}, judged ")
        assert "1 record admitted" in said
        assert "The same record also came under 11 other leases: unknown_lease under " in said
        said = why_in_receipts(receipts, f"{5:032x}/1", ALPHA)
        assert "1 record admitted" in said
        assert "  1  " in said
        with pytest.raises(UsageError, match=f"Nothing in {receipts.path} is called"):
            why_in_receipts(receipts, f"{record}/1", ALPHA)


def test_a_node_tells_of_its_own_receipts(tmp_path: Path) -> None:
    with closing(Receipts(tmp_path / "receipts.sqlite")) as receipts:
        one = receipt(1, Rule.ADMITTED, Rule.STALE)
        receipts.add(one, b"raw", engine_s=1.0)
        said = why_in_receipts(receipts, bytes(one.lease).hex()[:8], ALPHA)
        assert said.startswith(f"Lease {bytes(one.lease).hex()}, judged ")
        assert "1 record admitted" in said
        assert "does not count against honesty" in said
        assert MEANINGS[Rule.STALE].advice in said
        record = bytes(one.verdicts[1].record).hex()
        assert "record admitted" not in why_in_receipts(receipts, record, ALPHA)
        for name in (BETA, "atlas", "e" * 8):
            with pytest.raises(
                UsageError, match=rf"Nothing in {receipts.path} is called .* a node has no receipts of other nodes"
            ):
                why_in_receipts(receipts, name, ALPHA)


def test_a_node_tells_how_it_stands_and_what_would_raise_it(tmp_path: Path) -> None:
    with closing(Receipts(tmp_path / "receipts.sqlite")) as receipts:
        assert "0 of its records were judged" in why_in_receipts(receipts, "pc", ALPHA, "pc"), "by its display name"
        assert "0 of its records were judged" in why_in_receipts(receipts, ALPHA, ALPHA)
        receipts.add(receipt(1, Rule.ADMITTED, Rule.AUDIT), b"raw", engine_s=1.0)
        day = 20_000
        days = [ObservedDay(day=day, present_ms=3_600_000, leases_in_time=1, leases_failed=9)]
        note = reputation_note(peer=ALPHA, day=day, days=days, banned="", issued_ms=day * DAY_MS, certificate=b"")
        receipts.add_proofs(b"", [], [], KeptReputation(note=note, raw=b"raw"))
        for name in (ALPHA, ALPHA[-4:]):
            said = why_in_receipts(receipts, name, ALPHA)
            assert said.startswith(f"This node, {ALPHA}: 2 of its records were judged")
            assert f"The learner stated this at {moment(day * DAY_MS)}" in said
            assert "lower [engine] batch_rollouts" in said
            assert MEANINGS[Rule.AUDIT].advice in said
            assert f"  {short(LeaseId(receipt(1, Rule.AUDIT).lease))}  1 record, audit: " in said
        for number in range(2, 40):
            receipts.add(receipt(number, *[Rule.STALE] * 12), b"raw", engine_s=1.0)
        refusals = why_in_receipts(receipts, ALPHA, ALPHA).split("The latest rejections, by lease:\n")[1].splitlines()
        assert len(refusals) == REJECTIONS_SHOWN
        assert all("  12 records, stale: " in line for line in refusals), "a lease is told once"
        note = reputation_note(peer=ALPHA, day=day, days=days, banned="caught", issued_ms=0, certificate=b"")
        receipts.add_proofs(b"", [], [], KeptReputation(note=note, raw=b"raw"))
        assert "It is banned: caught." in why_in_receipts(receipts, ALPHA, ALPHA)


def test_what_fits_a_lease_and_the_node_is_not_guessed(tmp_path: Path) -> None:
    with closing(Receipts(tmp_path / "receipts.sqlite")) as receipts:
        receipts.add(receipt(1, Rule.ADMITTED), b"raw", engine_s=1.0)
        both = f"{1:032x}"
        with pytest.raises(UsageError, match="matches several") as raised:
            why_in_receipts(receipts, both, PeerId(f"{ALPHA}{both}"))
        assert both in str(raised.value).splitlines()[2]
        assert why_in_receipts(receipts, both, None).startswith(f"Lease {both}, judged ")
        with pytest.raises(UsageError, match=f"Nothing in {receipts.path} is called"):
            why_in_receipts(receipts, ALPHA, None)


# Reputation, and the appeal


def audit(story: Story, known: AuditHistory, above: int = 0, margins: Sequence[Margin] = MARGINS) -> AuditHistory:
    """Write one audit of ALPHA as a learner does, of a lease of its own; return what is known of it then."""
    lease = story.lease(ALPHA)
    story.deliver(lease, ALPHA, Rule.ADMITTED, version=V0)
    counted = count_above([Found(gap=0.3 * (place < above), lead=0.3) for place in range(400)], margins)
    found, finding = after(known, counted, margins)
    row = AuditRow(
        lease=lease, peer=ALPHA, at_ms=story.now_ms, tokens=counted.tokens, counts=counted.counts, worst=1.5,
        evidence=log_evidence(found.history), passed=finding.passed, detail=finding.detail,
    )  # fmt: skip
    story.ledger.trust.audited([AuditOutcome(row=row, known=found)], margins=margins)
    story.now_s += 1
    return found


def test_a_reputation_is_told_with_what_it_rests_on_and_what_would_raise_it(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.publish(V0)
    known = AuditHistory()
    for _ in range(9):
        known = audit(story, known)
    story.here(ALPHA)
    said = why_in_ledger(story.ledger.path, ALPHA).text
    assert "Reputation 1.00 of 1, steady (availability 1.00, timeliness 1.00, honesty 1.00, soundness 1.00" in said
    assert "9 leases in time, 0 not; 9 groups clean, 0 blamed; 9 audits passed, 0 failed" in said
    assert "rises" not in said
    audit(story, known, above=15)
    story.ledger.work.leases_closed([story.lease(ALPHA)], "expired", story.now_ms)
    said = why_in_ledger(story.ledger.path, ALPHA).text
    assert "in quarantine: its quota is at most a newcomer's" in said
    assert (
        "Soft strike: an audit failed lately. It expires with time and good work, or by the operator's pardon." in said
    )
    assert "Timeliness rises with leases delivered in time" in said
    assert "Soundness recovers within a week in which audits pass" in said
    assert "Honesty rises" not in said


def test_an_audit_is_told_with_what_it_counted_against_what_is_allowed(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.publish(V0)
    audit(story, audit(story, AuditHistory(), above=2))
    told = why_in_ledger(story.ledger.path, f"{1:032x}").text
    assert "of 400 tokens, passed. The largest gap was 1.5 nats." in told
    assert "  more than 0.15 nats below the draw of its seed, lead 0.15 to 0.4: 2 of 400; 0.5% is allowed" in told
    assert "lead more than 0.4" not in told, "no token was there"
    assert "; a group fails from 9.21 on." in told
    assert "After it, all audits of the peer together are no evidence against it." in told
    story.deliver(story.lease(ALPHA), ALPHA, Rule.ADMITTED, version=V0)
    audit(story, AuditHistory(), above=40)
    told = why_in_ledger(story.ledger.path, f"{4:032x}").text
    assert ": 40 of 400; 0.5% is allowed" in told
    assert (
        "an honest peer would look like this once in over 10^15 lives. A suspect has 4.61, a ban takes 14.51." in told
    )


def test_counts_are_held_against_the_margins_that_were_in_force(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.publish(V0)
    audit(story, AuditHistory(), 1, margins_of(1, Arithmetic.FLOAT32))
    assert "more than 0.05 nats below the draw of its seed, lead more than 0.05: 1 of 400; 0.01% is allowed" in (
        why_in_ledger(story.ledger.path, f"{1:032x}").text
    )
    with story.ledger.transaction() as db:
        db.execute("UPDATE audits SET above = '[[1, 9], [2, 9]]'")
    assert "compared with what is allowed" not in why_in_ledger(story.ledger.path, f"{1:032x}").text


def test_a_learner_has_no_reputation(story: Story) -> None:
    story.join(peer_row(LEARNER, "learner", role="learner"))
    told = why_in_ledger(story.ledger.path, LEARNER).text
    assert "It is the learner" in told
    assert "Reputation" not in told


def test_a_replay_comes_to_what_was_decided(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.publish(V0)
    known = AuditHistory()
    for _ in range(3):
        known = audit(story, known)
    told = why_in_ledger(story.ledger.path, ALPHA, replay=True)
    assert told.agrees
    assert "Replayed: 3 of 3 audits give the verdict and the evidence that the ledger has." in told.text
    assert told.text.endswith("The audits do not convict it.")
    known = audit(story, known, above=40)
    assert known.banned
    told = why_in_ledger(story.ledger.path, ALPHA, replay=True)
    assert told.agrees
    assert told.text.endswith("Audit 4 convicts it, as the ledger says.")
    known = pardoned(known)
    story.ledger.trust.confidence_written(ALPHA, known, story.now_ms, decision=PARDON)
    told = why_in_ledger(story.ledger.path, ALPHA, replay=True)
    assert told.agrees
    assert "The operator pardoned it after the last: the test started again." in told.text
    assert "the operator's pardon" in told.text
    assert "in quarantine" not in told.text, "a pardoned strike must not count"
    known = audit(story, known)
    told = why_in_ledger(story.ledger.path, ALPHA, replay=True)
    assert told.agrees
    assert "The operator pardoned it before audit 5" in told.text
    banned = replace(known, banned="see our mail")
    story.ledger.trust.confidence_written(ALPHA, banned, story.now_ms, decision=BAN)
    told = why_in_ledger(story.ledger.path, ALPHA, replay=True)
    assert told.agrees
    assert "it was banned by the operator (see our mail)" in told.text


def test_a_replay_judges_by_the_margins_that_were_in_force(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.publish(V0)
    strict, known = margins_of(1, Arithmetic.FLOAT32), AuditHistory()
    for margins in (MARGINS, MARGINS, strict, strict):
        known = audit(story, known, 1, margins)
    assert why_in_ledger(story.ledger.path, ALPHA, replay=True).agrees
    with story.ledger.transaction() as db:
        assert db.execute("SELECT count(*) FROM margins").fetchone() == (2,), "written where they change"
        db.execute("DELETE FROM margins WHERE since_ms = (SELECT max(since_ms) FROM margins)")
    assert not why_in_ledger(story.ledger.path, ALPHA, replay=True).agrees


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("UPDATE audits SET above = replace(above, '400', '4000') WHERE rowid = 2", "Audit 2, lease "),
        ("UPDATE audits SET passed = 0 WHERE rowid = 3", "the ledger says failed, evidence"),
        (
            "UPDATE audits SET above = '[[1, 9], [2, 9]]' WHERE rowid = 3",
            "the ledger says 2 counts, its counts 8 margins",
        ),
        (
            "DELETE FROM audits WHERE rowid = 3",
            "But the ledger has another result for all of them together (3 counted)",
        ),
        ("UPDATE confidence SET audits = 9", "But the ledger has another result for all of them together (9 counted)"),
    ],
)
def test_a_replay_of_rows_that_were_changed_says_which(story: Story, change: str, said: str) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    story.publish(V0)
    known = AuditHistory()
    for _ in range(3):
        known = audit(story, known)
    with story.ledger.transaction() as db:
        db.execute(change)
    told = why_in_ledger(story.ledger.path, ALPHA, replay=True)
    assert not told.agrees
    assert said in told.text
    assert "Compare with a copy of the ledger" in told.text


def test_only_a_peer_can_be_replayed_and_one_without_audits_as_well(story: Story) -> None:
    story.join(peer_row(ALPHA, "atlas"))
    lease = story.lease(ALPHA)
    with pytest.raises(UsageError, match=f"--replay: no evidence of lease {lease.hex()[:8]} is kept to regenerate"):
        why_in_ledger(story.ledger.path, lease.hex(), replay=True)
    told = why_in_ledger(story.ledger.path, ALPHA, replay=True)
    assert told.agrees
    assert "no audit of it is finished yet" in told.text
