"""Judge a delivery: each rule is a plain function, the cheapest comes first, and each record gets one verdict.

A pure core. The order of the rules is that of `protocol.work.Rule`.

Invariants:

- The learner believes no claim that it can compute itself.
- Sets of seen ids change only after the signature was checked. Otherwise a forger could make honest records look like
  duplicates.
- A group is admitted whole or not at all, so that nobody can deliver only its good half.
- A returned lease is admitted as far as it came. The rest keeps its seeds, so leaving something out gains no new draw.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from learner.rollouts.environment import Ended, Heard, Question, Reply, Said, Unfinished
from learner.rollouts.reward_parts import Parts
from learner.rollouts.router_replay import experts_objection
from protocol.core.codec import unpack_tokens
from protocol.core.digest import digest_of
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, RecordId, SwarmId, short
from protocol.core.limits import MAX_REASON_CHARS
from protocol.experts import Routing
from protocol.versions.formats import STORED, format_of
from protocol.versions.staleness import Admissibility, Chain, judge, lag_of
from protocol.work import (
    EXPERTS,
    MAX_PLAIN_RECORD_BYTES,
    MAX_RECORD_BYTES,
    Lease,
    Rule,
    SignedRecord,
    Span,
    Verdict,
    read_record,
)

FORGOTTEN = "this learner resumed from an older copy of its ledger, which does not know the version that made it"
ORPHANED = "the version that made it was lost when the learner restarted"

_SHAPE_FAULTS = {Fault.OVERSIZED: Rule.OVERSIZED, Fault.BAD_SIGNATURE: Rule.BAD_SIGNATURE}


@dataclass(frozen=True, kw_only=True)
class EpisodeSlots:
    """The episodes that a lease continues: `slots`, one for each of its seeds, in the group that lease `root` opened.
    `turn`: number of records that each of them has so far, one for each finished turn, more if some turns were made in
    parts."""

    root: LeaseId
    turn: int
    slots: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class GrantedLease:
    """A lease as the learner remembers it: as it was signed, the index of its prompt in the task, and the episodes that
    it continues (`place`; None if it opens a group). `until_ms`: an extended deadline, if later than the signed one."""

    lease: Lease
    prompt_index: int
    place: EpisodeSlots | None = None
    until_ms: int = 0

    @property
    def id(self) -> LeaseId:
        return LeaseId(self.lease.id)

    @property
    def peer(self) -> PeerId:
        return PeerId(self.lease.peer)

    @property
    def deadline_ms(self) -> int:
        """The last moment at which a delivery is in time."""
        return max(self.lease.deadline_ms, self.until_ms)

    @property
    def root(self) -> LeaseId:
        """The id of the lease that opened its group."""
        return self.id if self.place is None else self.place.root


@dataclass(frozen=True, kw_only=True)
class AdmittedRecord:
    """A record that passed, a whole completion or a part of one, and counts for its author. `reply`: the environment's
    reply to it; None if its episode no longer waits for it."""

    signed: SignedRecord
    reply: Heard | None

    @property
    def reward(self) -> float | None:
        """The return of the episode that ended with this record; None if the episode goes on, or is void."""
        return self.reply.reward if isinstance(self.reply, Ended) and not self.reply.void else None

    @property
    def parts(self) -> Parts:
        """The named rewards that make up that return, if there are any."""
        return self.reply.parts if isinstance(self.reply, Ended) and not self.reply.void else ()

    @property
    def cut_off(self) -> bool:
        """Whether the episode ended with this record because it was cut off."""
        return isinstance(self.reply, Ended) and self.reply.cut_off


def manifests_of(group: Sequence[AdmittedRecord]) -> set[ManifestHash]:
    """Return the manifests of all versions that made tokens of these records."""
    return {ManifestHash(span.manifest) for one in group for span in one.signed.record.spans}


@dataclass(frozen=True, kw_only=True)
class JudgedDelivery:
    """The outcome of one delivery. `group` is in the order of the lease's seeds, empty unless the whole group passed.

    `records` pairs every verdict with the record, if it could be read, for the ledger. `lag` is the group's, or that of
    the rejected records. `orphaned_tokens` are completion tokens of a group that passed every other rule, but is not
    trained on because a restart of the learner orphaned its version. `returned`: the lease was returned, so nothing
    more will come, and the completions missing from `group` are leased again.
    """

    lease: LeaseId
    verdicts: tuple[Verdict, ...]
    records: tuple[SignedRecord | None, ...]
    group: tuple[AdmittedRecord, ...]
    lag: int
    orphaned_tokens: int = 0
    returned: bool = False

    @property
    def by_index(self) -> dict[int, AdmittedRecord]:
        """The admitted records by their index in the lease."""
        return {one.signed.record.index: one for one in self.group}

    @property
    def finished(self) -> int:
        """Number of admitted completions that are finished."""
        return sum(not isinstance(one.reply, Unfinished) for one in self.group)

    @property
    def tokens(self) -> int:
        """Number of admitted completion tokens."""
        return sum(len(record.signed.tokens) for record in self.group)

    @property
    def credited_tokens(self) -> int:
        """Number of completion tokens that count for their author."""
        return self.tokens + self.orphaned_tokens


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of judging a delivery: the swarm, the chain of versions, the staleness window S.

    `manifests` holds every published version whose rollouts may still be admissible; older ones may be missing. Token
    ids must be below `vocab_size`. `routing`: the policy's, if experts are replayed. `forgotten`: if the ledger is an
    older copy, versions up to this incarnation may be the learner's own though the ledger does not know them; otherwise
    0. `formats`: number formats in which engines may hold the weights.
    """

    swarm: SwarmId
    chain: Chain
    window: int
    manifests: Mapping[PolicyVersion, ManifestHash]
    vocab_size: int
    forgotten: int = 0
    formats: tuple[str, ...] = (STORED,)
    routing: Routing | None = None


@dataclass(frozen=True, kw_only=True)
class CheckedDelivery:
    """A judged delivery that lacks only the environment's replies. `questions`: one for each finished completion that
    was admitted, in the order of the lease's seeds; none when no episode waits for the replies. `unfinished`: indices
    of admitted completions that are parts of a turn; no environment is asked about these."""

    lease: LeaseId
    verdicts: tuple[Verdict, ...]
    records: tuple[SignedRecord | None, ...]
    admitted: tuple[SignedRecord, ...]
    questions: tuple[Question, ...]
    lag: int
    orphaned_tokens: int = 0
    returned: bool = False
    unfinished: frozenset[int] = frozenset()
    is_awaited: bool = True

    def answered(self, replies: Sequence[Reply]) -> JudgedDelivery:
        """Return the outcome, given the replies to `questions` in their order."""
        answers = iter(replies)
        judged = JudgedDelivery(
            lease=self.lease,
            verdicts=self.verdicts,
            records=self.records,
            group=tuple(AdmittedRecord(signed=one, reply=self._heard(one, answers)) for one in self.admitted),
            lag=self.lag,
            orphaned_tokens=self.orphaned_tokens,
            returned=self.returned,
        )
        known = judged.by_index
        told = (_with_reward(one, known[one.index]) if one.admitted and known else one for one in self.verdicts)
        return replace(judged, verdicts=tuple(told))

    def _heard(self, record: SignedRecord, answers: Iterator[Reply]) -> Heard | None:
        if not self.is_awaited:
            return None
        return Unfinished() if record.record.index in self.unfinished else next(answers)


def check_delivery(
    granted: GrantedLease | None,
    sender: PeerId,
    raws: Sequence[bytes],
    terms: Terms,
    *,
    arrived_ms: int,
    lease: LeaseId,
    said: Said | None = (),
    digests: tuple[str, ...] = (),
    begun: PolicyVersion | None = None,
    before: tuple[int, ...] = (),
    returned: bool = False,
) -> CheckedDelivery:
    """Judge all records of one delivery by `sender`, except for their rewards.

    Args:
        granted: the lease, if it is open and `sender`'s own; else None.
        sender: the peer that delivered.
        raws: the records as they were signed.
        terms: what to judge against.
        arrived_ms: when the delivery came.
        lease: id of the lease that the sender names.
        said: the earlier turns of the episodes that the lease continues; None when they no longer wait for it.
        digests: digests of the environment's replies to these turns.
        begun: the version with which the sender reported to begin, if it did.
        before: tokens that others made of the turns that the lease finishes.
        returned: whether the sender returns the lease unfinished.
    """
    judged = [_judge_record(raw, granted, sender, terms, arrived_ms, begun, returned) for raw in raws]
    records = [record for _, record in judged]
    verdicts = _forbid_duplicates([verdict for verdict, _ in judged])
    orphaned_tokens = 0
    if granted is not None:
        owed = {verdict.index for verdict in verdicts} if returned else set(range(len(granted.lease.seeds)))
        verdicts = _require_complete(verdicts, owed)
        verdicts, orphaned_tokens = _credit_orphans(verdicts, records, granted, sender, terms, owed, returned)
    admitted: list[SignedRecord] = []
    questions: tuple[Question, ...] = ()
    unfinished = frozenset[int]()
    if granted is not None:
        admitted = [r for v, r in zip(verdicts, records, strict=True) if v.admitted and r is not None]
        admitted.sort(key=lambda record: record.record.index)
        unfinished = frozenset(one.record.index for one in admitted if not is_finished(one, granted.lease))
        if said is not None:
            length = len(unpack_tokens(granted.lease.prompt))
            questions = tuple(
                Question(
                    index=granted.prompt_index,
                    said=(*said, (*before, *one.tokens)),
                    transcript=length + len(one.tokens),
                    digests=digests,
                )
                for one in admitted
                if one.record.index not in unfinished
            )
    counted = admitted or [record for record in records if record is not None]
    lag = max((lag_of(terms.chain.head, record.behaviour) for record in counted), default=0)
    return CheckedDelivery(
        lease=lease,
        verdicts=tuple(verdicts),
        records=tuple(records),
        admitted=tuple(admitted),
        questions=questions,
        lag=lag,
        orphaned_tokens=orphaned_tokens,
        returned=returned,
        unfinished=unfinished,
        is_awaited=said is not None,
    )


def is_finished(record: SignedRecord, lease: Lease) -> bool:
    """Return whether the completion is finished: it ends with a stop token, or has used the budget of its lease."""
    return record.tokens[-1] in lease.stop_ids or len(record.tokens) >= lease.max_new_tokens


def _judge_record(
    raw: bytes,
    granted: GrantedLease | None,
    sender: PeerId,
    terms: Terms,
    arrived_ms: int,
    begun: PolicyVersion | None,
    returned: bool,
) -> tuple[Verdict, SignedRecord | None]:
    asked = granted is not None and EXPERTS in granted.lease.ext
    try:
        record = read_record(raw, terms.swarm, MAX_RECORD_BYTES if asked else MAX_PLAIN_RECORD_BYTES)
    except PeerError as error:
        return _verdict(RecordId(digest_of(raw)), 0, _SHAPE_FAULTS.get(error.fault, Rule.MALFORMED), error.detail), None
    try:
        rejection = (
            _lease_rule(record, granted, arrived_ms, terms.forgotten)
            or (_minimum_rule(record, granted.lease, begun) if granted else None)  # else it would count as bad luck
            or _version_rule(record, terms)
            or _signature_rule(record, sender)
            or _format_rule(record, terms)
            or (_settings_rule(record, granted.lease, terms, may_go_on=returned) if granted else None)
        )
    except PeerError as error:
        rejection = (_SHAPE_FAULTS.get(error.fault, Rule.MALFORMED), error.detail)
    rule, detail = rejection or (Rule.ADMITTED, "")
    return _verdict(record.id, record.record.index, rule, detail), record


Rejection = tuple[Rule, str] | None


def _lease_rule(record: SignedRecord, granted: GrantedLease | None, arrived_ms: int, forgotten: int) -> Rejection:
    named = short(record.record.lease)
    if granted is None:
        since = ", or was granted after the copy of the ledger from which this learner resumed" if forgotten else ""
        detail = f"lease {named} is not open for you: it ended, or was withdrawn while you were away{since}"
        return Rule.UNKNOWN_LEASE, detail
    if record.record.lease != granted.lease.id:
        return Rule.UNKNOWN_LEASE, f"the record names lease {named}, the delivery {short(granted.id)}"
    if arrived_ms > granted.deadline_ms:
        return Rule.LATE, f"arrived {(arrived_ms - granted.deadline_ms) / 1000:.1f} s after the deadline of its lease"
    return None


def _version_rule(record: SignedRecord, terms: Terms) -> Rejection:
    for span in record.record.spans:
        if (rejection := _manifest_rule(span, terms)) is not None:
            return rejection
    match judge(terms.chain, record.behaviour, terms.window):
        case Admissibility.ADMISSIBLE:
            return None
        case Admissibility.ORPHANED:
            return Rule.ORPHANED, ORPHANED
        case Admissibility.FROM_THE_FUTURE:
            return Rule.UNKNOWN_VERSION, f"it claims a version newer than {terms.chain.head}"
        case Admissibility.STALE:
            lag = lag_of(terms.chain.head, record.behaviour)
            return Rule.STALE, f"lag {lag} at version {terms.chain.head}, at most {terms.window} allowed"


def _manifest_rule(span: Span, terms: Terms) -> Rejection:
    known = terms.manifests.get(span.version)
    if known == span.manifest:
        return None
    is_forgotten = span.version.incarnation <= terms.forgotten
    if known is not None:
        if is_forgotten:
            return Rule.ORPHANED, FORGOTTEN
        detail = f"version {span.version} has manifest {short(known)}, the record says {short(span.manifest)}"
        return Rule.UNKNOWN_VERSION, detail
    if judge(terms.chain, [span.version], terms.window) in (Admissibility.ORPHANED, Admissibility.STALE):
        return None  # the learner may have forgotten it, and an honest peer should read that it is too old
    if is_forgotten:
        return Rule.ORPHANED, FORGOTTEN
    return Rule.UNKNOWN_VERSION, f"version {span.version} was never published"


def _signature_rule(record: SignedRecord, sender: PeerId) -> Rejection:
    record.envelope.verify_signature()
    if record.author != sender:
        return Rule.WRONG_PEER, f"signed by {record.author}, delivered by {sender}"
    return None


def _format_rule(record: SignedRecord, terms: Terms) -> Rejection:
    if (form := format_of(record.record.ext)) not in terms.formats:
        return Rule.SETTINGS, f"made with weights in the format {form}, this swarm takes {', '.join(terms.formats)}"
    return None


def _minimum_rule(record: SignedRecord, lease: Lease, begun: PolicyVersion | None) -> Rejection:
    if (oldest := min(record.behaviour)) < lease.minimum:
        return Rule.SETTINGS, f"made with version {oldest}, the lease asks for {lease.minimum} or newer"
    if begun is not None and oldest < begun:
        return Rule.SETTINGS, f"made with version {oldest}, it was begun with {begun}"
    return None


def _settings_rule(record: SignedRecord, lease: Lease, terms: Terms, *, may_go_on: bool) -> Rejection:
    """Return why the record does not fit its lease. With `may_go_on` the completion may be unfinished."""
    word, tokens = record.record, record.tokens
    if word.index >= len(lease.seeds):
        return Rule.SETTINGS, f"index {word.index}, the lease has {len(lease.seeds)} seeds"
    if word.sampler != lease.sampler:
        return Rule.SETTINGS, f"sampled at {word.sampler.temperature}, the lease says {lease.sampler.temperature}"
    if len(tokens) > lease.max_new_tokens:
        return Rule.SETTINGS, f"{len(tokens)} tokens, the budget is {lease.max_new_tokens}"
    if (largest := max(tokens)) >= terms.vocab_size:
        return Rule.SETTINGS, f"token {largest}, the vocabulary has {terms.vocab_size}"
    stops = set(lease.stop_ids)
    if any(token in stops for token in tokens[:-1]):
        return Rule.SETTINGS, "goes on after a stop token"
    if not may_go_on and not is_finished(record, lease):
        return Rule.SETTINGS, f"ends after {len(tokens)} tokens with neither a stop token nor the budget used up"
    return experts_objection(record, lease, terms.routing)


def _forbid_duplicates(verdicts: list[Verdict]) -> list[Verdict]:
    """Count only the first of several valid records for one index. Their signatures were checked before."""
    seen: set[int] = set()
    out = []
    for verdict in verdicts:
        if verdict.admitted and verdict.index in seen:
            detail = f"index {verdict.index} was delivered before"
            verdict = _verdict(RecordId(verdict.record), verdict.index, Rule.DUPLICATE, detail)
        elif verdict.admitted:
            seen.add(verdict.index)
        out.append(verdict)
    return out


def _require_complete(verdicts: list[Verdict], owed: Collection[int]) -> list[Verdict]:
    """Reject all records when one of the indices `owed` is missing. If a record is missing only because it is stale or
    orphaned, so is the whole group, and its author is not at fault."""
    missing = set(owed) - {verdict.index for verdict in verdicts if verdict.admitted}
    if not missing:
        return verdicts
    unlucky = [verdict for verdict in verdicts if verdict.rule in _UNLUCKY]
    if unlucky and all(verdict.admitted or verdict.rule in _UNLUCKY for verdict in verdicts):
        first = min(unlucky, key=lambda verdict: _UNLUCKY.index(verdict.rule))
        what = "that is too old" if first.rule is Rule.STALE else "that was orphaned"
        rule, detail = first.rule, f"its group has a record {what}: {first.detail}"
    else:
        rule, detail = (
            Rule.INCOMPLETE,
            f"{len(missing)} of {len(owed)} completions of the group are missing or were rejected",
        )
    return [_verdict(RecordId(v.record), v.index, rule, detail) if v.admitted else v for v in verdicts]


_UNLUCKY = (Rule.ORPHANED, Rule.STALE)
"""Rules that an honest author may break without fault."""


def _credit_orphans(
    verdicts: list[Verdict],
    records: Sequence[SignedRecord | None],
    granted: GrantedLease,
    sender: PeerId,
    terms: Terms,
    owed: Collection[int],
    returned: bool,
) -> tuple[list[Verdict], int]:
    """Credit the author of an orphaned group if nothing else is wrong with it; say in the details whether it counts, or
    why not.

    Returns the verdicts, and the number of completion tokens that count.
    """
    orphans = {place: record for place, record in enumerate(records) if verdicts[place].rule is Rule.ORPHANED}
    if not orphans:
        return verdicts, 0
    objections = {place: _objection(record, granted, sender, terms, returned) for place, record in orphans.items()}
    sound: dict[int, SignedRecord] = {}
    for place, record in orphans.items():
        if record is not None and not objections[place]:
            sound.setdefault(verdicts[place].index, record)
    whole = len(sound) == len(owed)
    lacking = f"{len(owed) - len(sound)} of its group are missing or do not count"
    told = list(verdicts)
    for place, objection in objections.items():
        why = objection or ("" if whole else lacking)
        fate = f"it does not count: {why}" if why else "it counts for you, and is not trained on"
        one = verdicts[place]
        told[place] = _verdict(RecordId(one.record), one.index, one.rule, f"{one.detail}; {fate}")
    return told, sum(len(record.tokens) for record in sound.values()) if whole else 0


def _objection(record: SignedRecord | None, granted: GrantedLease, sender: PeerId, terms: Terms, returned: bool) -> str:
    """Return what else is wrong with an orphaned record; "" if it would be admitted had its versions survived."""
    if record is None:
        return "it cannot be read"
    for span in record.record.spans:
        known, version = terms.manifests.get(span.version), span.version
        if known != span.manifest:
            return f"version {version} is not known here, or no longer"
        if terms.chain.head.version - version.version > terms.window:
            return f"version {version} is older than the window of {terms.window} steps as well"
    try:
        rejection = (
            _signature_rule(record, sender)
            or _format_rule(record, terms)
            or _settings_rule(record, granted.lease, terms, may_go_on=returned)
        )
    except PeerError as error:
        return f"its signature does not verify ({error.detail})"
    return rejection[1] if rejection else ""


def _with_reward(verdict: Verdict, admitted: AdmittedRecord) -> Verdict:
    """Add the reward to a verdict. A different claim is only noted, because the learner's own value counts."""
    claimed, reward = admitted.signed.record.reward, admitted.reward
    detail = ""
    if isinstance(admitted.reply, Ended) and admitted.reply.failure:
        detail = f"no reward could be computed: {admitted.reply.failure}"
    elif claimed is not None and reward is not None and abs(claimed - reward) >= 1e-6:
        detail = f"claimed reward {claimed:g}, recomputed {reward:g}"
    return Verdict(record=verdict.record, index=verdict.index, rule=verdict.rule, reward=reward, detail=detail)


def _verdict(record: RecordId, index: int, rule: Rule, detail: str) -> Verdict:
    """Return a verdict. Its detail is ASCII, because a receipt of the largest group must fit its bound in bytes."""
    plain = detail.encode("ascii", "backslashreplace").decode("ascii")
    return Verdict(record=record, index=index, rule=rule, detail=plain[:MAX_REASON_CHARS])
