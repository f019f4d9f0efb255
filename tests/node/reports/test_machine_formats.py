"""Keys, headers and values of a report for programs are a promise: they stay as they are, to the byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from learner.ledger.rows import AuditRow, CarriedRow, MetRow, ReachRow, TroubleRow
from learner.ledger.trust import AuditOutcome
from learner.trust.audit_history import AuditHistory
from learner.trust.ban_evidence import History
from node.reports import accounts_as_csv, as_csv, as_json, own_report, swarm_report
from node.reports.model.costs import CostTerms, Reference
from node.reports.model.report import OwnReport, SwarmReport
from node.state.receipt_rows import PeerTraffic
from node.state.receipts import Receipts
from protocol.accounting.claims import EnergySource, Price
from protocol.accounting.reputation import DAY_MS, reputation_of
from protocol.core.ids import PolicyVersion
from protocol.reach import ReachKind, Way
from protocol.work import Rule
from swarm.transport.interface import Traffic
from tests.node.state.test_receipts import receipt
from tests.support.ledgers import ALPHA, BETA, GAMMA, LEARNER, START_MS, open_story, peer_row

RECORDED = Path(__file__).with_name("recorded")

TERMS = CostTerms(
    currency="USD", per_kwh=0.3, reference=Reference(name="a rented GPU", per_hour=0.35, tokens_per_s=2500.0)
)


def rich_report(path: Path) -> SwarmReport:
    """A run in which everything happened that a report has a key for."""
    story = open_story(path)
    for row in (
        peer_row(LEARNER, "learner", role="learner", micros=400_000),
        peer_row(ALPHA, "atlas", micros=250_000),
        peer_row(BETA, "borealis", micros=120_000, currency="EUR"),
        peer_row(GAMMA, "=HYPERLINK(\x1b[2J"),
    ):
        story.join(row)
    story.plan(ALPHA, BETA, GAMMA, micros=370_000, kappa=2, reasons=("atlas on: it is cheap",))
    for number in range(3):
        story.publish(PolicyVersion(1, number), total=2_000_000, new=1_000_000 // (number + 1))
        more = {("", "samples"): 16.0, ("", "pass@8"): 0.5 + number / 10, ("sums", "greedy"): 0.25}
        story.ledger.training.evaluated(
            PolicyVersion(1, number), story.now_ms, prompts=9, greedy=0.4, sampled=0.3 + number / 10, more=more
        )
        story.now_s += 40
        leases = [story.lease(peer) for peer in (ALPHA, BETA, ALPHA)]
        for lease, peer in zip(leases, (ALPHA, BETA, ALPHA), strict=True):
            story.deliver(lease, peer, *[Rule.ADMITTED] * 4, version=PolicyVersion(1, number), lag=number, tokens=70)
        at_lag = {"tokens": 560.0, "ratio": 1.01, "kl": 0.002, "clip_share": 0.1, "ess": 0.9, "reward": 0.5}
        figures = {"loss": 0.1, "entropy": 1.5, "spike": float("nan"), "trained_tokens": 560.0}
        story.train(
            number + 1,
            {leases[0]: number, leases[1]: 0},
            dropped={leases[2]: "uninformative" if number else "stale"},
            metrics={**figures, "by_lag": {str(number): at_lag}},
        )
        story.checkpoint(number + 1)
    story.relay(BETA, PolicyVersion(1, 1), {ALPHA: 2048, GAMMA: 100})
    for rule in Rule:
        if rule is not Rule.ADMITTED:
            story.now_s += 2
            story.deliver(story.lease(GAMMA), GAMMA, rule, version=PolicyVersion(1, 2), lag=2)
    audited = story.lease(GAMMA)
    story.deliver(audited, GAMMA, Rule.AUDIT, version=PolicyVersion(1, 2))
    row = AuditRow(
        lease=audited, peer=GAMMA, at_ms=story.now_ms, tokens=2800, counts=(), worst=13.6, evidence=30.0,
        passed=False, detail="20 of 28 tokens are off",
    )  # fmt: skip
    known = AuditHistory(failed=1, history=History(audits=1, log_wealth=(14.0,)), banned=row.detail)
    story.ledger.trust.audited([AuditOutcome(row=row, known=known)])
    for what, seconds in (("audits", 4.0), ("choices", 1.0)):
        story.ledger.trust.engine_used(what, seconds)
    trouble = TroubleRow(
        peer=BETA, kind="install", version=PolicyVersion(1, 2), times=3, reason="too large", since_ms=START_MS,
        ended_ms=None,
    )  # fmt: skip
    story.ledger.peers.write_troubles([trouble])
    story.ledger.peers.write_reach(
        [ReachRow(peer=ALPHA, kind=ReachKind.BY_PUNCHING, why="its router is shut", since_ms=START_MS + 1000)],
        [
            MetRow(peer=ALPHA, other=LEARNER, way=Way.DIALLED, since_ms=START_MS),
            MetRow(peer=ALPHA, other=BETA, way=Way.PUNCHED, since_ms=START_MS + 2000),
        ],
    )
    story.ledger.peers.circuits_carried([CarriedRow(one=ALPHA, other=BETA, num_bytes=9000)])
    story.now_s += 20
    story.ledger.training.begin_incarnation(2, story.now_ms)
    for fate in ("expired", "returned", "recalled", "lost") * 4:
        story.now_s += 9
        story.ledger.work.leases_closed([story.lease(BETA)], fate, story.now_ms)
    story.lease(ALPHA)
    story.here(LEARNER, up=8_000_000, down=10, owner=1.08e5)
    story.here(ALPHA, up=5000, down=2_000_000, nvml=3.6e4, rapl=7.2e3)
    story.here(BETA, up=10, down=2_000_000, standby_s=60.0)
    story.here(GAMMA, other=1e15)
    story.ledger.close()
    return swarm_report(path, staleness=2, terms=TERMS)


def rich_work(path: Path) -> OwnReport:
    """A volunteer's own work, with all that its receipts may tell."""
    receipts = Receipts(path)
    receipts.add(receipt(1, Rule.ADMITTED, Rule.ADMITTED, tokens=12), b"a", engine_s=61.0)
    receipts.add(receipt(2, Rule.STALE, Rule.LATE), b"b", engine_s=1.0)
    session = receipts.session_began(Price(micros_per_hour=3_600_000, currency="EUR"), 0)
    receipts.session_lasts(
        session, 90_000, bytes_up=5, bytes_down=7, energy={EnergySource.NVML: 900.0, EnergySource.TABLE: 1.5},
        traffic=[PeerTraffic(peer=BETA, bytes_up=2048, bytes_down=3 << 20)], moved=Traffic(sent=9000, received=5 << 20),
    )  # fmt: skip
    report = own_report(receipts, peer=ALPHA, name="atlas", engine="fake", machine="2 cores", per_kwh=0.3)
    known = replace(report.peer, reputation=reputation_of((), START_MS // DAY_MS))
    return replace(report, peer=known, reputed_ms=START_MS)


def test_a_rich_report_is_written_as_ever(tmp_path: Path) -> None:
    swarm, own = rich_report(tmp_path / "ledger.sqlite"), rich_work(tmp_path / "receipts.sqlite")
    written = {
        "swarm.json": as_json(swarm),
        "swarm.csv": as_csv(swarm),
        **{f"{kind}s.csv": accounts_as_csv(swarm, kind) for kind in ("run", "day", "version")},
        "own.json": as_json(own),
        "own.csv": as_csv(own),
    }
    for name, text in written.items():
        assert text.encode() == (RECORDED / name).read_bytes(), name
