"""A node's receipts: kept once, as they came, readable while the node writes, refused when they are not ours."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from node.reports import as_html, as_text
from node.reports.model.report import Scored
from node.reports.readers.receipts_report import own_report
from node.runtime import formatting as words
from node.state import receipts as module
from node.state.receipt_queries import ReceiptQueries, ReceiptsError
from node.state.receipt_rows import PeerTraffic
from node.state.receipts import Receipts, Received
from protocol.accounting.claims import EnergySource, Price
from protocol.core.ids import ManifestHash, PeerId, PolicyVersion, RecordId
from protocol.work import Receipt, Rule, Verdict
from swarm.transport.interface import Traffic
from tests.support.examples import examples
from tests.support.ledgers import ALPHA, BETA, LEARNER

PRICE = Price(micros_per_hour=3_600_000, currency="EUR")  # one millionth a millisecond


def receipt(number: int, *rules: Rule, tokens: int = 0, version: PolicyVersion | None = None) -> Receipt:
    return Receipt(
        lease=number.to_bytes(16, "big"),
        peer=ALPHA,
        version=version or PolicyVersion(1, number),
        issued_ms=1000 * number,
        tokens=tokens,
        verdicts=[
            Verdict(record=bytes([index]) * 32, index=index, rule=rule, detail=f"because of {rule.value}")
            for index, rule in enumerate(rules)
        ],
        certificate=b"",
    )


@pytest.fixture
def receipts(tmp_path: Path) -> Receipts:
    return Receipts(tmp_path / "receipts.sqlite")


def test_a_receipt_is_kept_once_however_often_it_is_sent(receipts: Receipts) -> None:
    first = receipt(1, Rule.ADMITTED, Rule.ADMITTED, tokens=20)
    assert receipts.add(first, b"as sent", engine_s=1.5) is True
    assert receipts.add(first, b"sent again", engine_s=1.5) is False
    sums = receipts.sums()
    assert (sums.receipts, sums.tokens, sums.engine_s) == (1, 20, 1.5)
    assert sums.verdicts == {Rule.ADMITTED: 2}
    assert [(stored.raw, stored.peer) for stored in receipts.stored()] == [(b"as sent", ALPHA)]


def test_what_a_teacher_scored_is_counted_apart(receipts: Receipts) -> None:
    assert own_report(receipts, peer=ALPHA).peer.scored is None
    receipts.add(receipt(1, Rule.ADMITTED, Rule.ADMITTED, tokens=20), b"a", engine_s=1.5)
    scores = [receipt(2, Rule.ADMITTED, tokens=300), receipt(3, Rule.ADMITTED, tokens=400), receipt(4, Rule.INCOMPLETE)]
    receipts.add_all(Received(receipt=one, raw=b"b", engine_s=0.5, scored=True) for one in scores)
    told = own_report(receipts, peer=ALPHA)
    assert told.receipts == 4
    assert (told.peer.does, told.peer.worked) == ("rollout, teacher", "generated and scored")
    assert told.peer.scored == Scored(groups=2, tokens=700, refused=1)
    sums = receipts.sums()
    assert (sums.admitted, sums.rejected) == (told.peer.admitted + 2, told.peer.rejected + 1)
    assert (told.peer.admitted, told.peer.rejected, told.peer.tokens) == (2, 0, 20)
    assert sum(admitted + rejected for _, admitted, rejected in receipts.judged(0, 1e9)) == 2
    assert told.peer.engine_s == 3.0
    assert "Scored 3 groups, of which 1 was rejected." in as_text(told)
    page = as_html(told)
    assert "tokens scored" in page
    assert "rollouts admitted" in page
    revised = structs.replace(receipt(2, Rule.BANNED), issued_ms=9_000)
    assert receipts.revise(revised, b"c")
    assert own_report(receipts, peer=ALPHA).peer.scored == Scored(groups=1, tokens=400, refused=2)


def test_a_teacher_alone_hears_of_no_rollouts(receipts: Receipts) -> None:
    receipts.add_all([Received(receipt=receipt(1, Rule.ADMITTED, tokens=300), raw=b"b", engine_s=0.5, scored=True)])
    told = own_report(receipts, peer=ALPHA, with_history=True)
    for said in (as_text(told), as_html(told)):
        assert "was judged" not in said
        assert "0 rollouts" not in said
    assert "Scored 1 group, of which 0 were rejected." in as_text(told)
    assert "Verdicts" not in as_html(told)


def test_sums_are_of_all_receipts(receipts: Receipts) -> None:
    receipts.add(receipt(9, Rule.ADMITTED, tokens=7, version=PolicyVersion(1, 9)), b"a", engine_s=1.0)
    receipts.add(receipt(3, Rule.STALE, Rule.STALE, version=PolicyVersion(2, 3)), b"b", engine_s=0.25)
    sums = receipts.sums()
    assert (sums.tokens, sums.engine_s) == (7, 1.25)
    assert sums.verdicts == {Rule.ADMITTED: 1, Rule.STALE: 2}
    assert (sums.oldest, sums.newest) == (PolicyVersion(1, 9), PolicyVersion(2, 3))  # an incarnation weighs more
    assert (sums.first_ms, sums.last_ms) == (3000, 9000)


def test_nothing_received_sums_to_nothing(receipts: Receipts) -> None:
    sums = receipts.sums()
    assert (sums.receipts, sums.tokens, sums.verdicts, sums.oldest, sums.last_ms) == (0, 0, {}, None, None)


def test_refused_records_come_newest_first_with_the_learners_words(receipts: Receipts) -> None:
    receipts.add(receipt(1, Rule.LATE), b"a", engine_s=0)
    receipts.add(receipt(2, Rule.ADMITTED, Rule.STALE), b"b", engine_s=0)
    rejected = receipts.rejected(5)
    assert [(v.rule, v.index, v.detail) for v in rejected] == [
        (Rule.STALE, 1, "because of stale"),
        (Rule.LATE, 0, "because of late"),
    ]
    assert len(receipts.rejected(1)) == 1


def test_stored_receipts_come_in_order_across_pages(receipts: Receipts) -> None:
    for number in reversed(range(600)):
        receipts.add(receipt(number, Rule.ADMITTED), number.to_bytes(2, "big"), engine_s=0)
    assert [stored.raw for stored in receipts.stored()] == [number.to_bytes(2, "big") for number in range(600)]


def test_a_second_reader_sees_what_a_running_node_has_written(receipts: Receipts) -> None:
    reader = ReceiptQueries(receipts.path)
    receipts.add(receipt(1, Rule.ADMITTED, tokens=5), b"raw", engine_s=0)
    assert reader.sums().tokens == 5
    with pytest.raises(ReceiptsError, match="readonly"), reader.transaction() as db:
        db.execute("DELETE FROM receipts")
    assert reader.sums().receipts == 1
    reader.close()


def test_what_was_written_is_there_when_opened_again(receipts: Receipts) -> None:
    receipts.add(receipt(1, Rule.ADMITTED), b"raw", engine_s=2.0)
    session = receipts.session_began(PRICE, 1000)
    receipts.session_lasts(session, 4000, bytes_up=10, bytes_down=20, moved=Traffic(sent=11, received=22))
    receipts.close()
    again = Receipts(receipts.path)
    assert again.sums().receipts == 1
    (kept,) = again.sessions()
    assert (kept.began_ms, kept.ended_ms, kept.price, kept.bytes_up, kept.bytes_down) == (1000, 4000, PRICE, 10, 20)
    assert (kept.sent_bytes, kept.received_bytes) == (11, 22)


def test_an_older_program_counted_only_chunks(receipts: Receipts) -> None:
    receipts.session_lasts(receipts.session_began(PRICE, 1000), 4000, bytes_up=10, bytes_down=20)
    receipts.close()
    with closing(sqlite3.connect(receipts.path)) as db:
        db.execute("DROP TABLE moved")
    with closing(ReceiptQueries(receipts.path)) as reader:
        (kept,) = reader.sessions()
    assert (kept.bytes_up, kept.sent_bytes, kept.received_bytes) == (10, None, None)


def test_what_was_exchanged_is_kept_by_peer_and_direction(receipts: Receipts) -> None:
    first, second = receipts.session_began(PRICE, 0), receipts.session_began(PRICE, 5000)
    moved(receipts, first, traffic(ALPHA, 10, 1), traffic(BETA, 0, 500))
    moved(receipts, first, traffic(ALPHA, 30, 2))
    moved(receipts, second, traffic(ALPHA, 5, 0))
    assert receipts.traffic(9) == [traffic(BETA, 0, 500), traffic(ALPHA, 35, 2)]
    assert receipts.traffic(1) == [traffic(BETA, 0, 500)]


def test_joules_are_kept_by_session_and_source(receipts: Receipts) -> None:
    first, second = receipts.session_began(PRICE, 0), receipts.session_began(PRICE, 5000)
    for session, joules in ((first, 5.0), (first, 7.0), (second, 1.0)):
        energy = {EnergySource.NVML: joules, EnergySource.RAPL: 0.5}
        receipts.session_lasts(session, 9000, bytes_up=0, bytes_down=0, energy=energy)
    assert [kept.energy for kept in receipts.sessions()] == [
        {EnergySource.NVML: 7.0, EnergySource.RAPL: 0.5}, {EnergySource.NVML: 1.0, EnergySource.RAPL: 0.5},
    ]  # fmt: skip


def traffic(peer: PeerId, up: int, down: int) -> PeerTraffic:
    return PeerTraffic(peer=peer, bytes_up=up, bytes_down=down)


def moved(receipts: Receipts, session: int, *exchanged: PeerTraffic) -> None:
    receipts.session_lasts(session, 9000, bytes_up=0, bytes_down=0, traffic=exchanged)


def test_books_of_before_traffic_was_kept_are_read_and_go_on(receipts: Receipts) -> None:
    receipts.close()
    with sqlite3.connect(receipts.path) as db:
        db.execute("DROP TABLE traffic")
        db.execute("DROP TABLE energy")
    with closing(ReceiptQueries(receipts.path)) as reader:
        assert reader.sessions() == []
        assert reader.traffic(9) == []
    with closing(Receipts(receipts.path)) as again:
        moved(again, again.session_began(PRICE, 0), traffic(ALPHA, 1, 2))
        assert again.traffic(9) == [traffic(ALPHA, 1, 2)]


def test_reading_makes_no_file(tmp_path: Path) -> None:
    path = tmp_path / "receipts.sqlite"
    with pytest.raises(ReceiptsError, match="there are no receipts"):
        ReceiptQueries(path)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(ReceiptsError, match=r"nowhere.*directory exists"):
        Receipts(tmp_path / "nowhere" / "receipts.sqlite")


@pytest.mark.parametrize("read_only", [True, False])
def test_a_file_that_is_no_database_is_refused_and_untouched(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "receipts.sqlite"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(ReceiptsError, match=r"receipts\.sqlite.*not a database"):
        (ReceiptQueries if read_only else Receipts)(path)
    assert path.read_bytes() == b"not a database" * 100


@pytest.mark.parametrize("read_only", [True, False])
def test_another_programs_database_is_refused_and_untouched(tmp_path: Path, read_only: bool) -> None:
    path = tmp_path / "receipts.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE meta (key TEXT, value BLOB)")
    before = path.read_bytes()
    with pytest.raises(ReceiptsError, match="not one of receipts"):
        (ReceiptQueries if read_only else Receipts)(path)
    assert path.read_bytes() == before


def test_a_newer_format_is_refused_and_named(receipts: Receipts) -> None:
    receipts.close()
    with sqlite3.connect(receipts.path) as db:
        db.execute("UPDATE meta SET value = x'3939' WHERE key = 'receipts'")
    with pytest.raises(ReceiptsError, match="format 99"):
        Receipts(receipts.path)


# The report of one's own work


def test_own_report_has_the_shape_of_the_row_at_the_learner(receipts: Receipts) -> None:
    session = receipts.session_began(PRICE, 0)
    receipts.session_lasts(session, 10_000, bytes_up=100, bytes_down=200)
    receipts.add(receipt(1, Rule.ADMITTED, Rule.ADMITTED, tokens=50), b"a", engine_s=3.0)
    receipts.add(receipt(2, Rule.STALE, Rule.STALE), b"b", engine_s=3.0)
    receipts.add(receipt(3, Rule.LATE, Rule.LATE), b"c", engine_s=3.0)
    report = own_report(receipts, peer=ALPHA, name="atlas")
    row = report.peer
    assert (row.admitted, row.rejected, row.tokens, row.engine_s) == (2, 4, 50, 9.0)
    assert (row.leases.delivered, row.leases.late, row.leases.in_time) == (3, 1, 2)
    assert (row.active_s, row.bytes_up, row.bytes_down) == (10.0, 100, 200)
    assert row.cost_micros == 10_000
    assert row.cost_per_1000_tokens == pytest.approx(0.01 / 50 * 1000)
    assert (row.share, row.reputation) == (None, None)
    assert [rejected.rule for rejected in report.refused] == [Rule.LATE, Rule.LATE, Rule.STALE, Rule.STALE]


@pytest.mark.parametrize(("at_ms", "told"), [(0, "1970-01-01 00:00:00 UTC"), (2**53 - 1, "9007199254740991 ms UTC")])
def test_a_date_that_no_calendar_holds_is_told_all_the_same(at_ms: int, told: str) -> None:
    """A learner may sign any."""
    assert words.moment(at_ms) == told


def test_own_report_without_receipts(receipts: Receipts) -> None:
    report = own_report(receipts, peer=LEARNER, price=PRICE)
    assert (report.receipts, report.newest, report.refused) == (0, None, ())
    assert (report.peer.price, report.peer.cost_micros, report.peer.admitted_per_s) == (PRICE, 0, None)


@settings(max_examples=examples(40))
@given(st.lists(st.lists(st.sampled_from(list(Rule)), min_size=1, max_size=8), max_size=8))
def test_every_verdict_is_counted_once(groups: list[list[Rule]]) -> None:
    with TemporaryDirectory() as directory:
        receipts = Receipts(Path(directory) / "receipts.sqlite")
        for number, rules in enumerate(groups):
            receipts.add(receipt(number, *rules), b"raw", engine_s=0)
        verdicts, rejected = receipts.sums().verdicts, receipts.rejected(1000)
        receipts.close()
    assert sum(verdicts.values()) == sum(map(len, groups))
    assert len(rejected) == sum(rule is not Rule.ADMITTED for rules in groups for rule in rules)


def test_of_what_this_node_signed_of_others_the_latest_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "receipts.sqlite"
    monkeypatch.setattr(module, "RELAY_RECEIPTS_KEPT", 3)
    with closing(Receipts(path)) as receipts:
        for number in (1, 2, 3, 4, 2):
            receipts.relayed(ManifestHash(bytes([number]) * 32), b"%d" % number, 10 * number + (number == 2) * 100)
        assert list(receipts.relay_receipts()) == [b"3", b"4", b"2"], "one of a version, the last"


def test_books_of_before_proofs_were_kept_have_none(tmp_path: Path) -> None:
    path = tmp_path / "receipts.sqlite"
    with closing(Receipts(path)) as receipts:
        assert receipts.proven_upto() == (PolicyVersion(0, 0), 0)
    with closing(sqlite3.connect(path)) as db, db:
        for table in ("proofs", "tallies", "relay_receipts"):
            db.execute(f"DROP TABLE {table}")
    with closing(ReceiptQueries(path)) as before:
        assert (list(before.proofs()), list(before.relay_receipts())) == ([], [])
        assert before.trained_of([RecordId(bytes(32))]) == {}
    with closing(Receipts(path)) as again:
        assert again.proven_upto() == (PolicyVersion(0, 0), 0), "made when it is written to"


def test_receipts_that_came_together_are_kept_together(receipts: Receipts) -> None:
    receipts.add(receipt(1, Rule.ADMITTED), b"a", engine_s=1.0)
    came = [
        Received(receipt=receipt(number, Rule.ADMITTED), raw=bytes([number]), engine_s=0.5) for number in (1, 2, 3, 2)
    ]
    assert receipts.add_all(came) == [False, True, True, False]
    assert [stored.raw for stored in receipts.stored()] == [b"a", b"\x02", b"\x03"]


def test_a_value_that_no_program_of_ours_wrote_is_told_as_damage(tmp_path: Path) -> None:
    path = tmp_path / "receipts.sqlite"
    with closing(Receipts(path)) as receipts:
        receipts.add(receipt(1, Rule.ADMITTED), b"raw", engine_s=1.0)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")
        db.execute("UPDATE sqlite_master SET sql = replace(sql, ' TEXT', ' ANY')")
        db.execute("PRAGMA writable_schema = RESET")
        db.execute("UPDATE receipts SET peer = 7")
    with closing(ReceiptQueries(path)) as kept, pytest.raises(ReceiptsError, match="is damaged"):
        list(kept.stored())
