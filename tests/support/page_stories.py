"""Write runs for tests of their pages: one like the demo's, with hostile names, and one of very many peers."""

from __future__ import annotations

import math
from pathlib import Path

from learner.ledger.ledger import Ledger
from learner.ledger.rows import AuditRow, CarriedRow, MetRow, PeerRow, ReachRow
from learner.ledger.trust import AuditOutcome
from learner.trust.audit_history import AuditHistory
from learner.trust.ban_evidence import History
from node.reports import SwarmReport, swarm_report
from node.reports.model.costs import CostTerms, Reference
from protocol.accounting.claims import EnergySource
from protocol.core.ids import PeerId, PolicyVersion
from protocol.reach import ReachKind, Way
from protocol.work import Rule
from tests.support.ledgers import ALPHA, BETA, SWARM, Story, demo_run, key, open_story, peer_row

HOSTILE = key(9).peer_id
NAMES = (
    "<script>alert(1)</script>",
    "</style><style>*{display:none}",
    '" onmouseover="alert(1)" x=\'',
    "-->\u202eevol\u2066\u200b<!--",
    "&lt;b&gt; &amp; <b>",
    "tab\there\nand a line\x1b[31m\x00",
    "<svg/onload=alert(1)>" + "x" * 3000,
)
"""Names that strangers may give themselves."""


TAKEN = {EnergySource.NVML: 3.6e6, EnergySource.RAPL: 3.6e5}
"""Joules that a volunteer's own machine took, by source."""

TERMS = CostTerms(currency="USD", per_kwh=0.3, reference=Reference(name=NAMES[0], per_hour=0.35, tokens_per_s=2500.0))


def hostile_row(peer: PeerId, name: str) -> PeerRow:
    return PeerRow(
        peer=peer, name=name, role="rollout", engine=name, machine=name, micros_per_hour=90_000, currency="USD"
    )


def rich_report(path: Path, *, name: str = NAMES[0], detail: str = "") -> SwarmReport:
    """Return the report of a demo run with a restart, and a peer called `name` with a record rejected by every rule."""
    demo_run(path, steps=30, restart_at=16)
    story = Story(ledger=Ledger(path, swarm=SWARM), now_s=150, leases=10**6)
    story.join(hostile_row(HOSTILE, name))
    story.plan(ALPHA, BETA, micros=370_000, reasons=(f"{name} on: the operator wants everybody to work",))
    for rule in Rule:
        if rule is not Rule.ADMITTED:
            story.now_s += 2
            story.deliver(story.lease(HOSTILE), HOSTILE, *[rule] * 4, version=PolicyVersion(2, 20), lag=5)
    story.now_s += 10
    story.here(HOSTILE, up=10**6, rapl=1e9, other=1e12)
    with story.ledger.transaction() as db:
        for source, joules in (("nvml", 3500.0), ("table", 20.0)):
            db.execute("INSERT INTO energy SELECT id, ?, ? FROM presence WHERE peer = ?", (source, joules, ALPHA))
    told = {ALPHA: ReachKind.MAPPED, BETA: ReachKind.BY_PUNCHING, HOSTILE: ReachKind.NOT}
    story.ledger.peers.write_reach(
        [ReachRow(peer=peer, kind=kind, why=name, since_ms=story.now_ms) for peer, kind in told.items()],
        [
            MetRow(peer=BETA, other=ALPHA, way=Way.PUNCHED, since_ms=story.now_ms),
            MetRow(peer=HOSTILE, other=ALPHA, way=Way.DIALLED, since_ms=story.now_ms),
        ],
    )
    story.ledger.peers.circuits_carried([CarriedRow(one=ALPHA, other=BETA, num_bytes=9000)])
    for number in range(20, 32):
        peer = key(number).peer_id
        story.join(peer_row(peer, f"peer {number}", micros=1000 * number))
        story.here(peer)
    if detail:
        with story.ledger.transaction() as db:
            db.execute("UPDATE record_rows SET detail = ? WHERE rule <> 'admitted'", (detail,))
    story.ledger.close()
    return swarm_report(path, staleness=2, terms=TERMS, with_history=True)


def banned_report(path: Path, *, name: str = NAMES[0]) -> SwarmReport:
    """Return the report of a demo run with audits: one passed ALPHA, one failed for BETA, and one banned a peer called
    `name`. An honest peer has such an audit once in 1.3 million lives.
    """
    demo_run(path, steps=12)
    story = Story(ledger=Ledger(path, swarm=SWARM), now_s=60, leases=10**6)
    story.join(hostile_row(HOSTILE, name))
    for peer, detail, history in (
        (ALPHA, "", History(audits=1, log_wealth=(-2.0,))),
        (BETA, "9 of 28 tokens are off", History(audits=1, log_wealth=(3.0,))),
        (HOSTILE, f"20 of 28 tokens are not those of {name}", History(audits=1, log_wealth=(math.log(1.3e6),))),
    ):
        story.now_s += 5
        lease = story.lease(peer)
        story.deliver(lease, peer, Rule.AUDIT if detail else Rule.ADMITTED, version=PolicyVersion(1, 0))
        row = AuditRow(
            lease=lease, peer=peer, at_ms=story.now_ms, tokens=2800, counts=(), worst=13.6, evidence=30.0,
            passed=not detail, detail=detail,
        )  # fmt: skip
        known = AuditHistory(failed=bool(detail), history=history, banned=detail if peer == HOSTILE else "")
        story.ledger.trust.audited([AuditOutcome(row=row, known=known)])
    story.here(HOSTILE)
    story.ledger.close()
    return swarm_report(path, staleness=2, terms=TERMS, with_history=True)


def crowd(path: Path, num_peers: int, *, blamed: int = 0) -> SwarmReport:
    """Return the report of `num_peers` peers with one group each; the last `blamed` of them delivered something
    malformed.
    """
    story = open_story(path)
    for number in range(num_peers):
        peer = PeerId(f"12D3KooW{number:06d}")
        story.join(peer_row(peer, f"peer {number}"))
        rule = Rule.MALFORMED if number >= num_peers - blamed else Rule.ADMITTED
        story.deliver(story.lease(peer), peer, *[rule] * 2, version=PolicyVersion(1, 0))
        story.now_s += 1
        story.here(peer)
    story.ledger.close()
    return swarm_report(path, with_history=True)
