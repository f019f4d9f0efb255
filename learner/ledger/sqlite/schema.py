"""Define the tables of the learner's ledger.

Leases and records are read through the views `leases` and `records`, which are tables in formats before 8. They are
written to the tables of WORK (`learner.ledger.work_tables`), in which a peer is a number, and so is a record's lease.

Invariants:

- Times are milliseconds since 1970 on the learner's clock.
- Bulky payloads (`envelope`) have their own tables. They are deleted once no restart can ask for them, so that their
  pages are used again.
- Verdicts, receipts, relay receipts, steps and versions are kept for good: they are the accounts.
"""

from __future__ import annotations

SCHEMA_VERSION = 8
"""Version of the ledger's format. It goes up in two cases:

- An older program could misread or spoil a newer ledger. One from before episodes takes a turn for a group. One from
  before tallies keeps the tallies of versions that it cuts off. One from before `row_sums` leaves sums that do not
  match the rows.
- Evidence is computed in another way, so that a peer's evidence can neither be continued nor computed again
  (`tests/learner/ledger/sqlite/test_schema.py`).
"""

WITH_PLAIN_TABLES = frozenset({1, 2, 6, 7})
"""Older formats, in which `leases` and `records` are tables; some lack other tables. Formats 3 to 5 computed evidence
in other ways."""

SUMMED = frozenset({7, SCHEMA_VERSION})
"""Formats whose rows are summed (`learner.ledger.sqlite.row_sums`)."""

READABLE = WITH_PLAIN_TABLES | {SCHEMA_VERSION}
"""Formats that this program reads, and converts to SCHEMA_VERSION when it writes
(`learner.ledger.sqlite.migration`)."""

LEASE = "REFERENCES lease_rows (lease)"
"""How the tables below refer to a lease by its id."""

WORK = """
CREATE TABLE peer_numbers (no INTEGER PRIMARY KEY, peer TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE lease_rows (
    no INTEGER PRIMARY KEY, lease BLOB NOT NULL UNIQUE, peer INTEGER NOT NULL REFERENCES peer_numbers,
    task TEXT NOT NULL, prompt INTEGER NOT NULL, rollouts INTEGER NOT NULL, issued_ms INTEGER NOT NULL,
    deadline_ms INTEGER NOT NULL, status TEXT NOT NULL DEFAULT 'open'
    CHECK (status IN ('open', 'delivered', 'expired', 'returned', 'lost')), closed_ms INTEGER, started_version TEXT
) STRICT;
CREATE INDEX leases_by_status ON lease_rows (status);
CREATE INDEX leases_by_peer ON lease_rows (peer);
CREATE TABLE lease_payloads (no INTEGER PRIMARY KEY REFERENCES lease_rows, envelope BLOB NOT NULL) STRICT;
CREATE TABLE receipts (no INTEGER PRIMARY KEY REFERENCES lease_rows, receipt BLOB NOT NULL) STRICT;
CREATE TABLE packed_receipts (no INTEGER PRIMARY KEY REFERENCES lease_rows, receipt BLOB NOT NULL) STRICT;
CREATE TABLE receipt_certificates (no INTEGER PRIMARY KEY, certificate BLOB NOT NULL UNIQUE) STRICT;
CREATE TABLE record_rows (
    no INTEGER PRIMARY KEY, lease INTEGER NOT NULL REFERENCES lease_rows, record BLOB NOT NULL, idx INTEGER NOT NULL,
    peer INTEGER NOT NULL REFERENCES peer_numbers, rule TEXT NOT NULL, reward REAL, tokens INTEGER NOT NULL,
    incarnation INTEGER NOT NULL, version INTEGER NOT NULL, lag INTEGER NOT NULL, received_ms INTEGER NOT NULL,
    generation_ms INTEGER NOT NULL, detail TEXT NOT NULL DEFAULT '', step INTEGER, trained_lag INTEGER
) STRICT;
CREATE INDEX records_of_lease ON record_rows (lease);
CREATE UNIQUE INDEX records_once ON record_rows (lease, idx) WHERE rule = 'admitted';
CREATE INDEX records_by_step ON record_rows (step) WHERE step IS NOT NULL;
CREATE INDEX records_trained ON record_rows (peer, step) WHERE step IS NOT NULL;
CREATE INDEX records_refused ON record_rows (lease, rule, peer) WHERE rule <> 'admitted';
CREATE TABLE record_payloads (no INTEGER PRIMARY KEY REFERENCES record_rows, envelope BLOB NOT NULL) STRICT;
CREATE VIEW leases AS
SELECT l.no AS rowid, l.lease, p.peer, l.task, l.prompt, l.rollouts, l.issued_ms, l.deadline_ms,
    (SELECT envelope FROM lease_payloads e WHERE e.no = l.no) AS envelope, l.status, l.closed_ms,
    coalesce((SELECT receipt FROM receipts r WHERE r.no = l.no), (SELECT receipt FROM packed_receipts k
    WHERE k.no = l.no)) AS receipt, l.started_version
FROM lease_rows l JOIN peer_numbers p ON p.no = l.peer;
CREATE VIEW records AS
SELECT r.no AS rowid, l.lease, r.record, r.idx, p.peer, r.rule, r.reward, r.tokens, r.incarnation, r.version, r.lag,
    r.received_ms, r.generation_ms, r.detail, (SELECT envelope FROM record_payloads e WHERE e.no = r.no) AS envelope,
    r.step, r.trained_lag
FROM record_rows r JOIN lease_rows l ON l.no = r.lease JOIN peer_numbers p ON p.no = r.peer;
"""
"""The state of each lease, the verdict on each record, and the step that trained on it. There are millions of such
rows, so they are as small as possible. A receipt is whole (`receipts`) or packed (`learner.ledger.receipt_packing`).
Packed ones name a certificate of `receipt_certificates`."""

SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE incarnations (
    incarnation INTEGER PRIMARY KEY, base INTEGER NOT NULL, began_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE peers (
    peer TEXT PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL, engine TEXT NOT NULL, machine TEXT NOT NULL,
    micros_per_hour INTEGER NOT NULL, currency TEXT NOT NULL,
    first_seen_ms INTEGER NOT NULL, last_seen_ms INTEGER NOT NULL, engine_s REAL NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE presence (
    id INTEGER PRIMARY KEY, peer TEXT NOT NULL REFERENCES peers, began_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,
    reason TEXT NOT NULL DEFAULT '', bytes_up INTEGER NOT NULL DEFAULT 0, bytes_down INTEGER NOT NULL DEFAULT 0,
    engine_s REAL NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE dropped (
    lease BLOB PRIMARY KEY REFERENCES lease_rows (lease), step INTEGER NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE INDEX dropped_by_step ON dropped (step);
CREATE TABLE versions (
    incarnation INTEGER NOT NULL, version INTEGER NOT NULL, manifest BLOB NOT NULL, published_ms INTEGER NOT NULL,
    total_bytes INTEGER NOT NULL, new_bytes INTEGER NOT NULL, PRIMARY KEY (incarnation, version)
) STRICT;
CREATE TABLE steps (
    step INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL, began_ms INTEGER NOT NULL, waited_s REAL NOT NULL,
    train_s REAL NOT NULL, rollouts INTEGER NOT NULL, tokens INTEGER NOT NULL, reward REAL NOT NULL,
    metrics TEXT NOT NULL
) STRICT;
CREATE TABLE evaluations (
    incarnation INTEGER NOT NULL, version INTEGER NOT NULL, at_ms INTEGER NOT NULL, prompts INTEGER NOT NULL,
    greedy REAL NOT NULL, sampled REAL NOT NULL, PRIMARY KEY (incarnation, version)
) STRICT;
CREATE TABLE checkpoints (
    step INTEGER PRIMARY KEY, incarnation INTEGER NOT NULL, directory TEXT NOT NULL, made_ms INTEGER NOT NULL,
    state TEXT NOT NULL
) STRICT;
"""
"""The other tables that every ledger has:

- `dropped`: groups that no step used.
- `steps`, `versions`, `evaluations`: what each step took and made, what was published, and how it scored.
- `checkpoints`: what a restart continues from.
- `peers`, `presence`: who was here, from when to when.
- `incarnations`: each start of the learner.
"""

PLANS = """
CREATE TABLE IF NOT EXISTS plans (
    id INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kappa INTEGER NOT NULL, micros_per_hour INTEGER NOT NULL,
    active TEXT NOT NULL, reasons TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS standby (
    presence INTEGER PRIMARY KEY REFERENCES presence, seconds REAL NOT NULL
) STRICT;
"""
"""Which peers were active from when on, and why (`active` and `reasons`: JSON lists of peer ids and of sentences); how
long a session was on standby. After the first plan of a start, `active` has the changes only: the peers switched `on`
and `off`. Made, like RELAYS, in every ledger that is opened for writing."""

SCORES = """
CREATE TABLE IF NOT EXISTS evaluation_scores (
    incarnation INTEGER NOT NULL, version INTEGER NOT NULL, task TEXT NOT NULL, metric TEXT NOT NULL,
    value REAL NOT NULL, PRIMARY KEY (incarnation, version, task, metric)
) STRICT;
"""
"""Other results of an evaluation, such as pass@8, by task; "" is all tasks together. Made like RELAYS."""

RECALLS = """
CREATE TABLE IF NOT EXISTS recalled (lease BLOB PRIMARY KEY REFERENCES lease_rows (lease)) STRICT;
"""
"""Returned leases that the learner had recalled, and leases that do not count against their peer because the learner
was away, returned or not. Made like RELAYS."""

CONTINUATIONS = """
CREATE TABLE IF NOT EXISTS continuations (
    lease BLOB PRIMARY KEY REFERENCES lease_rows (lease), root BLOB NOT NULL REFERENCES lease_rows (lease),
    turn INTEGER NOT NULL, slots TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS continuations_by_root ON continuations (root);
"""
"""Leases that continue episodes of the group that the lease `root` opened, after `turn` turns. Each seed continues one
episode of `slots` (a JSON list of places in that group). `dropped` names a group by its root. Made like RELAYS."""

ORPHANS = """
CREATE TABLE IF NOT EXISTS orphans (
    lease BLOB PRIMARY KEY REFERENCES lease_rows (lease), tokens INTEGER NOT NULL
) STRICT;
"""
"""Delivered leases whose records a restart of the learner orphaned, and that count for their peer nevertheless: the
completion tokens of the group. Made like RELAYS."""

RELAYS = """
CREATE TABLE IF NOT EXISTS relay_receipts (
    manifest BLOB NOT NULL, receiver TEXT NOT NULL REFERENCES peers, credited_ms INTEGER NOT NULL,
    envelope BLOB NOT NULL, PRIMARY KEY (manifest, receiver)
) STRICT;
CREATE TABLE IF NOT EXISTS relayed (
    manifest BLOB NOT NULL, receiver TEXT NOT NULL, relay TEXT NOT NULL REFERENCES peers,
    bytes INTEGER NOT NULL CHECK (bytes > 0), PRIMARY KEY (manifest, receiver, relay),
    FOREIGN KEY (manifest, receiver) REFERENCES relay_receipts
) STRICT;
"""
"""Relay receipts, and the bytes that each credits. Made in every ledger that is opened for writing: a ledger from
before relays were credited lacks these tables, and a program from then reads the others as before.

There is one receipt for each receiver and version, so that a restart cannot credit twice. The receipt is kept as the
evidence: a byte for each relayed chunk of at least 256 KiB.
"""

TALLIES = """
CREATE TABLE IF NOT EXISTS tallies (
    incarnation INTEGER NOT NULL, version INTEGER NOT NULL, after INTEGER NOT NULL, envelope BLOB NOT NULL,
    PRIMARY KEY (incarnation, version)
) STRICT;
CREATE INDEX IF NOT EXISTS relayed_by ON relayed (relay);
CREATE TABLE IF NOT EXISTS credit_notes (
    manifest BLOB NOT NULL, receiver TEXT NOT NULL, envelope BLOB NOT NULL, PRIMARY KEY (manifest, receiver),
    FOREIGN KEY (manifest, receiver) REFERENCES relay_receipts
) STRICT;
"""
"""The learner's signed statements about a version (`tallies`) and about a relay receipt (`credit_notes`). Each version
on the surviving chain has one tally. Its steps, after `after` up to `version`, do not overlap with those of others.
Tallies of versions that a restart cuts off are deleted, since their records are free again. Made like RELAYS."""

TRUST = """
CREATE TABLE IF NOT EXISTS audits (
    lease BLOB PRIMARY KEY REFERENCES lease_rows (lease), peer TEXT NOT NULL, at_ms INTEGER NOT NULL,
    tokens INTEGER NOT NULL, above TEXT NOT NULL,
    worst REAL NOT NULL, evidence REAL NOT NULL, passed INTEGER NOT NULL, detail TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS audits_by_peer ON audits (peer);
CREATE TABLE IF NOT EXISTS confidence (
    peer TEXT PRIMARY KEY, passed INTEGER NOT NULL, failed INTEGER NOT NULL, audits INTEGER NOT NULL,
    log_wealth TEXT NOT NULL, banned TEXT NOT NULL, since_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS revisions (
    lease BLOB PRIMARY KEY REFERENCES lease_rows (lease), peer TEXT NOT NULL, at_ms INTEGER NOT NULL,
    told INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX IF NOT EXISTS revisions_untold ON revisions (peer) WHERE told = 0;
CREATE TABLE IF NOT EXISTS evidence (
    lease BLOB PRIMARY KEY REFERENCES lease_rows (lease), envelope BLOB NOT NULL, records BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS decisions (
    id INTEGER PRIMARY KEY, peer TEXT NOT NULL, at_ms INTEGER NOT NULL, what TEXT NOT NULL, reason TEXT NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS choices (
    lease BLOB PRIMARY KEY REFERENCES lease_rows (lease), peer TEXT NOT NULL, at_ms INTEGER NOT NULL,
    choice TEXT NOT NULL, withheld REAL NOT NULL, theirs TEXT NOT NULL,
    ours TEXT NOT NULL, heard INTEGER NOT NULL, log_wealth TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS choices_by_peer ON choices (peer, heard);
CREATE TABLE IF NOT EXISTS margins (since_ms INTEGER PRIMARY KEY, margins TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS engine_time (what TEXT PRIMARY KEY, seconds REAL NOT NULL) STRICT;
"""
"""The results of audits and of checks for selective delivery, and the decisions about peers:

- `audits`: for each audited lease, how many of how many values exceeded each margin (`above`, a JSON list of pairs),
  and the largest gap in nats. `evidence` is the logarithm of the evidence against its peer after it.
- `confidence`: for each peer, the evidence from all its audits (`log_wealth`, a JSON list), and why it is banned, "" if
  it is not.
- `revisions`: leases whose receipt was replaced by a later one, and whether the peer was sent it.
- `evidence`: for audits that failed, the lease and the records as they were signed.
- `decisions`: what the operator decided (`what` is "ban" or "pardon"). Replays and reputations start again from there.
- `choices`: for each regenerated lease that its peer may have chosen, the tokens and values that were compared (JSON
  lists). `heard` counts the peer's checks up to this one, and is below 0 once they are forgiven; `log_wealth` is the
  evidence from all of them.
- `margins`: which margins are in force, since when (`learner.trust.margins`).
- `engine_time`: how long the engine was used for audits, and to regenerate groups.

Made like RELAYS.
"""

ENERGY = """
CREATE TABLE IF NOT EXISTS energy (
    presence INTEGER NOT NULL REFERENCES presence, source TEXT NOT NULL, joules REAL NOT NULL,
    PRIMARY KEY (presence, source)
) STRICT;
"""
"""The energy that a peer says its machine drew from the mains during a session, by the source of that number, whether
it is believed or not. Made like RELAYS."""

TROUBLES = """
CREATE TABLE IF NOT EXISTS troubles (
    peer TEXT NOT NULL REFERENCES peers, kind TEXT NOT NULL, version TEXT, times INTEGER NOT NULL, reason TEXT NOT NULL,
    since_ms INTEGER NOT NULL, ended_ms INTEGER, PRIMARY KEY (peer, kind)
) STRICT;
"""
"""Troubles that peers report, the newest of each kind: how many times in a row, for which reason, since when and until
when (NULL: the peer has not said that it ended). Made like RELAYS."""

LEARNER_TIME = """
CREATE TABLE IF NOT EXISTS learner_time (
    id INTEGER PRIMARY KEY, from_ms INTEGER NOT NULL, until_ms INTEGER NOT NULL, step INTEGER NOT NULL,
    seconds TEXT NOT NULL
) STRICT;
"""
"""The learner's use of its time, one stretch after the other: the training step, and the seconds of each kind (a JSON
object, `learner.provisioning.estimation.learner_time`). Stretches of steps that a restart cut off stay: that time has
passed. Made like RELAYS."""

REACH = """
CREATE TABLE IF NOT EXISTS reach (
    peer TEXT PRIMARY KEY, kind TEXT NOT NULL, why TEXT NOT NULL, since_ms INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS meetings (
    peer TEXT NOT NULL, other TEXT NOT NULL, way TEXT NOT NULL, since_ms INTEGER NOT NULL, PRIMARY KEY (peer, other)
) STRICT;
CREATE TABLE IF NOT EXISTS carried (
    one TEXT NOT NULL, other TEXT NOT NULL, bytes INTEGER NOT NULL, PRIMARY KEY (one, other)
) STRICT;
"""
"""How a peer says that it is reached, why, and since when (`reach`); how it says that it met another, and when it first
said so (`meetings`). Each has the last report only. `carried` has the bytes that circuits through the learner carried
between two peers, as it counted them itself. No address is kept. Made like RELAYS."""

CUT_OFF = """
CREATE TABLE IF NOT EXISTS cut_off (
    lease BLOB NOT NULL REFERENCES lease_rows (lease), idx INTEGER NOT NULL, PRIMARY KEY (lease, idx)
) STRICT;
"""
"""Admitted records with which an episode stopped before it reached its end. Made like RELAYS."""

REWARD_PARTS = """
CREATE TABLE IF NOT EXISTS reward_parts (
    lease BLOB NOT NULL REFERENCES lease_rows (lease), idx INTEGER NOT NULL, name TEXT NOT NULL, place INTEGER NOT NULL,
    value REAL, weight REAL NOT NULL, PRIMARY KEY (lease, idx, name)
) STRICT;
"""
"""The rewards of a record that ended an episode, if the task gives several: each by its name, in the task's order, with
its share in the sum, which is the record's reward. NULL: its value is not known. Made like RELAYS."""

TEACHER_LEASES = """
CREATE TABLE IF NOT EXISTS teacher_leases (
    lease BLOB PRIMARY KEY REFERENCES lease_rows (lease), root BLOB NOT NULL REFERENCES lease_rows (lease),
    tokens INTEGER NOT NULL, engine_s REAL, margins TEXT
) STRICT;
CREATE INDEX IF NOT EXISTS teacher_leases_of ON teacher_leases (root);
"""
"""Leases by which a teacher scores the group that `root` opened: the number of tokens, and the seconds that the
teacher's engine took (NULL: nothing was delivered). `margins` has the margins of the audit, as in the table `margins`
(NULL: not audited). These leases ask for no rollouts, and no restart takes them up. Made like RELAYS."""

LATER_TABLES = (
    RELAYS, PLANS, RECALLS, CONTINUATIONS, SCORES, ORPHANS, TALLIES, TRUST, ENERGY, TROUBLES, LEARNER_TIME, REACH,
    CUT_OFF, REWARD_PARTS, TEACHER_LEASES,
)  # fmt: skip
"""Tables that are made, if they are missing, in every ledger that is opened for writing."""
