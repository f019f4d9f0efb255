"""What a drill found: of each attack who was caught, how soon, by what, and what it cost.

What always holds: everything is read from the learner's ledger, where an operator would look, but for who plays what,
which only the drill knows; a record counts against its attack only from where that began.
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
"""Rollouts of a cheat that are not counted in the cheats' share: what it takes to find it. Whoever comes with one key
after the other has them once."""


@dataclass(frozen=True, kw_only=True)
class Key:
    """What became of one key's work. `made`: records that reached the learner since its attack began; of these
    `refused` by which rule, `trained` on, `trained_late` of those beyond its cheat's first FIRST. `refused_after`,
    `failed_after` and `banned_after`: so many had come when a rule refused one first, when an audit failed first, and
    when it was banned; None if that never was. `tokens` of it were admitted, for `cost_micros` by what it asked; it
    claimed `engine_s` of work, and the learner believed it that others gave it `signed_bytes`."""

    peer: PeerId
    attack: Attack | None
    made: int
    refused: Counter[str]
    trained: int
    trained_late: int
    refused_after: int | None
    failed_after: int | None
    banned_after: int | None
    banned: str
    tokens: int = 0
    cost_micros: int = 0
    engine_s: float = 0.0
    signed_bytes: int = 0

    @property
    def found_after(self) -> int | None:
        """Rollouts until something was found: a refusal for what only a cheat does, a failed audit, or a ban."""
        known = (self.refused_after, self.failed_after, self.banned_after)
        return min((after for after in known if after is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A drill's keys, and all that was trained on."""

    keys: tuple[Key, ...]
    trained: int
    greedy: float
    sampled: float
    relayed: Relayed = NOBODY

    @property
    def cheats(self) -> list[Key]:
        """Those whose attack is on training."""
        return [key for key in self.keys if key.attack is not None and key.attack.harm is Harm.TRAINING]

    @property
    def late_share(self) -> float:
        """Of all that was trained on, what cheats made beyond their first FIRST rollouts, in [0, 1]."""
        return sum(key.trained_late for key in self.cheats) / self.trained if self.trained else 0.0

    @property
    def share(self) -> float:
        """The same of all that cheats made."""
        return sum(key.trained for key in self.cheats) / self.trained if self.trained else 0.0

    @property
    def honest_banned(self) -> int:
        return sum(bool(key.banned) for key in self.keys if key.attack is None)

    @property
    def honest_failed(self) -> int:
        """Honest keys of which an audit failed."""
        return sum(key.failed_after is not None for key in self.keys if key.attack is None)

    @property
    def honest_cost(self) -> float | None:
        """US cents that 1000 admitted tokens of honest peers cost."""
        return cost_of([key for key in self.keys if key.attack is None])

    def of(self, attack: Attack) -> list[Key]:
        """The keys that played it."""
        return [key for key in self.keys if key.attack is attack and key.made]


def cost_of(keys: Sequence[Key]) -> float | None:
    """US cents that 1000 admitted tokens of theirs cost; None without any."""
    return cents_per_thousand(sum(key.cost_micros for key in keys), sum(key.tokens for key in keys))


def outcome_of(ledger: Path, played: Sequence[Played], relayed: Relayed = NOBODY) -> Outcome:
    """Read the ledger of a drill that is over; what its relays did is not in there."""
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
    """`earlier`: rollouts that the same cheat made with other keys."""
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
        refused=Counter(record.rule for record in mine if record.rule not in harmless),
        trained=sum(steps),
        trained_late=sum(steps[max(0, FIRST - earlier) :]),
        refused_after=_first(record.rule not in harmless | LATER for record in mine),
        failed_after=after(failed_ms),
        banned_after=after(since_ms if known.banned else None),
        banned=known.banned,
        tokens=report.tokens if report else 0,
        cost_micros=report.cost_micros if report else 0,
        engine_s=report.engine_s if report else 0.0,
        signed_bytes=sum(one.num_bytes for one in ledger.peers.relayed() if one.receiver == played.peer),
    )


def _first(found: Iterable[bool]) -> int | None:
    """The number, from 1, of the first of which it is so."""
    return next((number for number, one in enumerate(found, 1) if one), None)


HARMLESS = frozenset({"admitted", "stale", "late", "orphaned", "unknown_lease"})
"""Rules that say nothing of honesty."""

LATER = frozenset({"audit", "banned"})
"""Rules by which records are refused that had been admitted: when, the audits and the ban tell."""
