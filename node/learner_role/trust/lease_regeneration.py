"""Regenerate the tokens of a lease that failed its audit, from its records in the ledger (`volery why LEASE --replay`).

Invariants:

- Lease and records are the signed ones, as the ledger keeps them.
- Nothing is written, and the learner may be at work: the engine is a process of its own, on the CPU.
- If the store no longer holds a version, the command says so and judges nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import trio

from learner.ledger.queries.trust import KeptLease
from learner.rollouts.admission import AdmittedRecord, GrantedLease
from learner.rollouts.open_leases import own_lease
from learner.trust.audit_history import AuditHistory, after
from learner.trust.audit_queue import Agenda, Work, work_of
from learner.trust.ban_evidence import Audited, Found, Margin, count_above
from node.config.node_config import EngineSection
from node.engine.factory import open_verifying_engine
from node.engine.interface import EngineError, VerifyingEngine
from node.learner_role.trust.auditor import found_by
from node.reports.explain.recount_text import Replayed, allowed, beyond
from node.runtime.errors import RunError, UsageError
from node.runtime.events import EventLog
from protocol.core.envelope import Kind, read_envelope
from protocol.core.errors import PeerError
from protocol.core.genesis import Authority
from protocol.core.ids import ManifestHash, PeerId
from protocol.versions.manifest import SignedManifest
from protocol.work import MAX_RECORD_BYTES, read_record

NAME = "replay"

OpenEngine = Callable[[], AbstractAsyncContextManager[VerifyingEngine]]


@asynccontextmanager
async def open_engine() -> AsyncIterator[VerifyingEngine]:
    """Open an engine on the CPU, with temporary files of its own, so that it does not disturb a learner at work."""
    with tempfile.TemporaryDirectory(prefix="volery-") as folder:
        section = EngineSection(kind="transformers", device="cpu")
        async with open_verifying_engine(section, EventLog(), name=NAME, state=Path(folder)) as engine:
            yield engine


def regenerate_lease(
    kept: KeptLease,
    authority: Authority,
    held: Mapping[ManifestHash, tuple[SignedManifest, Path]],
    *,
    opened: OpenEngine = open_engine,
) -> Replayed:
    """Regenerate the tokens, with the versions whose directories are in `held`, and compare them with the audit.

    Raises UsageError if a version is gone, whose exit code differs from that of a different result. Raises RunError if
    the records cannot be read, or the engine fails.
    """
    work = _work(kept, authority)
    gone = [passage.version for passage in work.passages if passage.manifest not in held]
    if gone:
        raise UsageError(
            f"--replay: version {gone[0]} is no longer in the store, so its tokens cannot be regenerated. The ledger "
            "still has what the audit counted: `volery why PEER --replay` judges by that."
        )
    found = trio.run(_ask, work, held, opened)
    return _compared(kept, found)


def _work(kept: KeptLease, authority: Authority) -> Work:
    """Return the audit as it was put on the agenda. Raises RunError if a record is not its peer's."""
    try:
        lease = own_lease(kept.lease, authority.swarm)
        group = []
        for raw in kept.records:
            envelope = read_envelope(raw, kind=Kind.RECORD, swarm=authority.swarm, limit=MAX_RECORD_BYTES)
            envelope.verify_signature()
            if envelope.signer != PeerId(lease.peer):
                raise RunError(f"A stored record of this lease was signed by {envelope.signer}, not by its peer.")
            signed = read_record(raw, authority.swarm)
            if signed.record.index >= len(lease.seeds):
                raise RunError("A stored record does not belong to this lease. Use a backup copy of the ledger.")
            group.append(AdmittedRecord(signed=signed, reply=None))
    except PeerError as error:
        raise RunError(
            f"The stored records of this lease cannot be read ({error}). Use a backup copy of the ledger."
        ) from None
    return work_of(GrantedLease(lease=lease, prompt_index=0), group, waits=True)


async def _ask(
    work: Work, held: Mapping[ManifestHash, tuple[SignedManifest, Path]], opened: OpenEngine
) -> Sequence[Found]:
    agenda = Agenda()
    agenda.add(work)
    try:
        async with opened() as engine:
            while (portion := agenda.next()) is not None:
                told = await found_by(engine, portion, lambda manifest: held[manifest][1])
                for _, found in agenda.take_results(portion, told):
                    return found
    except EngineError as error:
        raise RunError(f"The tokens cannot be regenerated here: {error}") from None
    raise RunError("The ledger has no records of this lease.")


def _compared(kept: KeptLease, found: Sequence[Found]) -> Replayed:
    """Return the counts of now beside those of the audit, by the audit's margins."""
    margins = kept.margins
    counted = count_above(found, margins)
    lines = [f"Regenerated on this machine: {counted.tokens:,} tokens; the audit judged {kept.counted.tokens:,}."]
    for margin, now, then in zip(margins, counted.counts, kept.counted.counts, strict=False):
        counts = f"{now.above:,} of {now.trials:,} now, {then.above:,} of {then.trials:,} then"
        lines.append(f"  {beyond(margin)}: {counts}; {allowed(margin)}")
    fails_now, failed_then = _fails(counted, margins), _fails(kept.counted, margins)
    if fails_now == failed_then:
        lines.append(f"By itself the group {'fails' if fails_now else 'passes'}, as it did in the audit.")
    else:
        words = ("fails now, but passed then", "passes now, but failed then")[failed_then]
        lines.append(f"By itself the group {words}: test the memory of both machines before you trust either result.")
    return Replayed(lines=tuple(lines), agrees=fails_now == failed_then)


def _fails(counted: Audited, margins: Sequence[Margin]) -> bool:
    """Return whether a group by itself fails. One that was counted by other margins does not."""
    return len(counted.counts) == len(margins) and not after(AuditHistory(), counted, margins)[1].passed
