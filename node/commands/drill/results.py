"""Read the results of a drill: for each attack who was caught, how soon, by what, and what it cost.

Invariants:

- Everything is read from the learner's ledger, where an operator would look, except who plays what.
- A record counts for its attack only from the moment at which the cheating began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from learner.ledger.queries.reader import LedgerReader, read_ledger
from learner.trust.audit_history import AuditHistory
from node.commands.drill.attacks import Attack, Harm
from node.commands.drill.relays import Relayed
from node.commands.drill.roster import Played
from node.reports.model.costs import cents_per_thousand
from node.reports.model.report import PeerReport
from node.reports.readers.ledger_report import swarm_report
from protocol.core.ids import PeerId

NOBODY = Relayed()

FIRST = 100
"""Rollouts of a cheat that its late share does not count, because finding a cheat takes some. A cheat with several keys
has them once."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """What became of the work of one key.

    Args:
        made: records that reached the learner since its attack began.
        rejected: how many of them each rule rejected.
        trained: how many of them were trained on.
        trained_late: the same, without its cheat's first FIRST records.
        rejected_after, failed_after, banned_after: records that had come when a rule first rejected one, when an audit
            first failed, and when the key was banned; None if that never happened.
        banned: the reason of the ban; "" without one.
        tokens: admitted tokens; `cost_micros` is what they cost at the price that it asked.
        engine_s: seconds of work that it claimed.
        signed_bytes: bytes for which it signed relay receipts, and which the learner credited.
    """

    peer: PeerId
    attack: Attack | None
    made: int
    rejected: Counter[str]
    trained: int
    trained_late: int
    rejected_after: int | None
    failed_after: int | None
    banned_after: int | None
    banned: str
    tokens: int = 0
    cost_micros: int = 0
    engine_s: float = 0.0
    signed_bytes: int = 0

    @property
    def found_after(self) -> int | None:
        """Return the rollouts until the cheat was found: by a rejection for cheating, a failed audit, or a ban."""
        known = (self.rejected_after, self.failed_after, self.banned_after)
        return min((after for after in known if after is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The keys of a drill, and the totals of its training."""

    keys: tuple[Key, ...]
    trained: int
    greedy: float
    sampled: float
    relayed: Relayed = NOBODY

    @property
    def cheats(self) -> list[Key]:
        """Return the keys whose attack is on training."""
        return [key for key in self.keys if key.attack is not None and key.attack.harm is Harm.TRAINING]

    @property
    def late_share(self) -> float:
        """Return the fraction of all trained rollouts that cheats made after their first FIRST, in [0, 1]."""
        return sum(key.trained_late for key in self.cheats) / self.trained if self.trained else 0.0

    @property
    def share(self) -> float:
        """Return the fraction of all trained rollouts that cheats made, in [0, 1]."""
        return sum(key.trained for key in self.cheats) / self.trained if self.trained else 0.0

    @property
    def honest_banned(self) -> int:
        return sum(bool(key.banned) for key in self.keys if key.attack is None)

    @property
    def honest_failed(self) -> int:
        """Return the number of honest keys that failed an audit."""
        return sum(key.failed_after is not None for key in self.keys if key.attack is None)

    @property
    def honest_cost(self) -> float | None:
        """Return the US cents that 1000 admitted tokens of honest peers cost."""
        return cost_of([key for key in self.keys if key.attack is None])

    def of(self, attack: Attack) -> list[Key]:
        """Return the keys that played this attack."""
        return [key for key in self.keys if key.attack is attack and key.made]


def cost_of(keys: Sequence[Key]) -> float | None:
    """Return the US cents that 1000 admitted tokens of these keys cost; None if they have none."""
    return cents_per_thousand(sum(key.cost_micros for key in keys), sum(key.tokens for key in keys))


def outcome_of(ledger: Path, played: Sequence[Played], relayed: Relayed = NOBODY) -> Outcome:
    """Read the ledger of a finished drill. The relays' results are not in it, and are passed in."""
    with read_ledger(ledger) as reader:
        greedy, sampled = reader.training.newest_accuracy()
        reports = {peer.peer: peer for peer in swarm_report(ledger).peers}
        made: Counter[int] = Counter()
        keys = []
        for one in played:
            keys.append(key := _key(reader, one, made[one.act], reports))
            made[one.act] += key.made
        trained = reader.work.trained()
    return Outcome(keys=tuple(keys), trained=trained, greedy=greedy, sampled=sampled, relayed=relayed)


def _key(ledger: LedgerReader, played: Played, earlier: int, reports: Mapping[PeerId, PeerReport]) -> Key:
    """Return what became of one key. `earlier`: rollouts that the same cheat made with other keys."""
    harms_training = played.attack is not None and played.attack.harm is Harm.TRAINING
    mine = ledger.work.records_of(played.peer)[played.player.hand.honest if harms_training else 0 :]
    harmless = HARMLESS - {"unknown_lease"} if played.attack is Attack.REPLAYED else HARMLESS
    steps = [record.step is not None for record in mine]
    failed_ms = min((audit.at_ms for audit in ledger.trust.audits(played.peer) if not audit.passed), default=None)
    known, since_ms = ledger.trust.confidence([played.peer]).get(played.peer, (AuditHistory(), 0))
    report = reports.get(played.peer)

    def after(at_ms: int | None) -> int | None:
        return None if at_ms is None else sum(record.received_ms <= at_ms for record in mine)

    return Key(
        peer=played.peer,
        attack=played.attack,
        made=len(mine),
        rejected=Counter(record.rule for record in mine if record.rule not in harmless),
        trained=sum(steps),
        trained_late=sum(steps[max(0, FIRST - earlier) :]),
        rejected_after=_first(record.rule not in harmless | LATER for record in mine),
        failed_after=after(failed_ms),
        banned_after=after(since_ms if known.banned else None),
        banned=known.banned,
        tokens=report.tokens if report else 0,
        cost_micros=report.cost_micros if report else 0,
        engine_s=report.engine_s if report else 0.0,
        signed_bytes=sum(one.num_bytes for one in ledger.peers.relayed() if one.receiver == played.peer),
    )


def _first(found: Iterable[bool]) -> int | None:
    """Return the position, from 1, of the first true value; None if there is none."""
    return next((number for number, one in enumerate(found, 1) if one), None)


HARMLESS = frozenset({"admitted", "stale", "late", "orphaned", "unknown_lease"})
"""Rules by which honest peers lose records, too."""

LATER = frozenset({"audit", "banned"})
"""Rules that reject records after they were admitted. The audits and the ban say when that was."""
