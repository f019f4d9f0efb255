"""The ledger keeps its rows through restarts, kills, full disks, and files that are not its own.

Kills are tried at every SQL statement of a life: a forked child reports each call done and dies between two
statements. The test for restarts is a literal model of what may happen to a record.
"""

from __future__ import annotations

import contextlib
import math
import os
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.ledger.evidence import Evidence
from learner.ledger.ledger import Ledger
from learner.ledger.queries.work import has_payload
from learner.ledger.rows import CheckpointRow, LeaseRow, PeerRow, PlanRow, PresenceRow, RecordRow, StepRow
from learner.ledger.sqlite import database as module
from learner.ledger.sqlite.database import LedgerError, snapshot
from learner.ledger.sqlite.files import execute_all
from learner.ledger.sqlite.schema import SCHEMA, SCHEMA_VERSION, WORK
from learner.rollouts.admission import EpisodeSlots
from learner.rollouts.reward_parts import RewardPart
from learner.trust.relay_credit import Credit
from protocol.core.digest import digest_of
from protocol.core.errors import LocalProtocolError
from protocol.core.ids import PeerId, PolicyVersion, RecordId
from protocol.work import Rule
from tests.support.disks import file_limit
from tests.support.dying_ledgers import killed_at
from tests.support.examples import examples
from tests.support.plain_ledgers import make_plain
from tests.support.trainer_fixture import NOW_MS, OTHER, PEER, lease_id, manifest, version

SWARM = digest_of(b"a swarm")
HERE, THERE, LEARNER = PEER.peer_id, OTHER.peer_id, PeerId("the learner")
FAST = "/dev/shm" if os.path.isdir("/dev/shm") else None
"""Where there is nothing to wait for; what a power cut does is not tried here."""


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=FAST) as directory:
        yield Path(directory) / "ledger.sqlite"


@pytest.fixture
def ledger(path: Path) -> Iterator[Ledger]:
    with contextlib.closing(Ledger(path, swarm=SWARM)) as opened:
        opened.training.begin_incarnation(0, NOW_MS)
        yield opened


def lease_row(number: int, peer: PeerId = HERE) -> LeaseRow:
    return LeaseRow(
        lease=lease_id(number), peer=peer, task="even", prompt=10 * number, rollouts=2,
        issued_ms=NOW_MS + number, deadline_ms=NOW_MS + 60_000, envelope=b"lease %d" % number,
    )  # fmt: skip


def record_row(number: int, index: int, rule: Rule = Rule.ADMITTED, **changes: Any) -> RecordRow:
    admitted = rule is Rule.ADMITTED
    values: dict[str, Any] = {
        "record": RecordId(digest_of(b"record %d %d" % (number, index))),
        "lease": lease_id(number),
        "index": index,
        "peer": HERE,
        "rule": rule,
        "reward": index / 2 if admitted else None,
        "tokens": 3,
        "version": version("1.2"),
        "lag": 1,
        "received_ms": NOW_MS + number,
        "generation_ms": 20,
        "detail": "" if admitted else "why",
        "envelope": b"record %d %d" % (number, index) if admitted else None,
    }
    return RecordRow(**values | changes)


def deliver(ledger: Ledger, number: int, *rules: Rule) -> None:
    rows = [record_row(number, index, rule) for index, rule in enumerate(rules or (Rule.ADMITTED, Rule.ADMITTED))]
    ledger.work.deliveries_judged(rows, {lease_id(number): b"receipt %d" % number}, NOW_MS + number)


def train(ledger: Ledger, step: int, *leases: int, dropped: dict[int, str] | None = None) -> None:
    row = StepRow(
        step=step, incarnation=len(ledger.training.begun()), began_ms=NOW_MS, waited_s=0.1, train_s=0.2,
        rollouts=2 * len(leases), tokens=6, reward=0.5, metrics={"loss": 0.25},
    )  # fmt: skip
    ledger.training.step_trained(
        row, {lease_id(n): 1 for n in leases}, {lease_id(n): why for n, why in (dropped or {}).items()}
    )


def checkpoint(ledger: Ledger, step: int) -> None:
    row = CheckpointRow(
        step=step,
        incarnation=len(ledger.training.begun()),
        directory=f"1.{step}",
        state={"ordinal": step, "x": [1.5]},
    )
    ledger.training.checkpointed(row, NOW_MS)


def unconsumed(ledger: Ledger) -> list[tuple[int, int]]:
    """(lease, records) of what waits, in order."""
    waiting: dict[int, int] = {}
    for row in ledger.work.unconsumed():
        number = int.from_bytes(row.lease, "big")
        assert (row.prompt, row.peer) == (10 * number, HERE)
        assert row.envelope == b"record %d %d" % (number, waiting.get(number, 0))
        assert ledger.work.lease_envelope(row.lease) == b"lease %d" % number
        waiting[number] = waiting.get(number, 0) + 1
    return list(waiting.items())


# Leases and deliveries.


def test_how_large_the_groups_are_that_are_leased_or_wait(ledger: Ledger, path: Path) -> None:
    ledger.work.leases_issued(
        [replace(lease_row(number), rollouts=rollouts) for number, rollouts in enumerate((2, 4, 8))]
    )
    assert ledger.work.group_sizes() == {2, 4, 8}
    for number in range(3):
        deliver(ledger, number)
    assert ledger.work.group_sizes() == {2, 4, 8}
    train(ledger, 1, 0, dropped={1: "stale"})
    assert ledger.work.group_sizes() == {8}


def test_who_was_leased_lately(ledger: Ledger) -> None:
    assert ledger.work.leased_lately(100) == []
    rows = [replace(lease_row(1), issued_ms=1000), replace(lease_row(2, THERE), issued_ms=1101)]
    ledger.work.leases_issued(rows)
    assert ledger.work.leased_lately(100) == [THERE]
    assert set(ledger.work.leased_lately(101)) == {HERE, THERE}


def test_a_lease_from_issue_to_receipt(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2, THERE)])
    assert ledger.work.open_leases() == [lease_row(1), lease_row(2, THERE)]
    assert ledger.work.receipt_of(lease_id(1), HERE) is None
    deliver(ledger, 1)
    assert ledger.work.open_leases() == [lease_row(2, THERE)]
    assert ledger.work.receipt_of(lease_id(1), HERE) == b"receipt 1"
    assert ledger.work.receipt_of(lease_id(1), THERE) is None, "a receipt is its holder's alone"
    assert ledger.work.receipt_of(lease_id(3), HERE) is None
    assert unconsumed(ledger) == [(1, 2)]


@pytest.mark.parametrize("status", ["expired", "returned", "recalled", "lost"])
def test_a_lease_is_closed_once(ledger: Ledger, status: str) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2)])
    deliver(ledger, 2)
    ledger.work.leases_closed([lease_id(1), lease_id(2), lease_id(3)], status, NOW_MS)
    ledger.work.leases_closed([lease_id(1)], "lost", NOW_MS + 1)
    with sqlite3.connect(ledger.path) as db:
        rows = db.execute("SELECT status FROM leases ORDER BY lease").fetchall()
        recalled = db.execute("SELECT lease FROM recalled").fetchall()
    assert rows == [("returned" if status == "recalled" else status,), ("delivered",)]
    assert recalled == ([(lease_id(1),)] if status == "recalled" else [])
    assert ledger.work.open_leases() == []


def test_of_several_words_on_the_version_the_first_counts(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1)])
    ledger.work.leases_started([(lease_id(1), version("1.4"))])
    ledger.work.leases_started([(lease_id(1), version("1.5"))])
    with sqlite3.connect(ledger.path) as db:
        assert db.execute("SELECT started_version FROM leases").fetchall() == [("1.4",)]


def test_a_delivery_is_judged_once(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1)])
    deliver(ledger, 1)
    with pytest.raises(LocalProtocolError, match="judged before"):
        deliver(ledger, 1)
    with pytest.raises(LocalProtocolError, match="never issued"):
        deliver(ledger, 9)
    assert unconsumed(ledger) == [(1, 2)]


def test_several_deliveries_are_written_together_or_not_at_all(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2)])
    rows = [record_row(number, index) for number in (1, 2, 9) for index in (0, 1)]
    with pytest.raises(LocalProtocolError):
        ledger.work.deliveries_judged(rows, {lease_id(n): b"receipt" for n in (1, 2, 9)}, NOW_MS)
    assert ledger.work.unconsumed() == []
    assert ledger.work.receipt_of(lease_id(1), HERE) is None
    assert len(ledger.work.open_leases()) == 2


def test_the_same_bytes_twice_in_a_delivery_are_one_record(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1)])
    rows = [record_row(1, 0), record_row(1, 0, Rule.DUPLICATE), record_row(1, 1)]
    ledger.work.deliveries_judged(rows, {lease_id(1): b"receipt"}, NOW_MS)
    assert unconsumed(ledger) == [(1, 2)]


def test_bytes_that_were_refused_under_one_lease_are_not_lost_under_another(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2)])
    theirs = record_row(2, 0)
    wrong = record_row(1, 0, Rule.UNKNOWN_LEASE, record=theirs.record)
    ledger.work.deliveries_judged([wrong], {lease_id(1): b"receipt"}, NOW_MS)
    ledger.work.deliveries_judged([theirs, record_row(2, 1)], {lease_id(2): b"receipt"}, NOW_MS)
    assert unconsumed(ledger) == [(2, 2)]


def test_an_index_is_admitted_once(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1)])
    twice = [record_row(1, 0), record_row(1, 1), record_row(1, 0, record=RecordId(bytes(32)))]
    with pytest.raises(sqlite3.IntegrityError):
        ledger.work.deliveries_judged(twice, {lease_id(1): b"receipt"}, NOW_MS)
    assert ledger.work.unconsumed() == []


# Peers.


def test_what_a_peer_did_adds_up_over_its_stays(ledger: Ledger) -> None:
    row = PeerRow(
        peer=HERE, name="a", role="rollout", engine="fake", machine="", micros_per_hour=5, currency="USD"
    )  # fmt: skip
    assert not ledger.peers.knows(HERE)
    first = ledger.peers.peer_joined(row, NOW_MS)
    assert ledger.peers.knows(HERE)
    ledger.peers.peers_present([PresenceRow(presence=first, bytes_up=10, bytes_down=1, engine_s=2.0)], NOW_MS + 10)
    ledger.peers.peers_present([PresenceRow(presence=first, bytes_up=30, bytes_down=2, engine_s=5.0)], NOW_MS + 20)
    second = ledger.peers.peer_joined(row, NOW_MS + 50)
    ledger.peers.peers_present(
        [PresenceRow(presence=second, bytes_up=4, bytes_down=3, engine_s=0.5, reason="left")], NOW_MS + 70
    )
    broken = PresenceRow(presence=first, bytes_up=30, bytes_down=2, reason="the line broke")
    ledger.peers.peers_present([broken], NOW_MS + 25)
    with sqlite3.connect(ledger.path) as db:
        presences = db.execute("SELECT began_ms, ended_ms, bytes_up, bytes_down, reason FROM presence").fetchall()
        assert db.execute("SELECT first_seen_ms, last_seen_ms FROM peers").fetchall() == [(NOW_MS, NOW_MS + 25)]
    assert presences == [
        (NOW_MS, NOW_MS + 25, 30, 2, "the line broke"),
        (NOW_MS + 50, NOW_MS + 70, 4, 3, "left"),
    ]


def test_engine_time_adds_up(ledger: Ledger) -> None:
    row = PeerRow(peer=HERE, name="", role="rollout", engine="", machine="", micros_per_hour=0, currency="USD")
    for _ in range(2):
        presence = ledger.peers.peer_joined(row, NOW_MS)
        for engine_s in (1.0, 4.0):
            ledger.peers.peers_present(
                [PresenceRow(presence=presence, bytes_up=0, bytes_down=0, engine_s=engine_s)], NOW_MS
            )
    with sqlite3.connect(ledger.path) as db:
        assert db.execute("SELECT engine_s FROM peers").fetchall() == [(8.0,)]


# Relays.


def join(ledger: Ledger, *peers: PeerId, role: str = "rollout") -> None:
    for peer in peers:
        row = PeerRow(peer=peer, name="", role=role, engine="", machine="", micros_per_hour=0, currency="USD")
        ledger.peers.peer_joined(row, NOW_MS)


def credit(receiver: PeerId = HERE, relay: PeerId = THERE, size: int = 7, of: str = "1.2") -> Credit:
    return Credit(receiver=receiver, manifest=manifest(version(of)), shares={relay: size}, raw=b"signed by %d" % size)


def relayed(ledger: Ledger) -> list[tuple[bytes, str, str, int]]:
    with sqlite3.connect(ledger.path) as db:
        return db.execute("SELECT manifest, receiver, relay, bytes FROM relayed ORDER BY rowid").fetchall()


def test_members_are_the_rollout_nodes_that_ever_joined(ledger: Ledger) -> None:
    join(ledger, HERE)
    join(ledger, LEARNER, role="learner")
    assert ledger.peers.members([HERE, THERE, LEARNER]) == {HERE}
    assert ledger.peers.members([]) == set()


def test_users_of_a_version_are_those_whose_records_of_it_were_trained_on(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(n) for n in (1, 2, 3, 4)])
    for number, rule, made_by in ((1, Rule.ADMITTED, "1.2"), (2, Rule.STALE, "1.3"), (3, Rule.ADMITTED, "2.2")):
        rows = [record_row(number, index, rule, version=version(made_by)) for index in (0, 1)]
        ledger.work.deliveries_judged(rows, {lease_id(number): b"receipt"}, NOW_MS)
    one, two, other = version("1.2"), version("1.3"), version("2.2")
    assert ledger.peers.users_of([one, two, other]) == []
    train(ledger, 1, 1, 3)
    assert ledger.peers.users_of([one, two]) == [(HERE, one)]
    assert set(ledger.peers.users_of([one, two, other])) == {(HERE, one), (HERE, other)}
    assert ledger.peers.users_of([]) == []


def test_a_receivers_word_on_a_version_is_credited_once(path: Path) -> None:
    with contextlib.closing(Ledger(path, swarm=SWARM)) as ledger:
        join(ledger, HERE, THERE)
        assert ledger.peers.relays_credited([credit(), credit(size=9)], NOW_MS) == [credit()]
    with contextlib.closing(Ledger(path, swarm=SWARM)) as again:
        other, later = credit(THERE, HERE, 5), credit(of="1.3")
        assert again.peers.relays_credited([credit(size=9), other, later], NOW_MS + 1) == [other, later]
        first, second = manifest(version("1.2")), manifest(version("1.3"))
        assert relayed(again) == [(first, HERE, THERE, 7), (first, THERE, HERE, 5), (second, HERE, THERE, 7)]
        with sqlite3.connect(path) as db:
            evidence = db.execute("SELECT credited_ms, envelope FROM relay_receipts WHERE receiver = ?", (HERE,))
            assert evidence.fetchall() == [(NOW_MS, b"signed by 7"), (NOW_MS + 1, b"signed by 7")]


def test_credits_are_written_together_or_not_at_all(ledger: Ledger) -> None:
    join(ledger, HERE, THERE)
    with pytest.raises(sqlite3.IntegrityError):
        ledger.peers.relays_credited([credit(), credit(of="1.3", size=0)], NOW_MS)
    with pytest.raises(sqlite3.IntegrityError):
        ledger.peers.relays_credited([credit(relay=LEARNER)], NOW_MS)
    assert relayed(ledger) == []
    assert ledger.peers.relays_credited([credit()], NOW_MS) == [credit()]


def test_a_ledger_of_before_relays_were_credited_gets_their_tables(path: Path) -> None:
    with contextlib.closing(Ledger(path, swarm=SWARM)):
        pass
    with sqlite3.connect(path) as db:
        db.executescript("DROP TABLE relayed; DROP TABLE relay_receipts; DROP TABLE sums;")
    with contextlib.closing(Ledger(path, swarm=SWARM)) as ledger:
        join(ledger, HERE, THERE)
        ledger.peers.relays_credited([credit()], NOW_MS)
        assert len(relayed(ledger)) == 1


def test_what_counts_although_it_was_orphaned_is_written_with_its_verdicts(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2)])
    rows = [record_row(1, index, Rule.ORPHANED) for index in (0, 1)]
    ledger.work.deliveries_judged(rows, {lease_id(1): b"receipt"}, NOW_MS, {lease_id(1): 6})
    with contextlib.suppress(LocalProtocolError):
        ledger.work.deliveries_judged(rows, {lease_id(1): b"receipt"}, NOW_MS, {lease_id(1): 6})
    deliver(ledger, 2)
    with contextlib.closing(sqlite3.connect(ledger.path)) as db:
        assert db.execute("SELECT lease, tokens FROM orphans").fetchall() == [(lease_id(1), 6)]


# Steps, checkpoints and restarts.


def test_a_step_consumes_and_drops(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(n) for n in (1, 2, 3)])
    for number in (1, 2, 3):
        deliver(ledger, number)
    train(ledger, 1, 1, dropped={2: "stale"})
    assert unconsumed(ledger) == [(3, 2)]


def test_a_record_is_consumed_by_one_step(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2)])
    deliver(ledger, 1)
    deliver(ledger, 2)
    train(ledger, 1, 1)
    with pytest.raises(LocalProtocolError, match="trained on before"):
        train(ledger, 2, 2, 1)
    assert unconsumed(ledger) == [(2, 2)], "the step that failed left no trace"
    train(ledger, 2, 2)


def test_a_restart_frees_what_the_steps_after_its_checkpoint_took_once(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(n) for n in range(1, 7)])
    for number in range(1, 7):
        deliver(ledger, number)
    train(ledger, 1, 1)
    checkpoint(ledger, 1)
    train(ledger, 2, 2, dropped={3: "stale"})
    train(ledger, 3, 4)
    assert unconsumed(ledger) == [(5, 2), (6, 2)]
    assert ledger.training.begin_incarnation(1, NOW_MS) == 2
    assert unconsumed(ledger) == [(2, 2), (3, 2), (4, 2), (5, 2), (6, 2)]
    assert ledger.training.begun() == [(1, 0), (2, 1)]
    train(ledger, 2, 2, 3, 4, 5)
    assert ledger.training.begin_incarnation(2, NOW_MS) == 3
    assert unconsumed(ledger) == [(6, 2)]


def test_payloads_stay_while_a_checkpoint_that_is_kept_could_need_them(ledger: Ledger) -> None:
    """The newest checkpoint may turn out to be unreadable: then the one before it is gone on from."""
    ledger.work.leases_issued([lease_row(n) for n in range(1, 5)])
    for number in range(1, 5):
        deliver(ledger, number)
    for step, kept in ((1, 1), (2, 2), (3, 3)):
        train(ledger, step, step, dropped={4: "stale"} if step == 2 else None)
        checkpoint(ledger, kept)
    ledger.training.checkpoints_removed([1])
    assert payloads(ledger) == ([3], [3]), "the oldest checkpoint left is 2, and 4 was dropped in step 2"
    ledger.training.begin_incarnation(2, NOW_MS)
    assert unconsumed(ledger) == [(3, 2)]
    assert [row.step for row in ledger.training.checkpoints()] == [2]


def test_payloads_stay_while_an_audit_is_not_over(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(n) for n in range(1, 4)])
    for number in range(1, 4):
        deliver(ledger, number)
    row = CheckpointRow(step=1, incarnation=1, directory="1.1", state={})
    train(ledger, 1, 1, 2, dropped={3: "stale"})
    ledger.training.checkpointed(row, NOW_MS, under_audit={lease_id(1), lease_id(3)})
    assert payloads(ledger) == ([1, 3], [1, 3])
    ledger.training.checkpoints_removed([], under_audit={lease_id(3)})
    assert payloads(ledger) == ([3], [3])
    ledger.training.checkpoints_removed([])
    assert payloads(ledger) == ([], [])


def payloads(ledger: Ledger) -> tuple[list[int], list[int]]:
    """Leases whose records, and those whose own envelope, are still kept."""
    with sqlite3.connect(ledger.path) as db:
        records = db.execute("SELECT DISTINCT lease FROM records WHERE envelope IS NOT NULL ORDER BY lease")
        leases = db.execute("SELECT lease FROM leases WHERE envelope IS NOT NULL ORDER BY lease")
        found = tuple([int.from_bytes(lease, "big") for (lease,) in rows] for rows in (records, leases))
    return found[0], found[1]


def test_a_run_of_weeks_keeps_the_payloads_of_its_last_steps_alone(ledger: Ledger) -> None:
    for step in range(1, 40):
        refused, withdrawn = 100 + step, 200 + step
        ledger.work.leases_issued([lease_row(step), lease_row(refused), lease_row(withdrawn)])
        deliver(ledger, step)
        deliver(ledger, refused, Rule.STALE, Rule.STALE)
        ledger.work.leases_closed([lease_id(withdrawn)], "lost", NOW_MS)
        train(ledger, step, step)
        checkpoint(ledger, step)
        ledger.training.checkpoints_removed([row.step for row in ledger.training.checkpoints()[2:]])
    assert payloads(ledger) == ([39], [39])


def test_finding_payloads_does_not_read_the_whole_history(ledger: Ledger) -> None:
    statements = [
        f"SELECT * FROM records r WHERE r.rule = 'admitted' AND r.step IS NULL AND {has_payload(ledger)}",
        "SELECT * FROM records WHERE step > 5",
        "UPDATE record_rows SET step = NULL, trained_lag = NULL WHERE step > 5",
        "SELECT lease FROM leases WHERE status = 'open'",
        "SELECT lease FROM dropped WHERE step <= 5",
    ]
    with sqlite3.connect(ledger.path) as db:
        for statement in statements:
            plan = [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}")]
            scanned = [each for each in plan if each.startswith("SCAN") and not each.endswith("record_payloads")]
            assert scanned == [], f"{statement}: {plan}"


def test_a_checkpoint_costs_the_same_after_many_dropped_groups(ledger: Ledger) -> None:
    """Counted in hundreds of instructions of SQLite's machine."""
    ledger.work.leases_issued([lease_row(n) for n in range(1, 7)])
    for number in range(1, 7):
        deliver(ledger, number)

    def cost(step: int) -> int:
        train(ledger, step, step, dropped={step + 3: "uninformative"})
        with ledger.transaction() as db:
            counted: list[None] = []
            db.set_progress_handler(lambda: counted.append(None), 100)
        checkpoint(ledger, step)
        with ledger.transaction() as db:
            db.set_progress_handler(None, 100)
        ledger.training.checkpoints_removed([row.step for row in ledger.training.checkpoints()[1:]])
        return len(counted)

    cost(1)
    before = cost(2)
    ledger.work.leases_issued([lease_row(n) for n in range(100, 5100)])
    ledger.work.leases_closed([lease_id(n) for n in range(100, 5100)], "lost", NOW_MS)
    ledger.training.batch_dropped(1, {lease_id(n): "uninformative" for n in range(100, 5100)})
    ledger.training.checkpoints_removed([])
    assert cost(3) <= 2 * before + 5
    assert payloads(ledger) == ([], [])


def test_checkpoints_and_versions_come_back_as_they_were(ledger: Ledger) -> None:
    checkpoint(ledger, 2)
    checkpoint(ledger, 4)
    newest, older = ledger.training.checkpoints()
    assert (newest.step, newest.directory, newest.state) == (4, "1.4", {"ordinal": 4, "x": [1.5]})
    assert older.step == 2
    for name in ("1.0", "1.2", "2.2"):
        one = version(name)
        ledger.training.version_published(one, manifest(one), NOW_MS, total_bytes=5, new_bytes=5)
    assert ledger.training.manifests() == [(one, manifest(one)) for one in map(version, ("1.0", "1.2", "2.2"))]
    with pytest.raises(sqlite3.IntegrityError):
        ledger.training.version_published(version("1.2"), manifest(version("9.9")), NOW_MS, total_bytes=5, new_bytes=5)


def test_what_a_checkpoint_does_not_know_is_told_from_the_ledger(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(number) for number in (1, 2)])
    deliver(ledger, 1)
    leases, records = ledger.work.counts()
    assert ledger.work.since(leases, records) == ([], [])
    row = CheckpointRow(step=1, incarnation=1, directory="1.1", state={"ordinal": 3}, leases=leases, records=records)
    ledger.training.checkpointed(row, NOW_MS)
    assert ledger.training.checkpoints() == [row]
    ledger.work.leases_issued([lease_row(number) for number in (3, 4)])
    deliver(ledger, 2)
    deliver(ledger, 3, Rule.STALE)
    assert ledger.work.since(row.leases, row.records) == ([30, 40], [(20, 0.25)])
    assert ledger.work.since(0, 0)[0] == [10, 20, 30, 40]


def test_how_long_completions_were_of_what_was_admitted(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2), lease_row(3), later_row(4, 1, 1, 0)])
    ledger.work.deliveries_judged(
        [replace(record_row(1, index), tokens=7 + index) for index in (0, 1)], {lease_id(1): b"1"}, NOW_MS
    )
    deliver(ledger, 2, Rule.STALE)
    ledger.work.deliveries_judged([replace(record_row(3, 0), tokens=5)], {lease_id(3): b"3"}, NOW_MS)
    deliver(ledger, 4)
    assert ledger.work.completion_tokens() == [(10, [7, 8]), (30, [5])], "no later turns, nothing that was refused"
    assert ledger.work.completion_tokens(records=0) == []


def test_a_checkpoint_of_before_counts_were_kept_can_be_read(ledger: Ledger) -> None:
    with ledger.transaction() as db:
        db.execute("INSERT INTO checkpoints VALUES (7, 2, '2.7', 0, '{\"ordinal\": 5}')")
    [row] = ledger.training.checkpoints()
    assert row.state == {"ordinal": 5}
    ledger.work.leases_issued([lease_row(1)])
    assert ledger.work.since(row.leases, row.records) == ([], []), "the time of such rows is unknown"


# What happens to a record, as a literal model.


@dataclass
class Model:
    """Where every admitted lease is: waiting, consumed by a step, or dropped in one. `checkpoints` as kept on disk."""

    head: int = 0
    leases: int = 0
    open: list[int] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)
    consumed: dict[int, int] = field(default_factory=dict)
    dropped: dict[int, int] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)

    def go_back(self, base: int) -> None:
        self.head = base
        free = [n for where in (self.consumed, self.dropped) for n, step in where.items() if step > base]
        self.waiting = sorted(self.waiting + free)
        self.consumed = {n: step for n, step in self.consumed.items() if step <= base}
        self.dropped = {n: step for n, step in self.dropped.items() if step <= base}
        self.checkpoints = [step for step in self.checkpoints if step <= base]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["issue", "deliver", "refuse", "lose", "train", "drop", "checkpoint", "restart", "restart+"]),
        st.integers(0, 5),
    ),
    max_size=40,
)


@settings(max_examples=examples(60), deadline=None)
@given(OPERATIONS)
def test_every_admitted_record_waits_or_was_consumed_or_dropped_by_one_surviving_step(
    operations: list[tuple[str, int]],
) -> None:
    with tempfile.TemporaryDirectory(dir=FAST) as directory:
        path, model = Path(directory) / "ledger.sqlite", Model()
        ledger = Ledger(path, swarm=SWARM)
        ledger.training.begin_incarnation(0, NOW_MS)
        for operation, choice in operations:
            ledger = perform(operation, choice, model, ledger, path)
            assert unconsumed(ledger) == [(number, 2) for number in model.waiting]
        with ledger.transaction() as db:
            rows = db.execute("SELECT lease, step FROM records WHERE rule = 'admitted' AND step IS NOT NULL").fetchall()
        assert {int.from_bytes(lease, "big"): step for lease, step in rows} == model.consumed
        assert len(rows) == 2 * len(model.consumed)
        assert {int.from_bytes(row.lease, "big") for row in ledger.work.open_leases()} == set(model.open)
        ledger.close()


def perform(operation: str, choice: int, model: Model, ledger: Ledger, path: Path) -> Ledger:
    """Do one thing to both; return the ledger, another one after a restart."""
    match operation:
        case "issue":
            model.leases += 1
            model.open.append(model.leases)
            ledger.work.leases_issued([lease_row(model.leases)])
        case "deliver" | "refuse" if model.open:
            number = model.open.pop(choice % len(model.open))
            rule = Rule.ADMITTED if operation == "deliver" else Rule.LATE
            deliver(ledger, number, rule, rule)
            if operation == "deliver":
                model.waiting = sorted([*model.waiting, number])
        case "lose" if model.open:
            ledger.work.leases_closed([lease_id(model.open.pop())], "lost", NOW_MS)
        case "train" | "drop":
            model.head += 1
            taken, dropped = model.waiting[: choice % 3], model.waiting[choice % 3 :][: operation == "drop"]
            train(ledger, model.head, *taken, dropped=dict.fromkeys(dropped, "stale"))
            model.waiting = [n for n in model.waiting if n not in taken + dropped]
            model.consumed |= dict.fromkeys(taken, model.head)
            model.dropped |= dict.fromkeys(dropped, model.head)
        case "checkpoint" if model.head not in model.checkpoints:
            checkpoint(ledger, model.head)
            model.checkpoints.append(model.head)
            ledger.training.checkpoints_removed(model.checkpoints[:-2])
            model.checkpoints = model.checkpoints[-2:]
        case "restart" | "restart+":  # with "+", the newest checkpoint cannot be read
            ledger.close()
            ledger = Ledger(path, swarm=SWARM)
            usable = model.checkpoints[:-1] if operation == "restart+" and len(model.checkpoints) > 1 else None
            base = max(usable or model.checkpoints, default=0)
            model.go_back(base)
            ledger.training.begin_incarnation(base, NOW_MS)
    return ledger


# Kills.


def life(ledger: Ledger) -> list[Callable[[], object]]:
    """Calls that write, in an order in which a learner makes them."""
    row = PeerRow(peer=HERE, name="a", role="rollout", engine="", machine="", micros_per_hour=0, currency="USD")
    two = {lease_id(n): b"receipt %d" % n for n in (1, 2)}
    rows = [record_row(n, index) for n in (1, 2) for index in (0, 1)]
    one = version("1.1")
    return [
        lambda: ledger.training.begin_incarnation(0, NOW_MS),
        lambda: ledger.peers.peer_joined(row, NOW_MS),
        lambda: ledger.work.leases_issued([lease_row(n) for n in (1, 2, 3)]),
        lambda: ledger.work.deliveries_judged(rows, two, NOW_MS),
        lambda: ledger.peers.peers_present([PresenceRow(presence=1, bytes_up=1, bytes_down=2, engine_s=1.0)], NOW_MS),
        lambda: ledger.work.leases_closed([lease_id(3)], "lost", NOW_MS),
        lambda: train(ledger, 1, 1, dropped={2: "stale"}),
        lambda: checkpoint(ledger, 1),
        lambda: ledger.training.version_published(one, manifest(one), NOW_MS, total_bytes=1, new_bytes=1),
        lambda: ledger.training.evaluated(one, NOW_MS, prompts=4, greedy=0.5, sampled=0.25),
        lambda: ledger.training.checkpoints_removed([1]),
        lambda: ledger.training.begin_incarnation(0, NOW_MS),
    ]


TABLES = (
    "incarnations", "peers", "presence", "leases", "records", "dropped", "versions", "steps", "evaluations",
    "checkpoints",
)  # fmt: skip


def contents(path: Path) -> dict[str, list[Any]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return {table: db.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in TABLES}


def live_until(path: Path, statement: int) -> int | None:
    """Live in a child that dies before it runs its SQL statement of that number; return the calls it had finished,
    or None when it lived to the end.
    """
    reader, writer = os.pipe()

    def live(ledger: Ledger) -> None:
        for call in life(ledger):
            call()
            os.write(writer, b".")

    died = killed_at(path, SWARM, statement, live)
    os.close(writer)
    with open(reader, "rb") as reports:
        return len(reports.read()) if died else None


@pytest.mark.rest
def test_killed_at_any_statement_every_call_is_there_whole_or_not_at_all(path: Path) -> None:
    with contextlib.closing(Ledger(path, swarm=SWARM)) as ledger:
        whole = [contents(path)]
        for call in life(ledger):
            call()
            whole.append(contents(path))
    died = 0
    for statement in range(1, 1000):
        killed = path.with_name(f"killed-{statement}")
        if (done := live_until(killed, statement)) is None:
            break
        died += 1
        with contextlib.closing(Ledger(killed, swarm=SWARM)):
            assert contents(killed) == whole[done], f"killed at statement {statement}, after {done} calls"
    assert died > 3 * len(whole), "every call has a BEGIN, a COMMIT, and something between them"


def test_killed_while_it_is_created(path: Path) -> None:
    if (child := os.fork()) == 0:
        try:
            # The state after a first start, without its last commit.
            db = sqlite3.connect(path, isolation_level=None)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("BEGIN IMMEDIATE")
            execute_all(db, WORK)
            execute_all(db, SCHEMA)
            db.execute("INSERT INTO meta VALUES ('schema', ?), ('swarm', ?)", (str(SCHEMA_VERSION).encode(), SWARM))
        finally:
            os._exit(9)
    os.waitpid(child, 0)
    with contextlib.closing(Ledger(path, swarm=SWARM)) as ledger:
        assert ledger.training.begin_incarnation(0, NOW_MS) == 1


# A disk that is full, and files that cannot be used.


def test_a_full_disk_leaves_what_was_acknowledged_and_the_ledger_goes_on_when_there_is_room(
    ledger: Ledger, path: Path
) -> None:
    ledger.work.leases_issued([lease_row(n) for n in range(1, 400)])
    deliver(ledger, 1)
    before = contents(path)
    room = sum(one.stat().st_size for one in path.parent.iterdir()) // 2
    delivered = 1
    with file_limit(room):
        with contextlib.suppress(LedgerError):
            for delivered in range(1, 399):
                deliver(ledger, delivered + 1)
        number = delivered + 1
        with pytest.raises(LedgerError, match=r"ledger\.sqlite: .*Free the disk"):
            deliver(ledger, number)
    assert len(contents(path)["records"]) == 2 * delivered, "all deliveries but the one that failed"
    assert contents(path)["records"][:2] == before["records"]
    deliver(ledger, number)
    assert ledger.work.receipt_of(lease_id(number), HERE) == b"receipt %d" % number


def test_a_first_start_on_a_full_disk(path: Path) -> None:
    with file_limit(512), pytest.raises(LedgerError, match=r"ledger\.sqlite"):
        Ledger(path, swarm=SWARM)
    Ledger(path, swarm=SWARM).close()


def test_a_ledger_that_another_process_writes_to(ledger: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BUSY_S", 0.01)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match=r"locked.*end the program that holds the file"):
            Ledger(path, swarm=SWARM)


def test_readers_do_not_hinder_the_writer(ledger: Ledger, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM leases").fetchone() == (0,)
        ledger.work.leases_issued([lease_row(1)])
        assert reader.execute("SELECT count(*) FROM leases").fetchone() == (0,)


def test_calls_from_several_threads_take_turns(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(n) for n in range(1, 41)])
    errors: list[BaseException] = []

    def deliver_every_fourth(first: int) -> None:
        try:
            for number in range(first, 41, 4):
                deliver(ledger, number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=deliver_every_fourth, args=(first,)) for first in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(ledger.work.unconsumed()) == 80


def not_a_database(path: Path) -> None:
    path.write_bytes(b"this is no database at all, however one looks at it" * 40)


def cut_short(path: Path) -> None:
    with contextlib.closing(Ledger(path, swarm=SWARM)) as ledger:
        ledger.work.leases_issued([lease_row(n) for n in range(1, 400)])
    path.write_bytes(path.read_bytes()[:20_000] + b"\xff" * 20_000)


def cut_to_a_word(path: Path) -> None:
    path.write_bytes(b"SQLite")


def another_program(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE songs (name TEXT)")


def newer(path: Path) -> None:
    change_meta(path, "schema", str(SCHEMA_VERSION + 1).encode())


def nameless(path: Path) -> None:
    change_meta(path, "schema", b"\xff")


def another_swarm(path: Path) -> None:
    Ledger(path, swarm=digest_of(b"another swarm")).close()


def a_directory(path: Path) -> None:
    path.mkdir()


def nowhere(path: Path) -> None:
    path.parent.rmdir()


def change_meta(path: Path, key: str, value: bytes) -> None:
    Ledger(path, swarm=SWARM).close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE meta SET value = ? WHERE key = ?", (value, key))


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (not_a_database, "is damaged, or no ledger.*Restore it from a copy"),
        (cut_short, "is damaged.*Restore it from a copy"),
        (cut_to_a_word, "(is damaged|is empty, or cut short).*Restore it from a copy"),
        (another_program, "a database, but not a ledger"),
        (newer, f"format {SCHEMA_VERSION + 1}, but this program reads {SCHEMA_VERSION}.*Use the version of volery"),
        (nameless, "format .*this program reads"),
        (another_swarm, "belongs to another swarm.*Choose another state directory"),
        (a_directory, "is no file.*restore the ledger from a copy"),
        (nowhere, "cannot be opened.*Check that its directory exists"),
    ],
)
def test_a_file_that_is_no_ledger_of_ours_is_named_and_left_alone(
    tmp_path: Path, spoil: Callable[[Path], None], says: str
) -> None:
    path = tmp_path / "state" / "ledger.sqlite"
    path.parent.mkdir()
    spoil(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(LedgerError, match=says) as caught:
        Ledger(path, swarm=SWARM).work.open_leases()
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_policy_versions_are_kept_exactly(ledger: Ledger) -> None:
    largest = PolicyVersion(2**53 - 1, 2**53 - 1)
    ledger.training.version_published(largest, manifest(largest), NOW_MS, total_bytes=2**62, new_bytes=0)
    assert ledger.training.manifests() == [(largest, manifest(largest))]


# Episodes of several turns.


def later_row(number: int, root: int, turn: int, *slots: int) -> LeaseRow:
    """Lease `number` goes on with these episodes of the group that lease `root` opened."""
    return replace(
        lease_row(number), place=EpisodeSlots(root=lease_id(root), turn=turn, slots=slots), rollouts=len(slots)
    )


def test_a_later_turn_says_where_it_belongs(ledger: Ledger) -> None:
    first, second = lease_row(1), later_row(2, 1, 1, 1, 0)
    ledger.work.leases_issued([first, second])
    assert ledger.work.open_leases() == [first, second]
    deliver(ledger, 2)
    deliver(ledger, 1)
    assert [(row.lease, row.place) for row in ledger.work.unconsumed()] == [
        (lease_id(1), None), (lease_id(1), None), (lease_id(2), second.place), (lease_id(2), second.place),
    ]  # fmt: skip


def test_what_was_cut_off_waits_as_such(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2)])
    rows = [replace(record_row(1, index), cut_off=index == 1) for index in (0, 1)]
    ledger.work.deliveries_judged(rows, {lease_id(1): b"receipt"}, NOW_MS)
    deliver(ledger, 2)
    found = [(row.lease, row.cut_off) for row in ledger.work.unconsumed()]
    assert found == [(lease_id(1), False), (lease_id(1), True), (lease_id(2), False), (lease_id(2), False)]
    train(ledger, 4, 1, 2)
    ledger.training.begin_incarnation(3, NOW_MS)
    assert [row.cut_off for row in ledger.work.unconsumed()] == [False, True, False, False], (
        "a record that a restart undid must be marked as cut off"
    )


def test_rewards_with_names_wait_with_their_record(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1)])
    parts = (RewardPart(name="right", value=0.5), RewardPart(name="form", value=math.nan, weight=0.25))
    rows = [replace(record_row(1, 0), parts=parts), record_row(1, 1)]
    ledger.work.deliveries_judged(rows, {lease_id(1): b"receipt"}, NOW_MS)
    found = [row.parts for row in ledger.work.unconsumed()]
    assert repr(found) == repr([parts, ()])


def test_a_named_reward_decides_what_a_curriculum_is_told(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2), lease_row(3)])
    for lease, values in ((1, (1.0, 0.0)), (2, (math.nan, 1.0)), (3, (math.nan, math.nan))):
        rows = [
            replace(record_row(lease, index), parts=(RewardPart(name="right", value=value),))
            for index, value in enumerate(values)
        ]
        ledger.work.deliveries_judged(rows, {lease_id(lease): b"receipt"}, NOW_MS)
    assert ledger.work.since(0, 0, "right")[1] == [(10, 0.5), (20, 1.0)], "the third has no such reward"
    assert ledger.work.since(0, 0, "another") == ledger.work.since(0, 0)


def test_a_step_consumes_all_turns_of_a_group_and_going_back_frees_them(ledger: Ledger) -> None:
    ledger.work.leases_issued(
        [lease_row(1), later_row(2, 1, 1, 0), later_row(3, 1, 2, 0), lease_row(4), later_row(5, 4, 1, 1)]
    )
    for number in (1, 2, 3, 4, 5):
        deliver(ledger, number)
    train(ledger, 4, 1, dropped={4: "stale"})
    assert ledger.work.unconsumed() == []
    with ledger.transaction() as db:
        lags = db.execute("SELECT lease, trained_lag FROM records WHERE step = 4 AND idx = 0 ORDER BY lease").fetchall()
    assert lags == [(lease_id(1), 1), (lease_id(2), 1), (lease_id(3), 1)], "3 - 2, as the test says of the first lease"
    ledger.training.begin_incarnation(3, NOW_MS)
    assert {row.lease for row in ledger.work.unconsumed()} == {lease_id(number) for number in (1, 2, 3, 4, 5)}


def test_payloads_of_later_turns_go_with_their_group(ledger: Ledger) -> None:
    ledger.work.leases_issued([lease_row(1), later_row(2, 1, 1, 0), lease_row(3), later_row(4, 3, 1, 0), lease_row(5)])
    for number in (1, 2, 3, 4, 5):
        deliver(ledger, number)
    train(ledger, 1, 1, dropped={3: "stale"})
    checkpoint(ledger, 1)
    with ledger.transaction() as db:
        kept = db.execute("SELECT DISTINCT lease FROM records WHERE envelope IS NOT NULL").fetchall()
        leases = db.execute("SELECT lease FROM leases WHERE envelope IS NOT NULL").fetchall()
    assert kept == leases == [(lease_id(5),)]


def test_a_group_was_seen_when_its_last_episode_ended(ledger: Ledger) -> None:
    """After a restart a curriculum gets again the prompts that were leased first, and the groups completed since."""
    ledger.work.leases_issued([lease_row(1), lease_row(2)])
    waits = [record_row(1, 0, reward=None), record_row(1, 1, reward=0.5)]
    ledger.work.deliveries_judged(waits, {lease_id(1): b"1"}, NOW_MS)
    ledger.work.deliveries_judged(
        [record_row(2, 0, reward=None), record_row(2, 1, reward=None)], {lease_id(2): b"2"}, NOW_MS
    )
    before = ledger.work.counts()
    ledger.work.leases_issued([later_row(3, 1, 1, 0), later_row(4, 2, 1, 0), lease_row(5)])
    ledger.work.deliveries_judged([record_row(3, 0, reward=1.0)], {lease_id(3): b"3"}, NOW_MS)
    ledger.work.deliveries_judged([record_row(4, 0, reward=1.0)], {lease_id(4): b"4"}, NOW_MS)
    deliver(ledger, 5)
    assert ledger.work.since(*before) == ([50], [(10, 0.75), (50, 0.25)]), "one episode of the second goes on"
    assert ledger.work.since(*ledger.work.counts()) == ([], [])


def test_a_ledger_of_before_is_taken_over_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    Ledger(path, swarm=SWARM).close()
    make_plain(path, 1)
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE continuations")
    with contextlib.closing(Ledger(path, swarm=SWARM)) as ledger:
        assert ledger.work.unconsumed() == []
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == (str(SCHEMA_VERSION).encode(),)


def test_evidence_is_read_from_a_ledger_of_before_there_was_any(ledger: Ledger, path: Path) -> None:
    ledger.work.leases_issued([lease_row(1), lease_row(2)])
    deliver(ledger, 1)
    deliver(ledger, 2)
    train(ledger, 1, 1, dropped={2: "stale"})
    ledger.close()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        for table in ("continuations", "tallies", "credit_notes", "relayed", "relay_receipts"):
            db.execute(f"DROP TABLE {table}")
    make_plain(path, 1)
    with snapshot(path) as moment:
        evidence = Evidence(moment)
        first, second = (evidence.find(digest_of(b"record %d 0" % number).hex()[:16], 2)[0] for number in (1, 2))
        assert (first.step, first.dropped) == (1, None)
        assert (second.step, second.dropped) == (None, "stale")
        assert evidence.tally_of_step(1) is None
        assert evidence.tally_for(HERE, version("0.0")) is None
        assert (list(evidence.tallies()), list(evidence.relays())) == ([], [])
        assert [given.lease for given in evidence.receipts(HERE)] == [lease_id(1), lease_id(2)]
        assert list(evidence.receipts(THERE)) == []


def test_credit_notes_of_a_restored_ledger_have_numbers_above_those_that_it_gave_away(path: Path) -> None:
    """Nodes ask for notes behind the last that they have: with numbers of before they would hear of none."""
    with contextlib.closing(Ledger(path, swarm=SWARM)) as ledger:
        join(ledger, HERE, THERE)
        ledger.peers.relays_credited([credit(), credit(of="1.3")], NOW_MS, lambda one: b"note")
        assert [number for number, _ in ledger.evidence.notes_for(THERE, 0, 9)] == [1, 2]
        ledger.training.incarnation_seen(7)
        ledger.peers.relays_credited([credit(of="1.4"), credit(of="1.5")], NOW_MS, lambda one: b"note")
        assert [number for number, _ in ledger.evidence.notes_for(THERE, 2, 9)] == [7 << 32, (7 << 32) + 1]
        ledger.training.incarnation_seen(5)
        assert ledger.training.incarnations_seen() == 7, "it never goes down"


def test_a_plan_takes_what_it_changes_and_reads_whole(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    peers = [PeerId(f"12D3KooW{number:044}") for number in range(300)]
    plans = [peers, peers[:-1], [*peers[5:-1], peers[-1]], [], peers[:2]]
    rows = [
        PlanRow(at_ms=at, kappa=1, active=tuple(sorted(active)), micros_per_hour=at, reasons=(f"plan {at}",))
        for at, active in enumerate(plans)
    ]
    with contextlib.closing(Ledger(path, swarm=SWARM)) as ledger:
        for row in rows[:3]:
            ledger.peers.planned(row)
    with contextlib.closing(Ledger(path, swarm=SWARM)) as ledger:  # a start writes all of them once more
        for row in rows[3:]:
            ledger.peers.planned(row)
        assert ledger.training.plans() == rows
        sizes = [size for (size,) in ledger.query("SELECT length(active) FROM plans ORDER BY id")]
    assert sizes[0] > 10_000
    assert max(sizes[1:]) < 1000
