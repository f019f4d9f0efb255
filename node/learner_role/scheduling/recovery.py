"""Recover a learner's unfinished work from the ledger: open leases, and admitted records that were not trained on.

Invariants:

- Records are replayed in the order of their turns, through the same core as when they were delivered. So the result is
  the state from before.
- An environment is asked again for its answers. If a later lease shows what the policy read, the answer must be the
  same. An environment that answers differently now ends its episode as failed.
- The next turn of an episode is in its open lease again, or waits for a new lease.
- The missing completions of a lease that was returned keep their seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.rows import LeaseRow, UnconsumedRow
from learner.ledger.sqlite.column_values import signed_in
from learner.ledger.sqlite.database import is_blank
from learner.rollouts.admission import AdmittedRecord, EpisodeSlots, GrantedLease, is_finished
from learner.rollouts.buffer import Group
from learner.rollouts.environment import AskOne, Ended, Heard, Question, Unfinished
from learner.rollouts.episodes import Episodes, Utterance, utterance_of
from learner.rollouts.open_leases import own_lease
from protocol.core.codec import unpack_tokens
from protocol.core.ids import LeaseId, SwarmId
from protocol.work import read_record


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """Groups that wait for a batch, in order of arrival, and unfinished episodes.

    `leases`: the leases and records that both consist of.
    """

    groups: list[Group]
    episodes: Episodes
    leases: list[tuple[GrantedLease, tuple[AdmittedRecord, ...]]]


def granted_in(row: LeaseRow, swarm: SwarmId) -> GrantedLease:
    """Return the lease of an open row. Raises DamagedValue."""
    return _granted(row.envelope, row.prompt, row.place, swarm)


def _granted(envelope: bytes | None, prompt: int, place: EpisodeSlots | None, swarm: SwarmId) -> GrantedLease:
    lease = signed_in("leases.envelope", envelope, partial(own_lease, swarm=swarm))
    return GrantedLease(lease=lease, prompt_index=prompt, place=place)


def require_leases(path: Path, swarm: SwarmId) -> None:
    """Raise LedgerError if an open lease in the ledger at `path` cannot be taken up."""
    if is_blank(path):
        return
    with read_ledger(path) as ledger:
        for row in ledger.work.open_leases():
            granted_in(row, swarm)


def read_unconsumed(ledger: Ledger, ask: AskOne, swarm: SwarmId) -> Recovered:
    """Return the records that no surviving step of the ledger has consumed.

    It reads many rows: call it on a worker thread.
    """
    by_lease: dict[LeaseId, list[UnconsumedRow]] = {}
    for row in ledger.work.unconsumed():
        by_lease.setdefault(row.lease, []).append(row)
    granted = [
        _granted(ledger.work.lease_envelope(lease), rows[0].prompt, rows[0].place, swarm)
        for lease, rows in by_lease.items()
    ]
    read = _transcripts([*granted, *(granted_in(row, swarm) for row in ledger.work.open_leases())])
    recovered = Recovered(groups=[], episodes=Episodes(), leases=[])
    for one, rows in zip(granted, by_lease.values(), strict=True):
        _replay(recovered, one, rows, ask, read, swarm)
    return recovered


_Transcripts = Mapping[tuple[LeaseId, int, int], tuple[int, ...]]
"""The tokens that were read before a turn, by the group's first lease, the slot of the episode, and the turn."""


def _transcripts(leases: Sequence[GrantedLease]) -> _Transcripts:
    """Return the transcripts, which are the prompts of the leases of later turns."""
    found = {}
    for granted in leases:
        if (place := granted.place) is not None:
            prompt = unpack_tokens(granted.lease.prompt)
            found.update({(place.root, slot, place.turn): prompt for slot in place.slots})
    return found


def _replay(
    recovered: Recovered,
    granted: GrantedLease,
    rows: list[UnconsumedRow],
    ask: AskOne,
    read: _Transcripts,
    swarm: SwarmId,
) -> None:
    """Admit the records of one lease again, with the rewards that were written, and cut off as before."""
    if (said := recovered.episodes.said(granted)) is None:
        return
    before = len(unpack_tokens(granted.lease.prompt))
    turn = 0 if granted.place is None else granted.place.turn
    begun = recovered.episodes.begun(granted)
    utterances: dict[int, Utterance] = {}
    records = []
    for row in rows:
        signed = signed_in("records.envelope", row.envelope, partial(read_record, swarm=swarm))
        index = signed.record.index
        transcript = before + len(signed.tokens)
        after = read.get((granted.root, index if granted.place is None else granted.place.slots[index], turn + 1))
        reply: Heard
        if not is_finished(signed, granted.lease):
            reply = Unfinished()
        elif row.reward is None:
            reply = ask(
                Question(
                    index=row.prompt,
                    said=(*said, (*begun, *signed.tokens)),
                    transcript=transcript,
                    digests=recovered.episodes.digests(granted),
                    read=None if after is None else after[transcript:],
                )
            )
        else:
            reply = Ended(reward=row.reward, cut_off=row.cut_off, parts=row.parts)
        utterances[index] = utterance_of(signed, reply)
        records.append(AdmittedRecord(signed=signed, reply=reply))
    recovered.leases.append((granted, tuple(records)))
    if (group := recovered.episodes.returned(granted, utterances)) is not None:
        recovered.groups.append(group)
