"""What a learner that ended was in the middle of, put together again from the ledger: leases that are open, and what
was admitted and not trained on.

What always holds: records come in the order of their turns and go through the same core as when they were delivered, so
that what comes out is what was there; what an environment answered is asked of it again, since that is a pure function
of what was said; what a lease is to go on with is where it was, or waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.rows import LeaseRow, UnconsumedRow
from learner.ledger.sqlite.column_values import signed_in
from learner.ledger.sqlite.database import is_blank
from learner.rollouts.admission import AdmittedRecord, EpisodeSlots, GrantedLease
from learner.rollouts.buffer import Group
from learner.rollouts.environment import Ended, Environment
from learner.rollouts.episodes import Episodes, utterance_of
from learner.rollouts.open_leases import own_lease
from protocol.core.codec import unpack_tokens
from protocol.core.ids import LeaseId, SwarmId
from protocol.work import read_record


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """Groups that wait for a batch, in order of arrival, and episodes that go on; `leases`: what both are made of."""

    groups: list[Group]
    episodes: Episodes
    leases: list[tuple[GrantedLease, tuple[AdmittedRecord, ...]]]


def granted_in(row: LeaseRow, swarm: SwarmId) -> GrantedLease:
    """The lease of a row that is open. Raises DamagedValue."""
    return _granted(row.envelope, row.prompt, row.place, swarm)


def _granted(envelope: bytes | None, prompt: int, place: EpisodeSlots | None, swarm: SwarmId) -> GrantedLease:
    lease = signed_in("leases.envelope", envelope, partial(own_lease, swarm=swarm))
    return GrantedLease(lease=lease, prompt_index=prompt, place=place)


def require_leases(path: Path, swarm: SwarmId) -> None:
    """Refuse the ledger at `path` if a lease that is open there cannot be taken up. Raises LedgerError."""
    if is_blank(path):
        return
    with read_ledger(path) as ledger:
        for row in ledger.work.open_leases():
            granted_in(row, swarm)


def read_unconsumed(ledger: Ledger, environment: Environment, swarm: SwarmId) -> Recovered:
    """What no surviving step of the ledger has consumed. Reads many rows: for a worker thread."""
    by_lease: dict[LeaseId, list[UnconsumedRow]] = {}
    for row in ledger.work.unconsumed():
        by_lease.setdefault(row.lease, []).append(row)
    recovered = Recovered(groups=[], episodes=Episodes(), leases=[])
    for lease, rows in by_lease.items():
        granted = _granted(ledger.work.lease_envelope(lease), rows[0].prompt, rows[0].place, swarm)
        _replay(recovered, granted, rows, environment, swarm)
    return recovered


def _replay(
    recovered: Recovered, granted: GrantedLease, rows: list[UnconsumedRow], environment: Environment, swarm: SwarmId
) -> None:
    """Admit the records of one lease again. A reward that was written is what it was."""
    if (said := recovered.episodes.said(granted)) is None:
        return
    before = len(unpack_tokens(granted.lease.prompt))
    utterances, records = [], []
    for row in rows:
        signed = signed_in("records.envelope", row.envelope, partial(read_record, swarm=swarm))
        reply = (
            environment(row.prompt, (*said, signed.tokens), before + len(signed.tokens))
            if row.reward is None
            else Ended(reward=row.reward)
        )
        utterances.append(utterance_of(signed, reply))
        records.append(AdmittedRecord(signed=signed, reply=reply))
    recovered.leases.append((granted, tuple(records)))
    if (group := recovered.episodes.admitted(granted, utterances)) is not None:
        recovered.groups.append(group)
