"""Define the tables of a rollout node's receipts."""

from __future__ import annotations

SCHEMA_VERSION = 1
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
CREATE TABLE sessions (
    id INTEGER PRIMARY KEY, began_ms INTEGER NOT NULL, ended_ms INTEGER NOT NULL,
    micros_per_hour INTEGER NOT NULL, currency TEXT NOT NULL,
    bytes_up INTEGER NOT NULL DEFAULT 0, bytes_down INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE receipts (
    lease BLOB PRIMARY KEY, peer TEXT NOT NULL, incarnation INTEGER NOT NULL, version INTEGER NOT NULL,
    issued_ms INTEGER NOT NULL, tokens INTEGER NOT NULL, engine_s REAL NOT NULL, raw BLOB NOT NULL
) STRICT;
CREATE TABLE verdicts (
    lease BLOB NOT NULL REFERENCES receipts, idx INTEGER NOT NULL, record BLOB NOT NULL, rule TEXT NOT NULL,
    reward REAL, detail TEXT NOT NULL
) STRICT;
CREATE INDEX verdicts_by_rule ON verdicts (rule);
CREATE INDEX receipts_by_date ON receipts (issued_ms);
"""

TRAFFIC = """
CREATE TABLE IF NOT EXISTS traffic (
    session INTEGER NOT NULL REFERENCES sessions, peer TEXT NOT NULL, bytes_up INTEGER NOT NULL,
    bytes_down INTEGER NOT NULL, PRIMARY KEY (session, peer)
) STRICT
"""
"""Files from before traffic was kept by peer lack this table."""

EVIDENCE = """
CREATE TABLE IF NOT EXISTS tallies (
    incarnation INTEGER NOT NULL, version INTEGER NOT NULL, raw BLOB NOT NULL, PRIMARY KEY (incarnation, version)
) STRICT;
CREATE TABLE IF NOT EXISTS proofs (
    record BLOB NOT NULL, incarnation INTEGER NOT NULL, version INTEGER NOT NULL, place INTEGER NOT NULL,
    raw BLOB NOT NULL, PRIMARY KEY (incarnation, version, place),
    FOREIGN KEY (incarnation, version) REFERENCES tallies
) STRICT;
CREATE INDEX IF NOT EXISTS proofs_by_record ON proofs (record);
CREATE TABLE IF NOT EXISTS relay_receipts (
    manifest BLOB PRIMARY KEY, signed_ms INTEGER NOT NULL, raw BLOB NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS credit_notes (number INTEGER PRIMARY KEY, raw BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS reputation (
    one INTEGER PRIMARY KEY CHECK (one = 1), note BLOB NOT NULL, raw BLOB NOT NULL
) STRICT
"""
"""Proofs of the versions that this node's records trained; its own relay receipts for other peers; the learner's credit
notes for its own relaying, by number in the ledger; and its latest reputation, with the envelope."""

ENERGY = """
CREATE TABLE IF NOT EXISTS energy (
    session INTEGER NOT NULL REFERENCES sessions, source TEXT NOT NULL, joules REAL NOT NULL,
    PRIMARY KEY (session, source)
) STRICT
"""
"""Energy that the machine drew in each session, by the source of the figure."""

SCORED = "CREATE TABLE IF NOT EXISTS scored (lease BLOB PRIMARY KEY REFERENCES receipts) STRICT"
"""The leases by which a teacher scored. Their receipts count groups and scored tokens, not rollouts."""

MOVED = """
CREATE TABLE IF NOT EXISTS moved (
    session INTEGER PRIMARY KEY REFERENCES sessions, sent_bytes INTEGER NOT NULL, received_bytes INTEGER NOT NULL
) STRICT
"""
"""All data that was exchanged in each session. The table of sessions counts chunks of versions alone."""

LATER_TABLES = (TRAFFIC, ENERGY, EVIDENCE, SCORED, MOVED)
"""Tables that are created, if they are missing, in every file that is opened for writing."""
