"""Explain a decision about a record, a lease (which is a group) or a peer, from the ledger or from receipts.

`node.reports.explain.name_lookup` finds what a name means, and refuses an ambiguous one.

Invariants:

- The explanation says what was decided, by which rule, what was measured and what is allowed, and what to do about it,
  in the words of the signed verdict.
- Nothing is judged again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from learner.ledger.queries.reader import LedgerReader, read_ledger
from learner.ledger.queries.trust import KeptLease
from learner.ledger.queries.work import RecordFate
from learner.ledger.trust import MAX_EVIDENCE
from learner.trust.audit_history import SUSPICION_REASON
from learner.trust.selection_test import CompletionValue, DeliveryOutcome
from node.reports.explain.name_lookup import (
    IN_RECEIPTS,
    MATCHES_SHOWN,
    NAMES,
    MeantLease,
    is_hex,
    meant_in,
    require_long,
    require_one,
    split,
)
from node.reports.explain.recount_text import Replayed, counted_of, replay_of
from node.reports.model.audits import BannedBy, ban_in_words
from node.reports.model.report import Role
from node.reports.model.verdict_meanings import MEANINGS
from node.reports.readers.audits import audits_by_peer, selection_of
from node.reports.readers.ledger_report import reputations
from node.reports.text.reputation_text import advice, in_a_line, known_lately
from node.runtime import formatting as words
from node.runtime.errors import UsageError
from node.state.receipt_queries import ReceiptQueries
from protocol.core.ids import PeerId, short
from protocol.work import Rule

REJECTIONS_SHOWN = 8
DECISIONS_SHOWN = 8
LEASES_SHOWN = 8

SELECTION_OUTCOMES = {
    DeliveryOutcome.WITHHELD: (
        "The learner regenerated {drawn} that this peer did not deliver, and others of the same prompts beside them: "
        "{better:,} had lower rewards. Only many would be evidence."
    ),
    DeliveryOutcome.DELIVERED: (
        "The learner compared {drawn} that this peer delivered with others of the same prompts: {better:,} had higher "
        "rewards, and {gained:,} owed more of them to the version that the peer used. Only many would be evidence."
    ),
}

EVIDENCE = {
    BannedBy.AUDITS: "The newest evidence that failed is in the ledger, as it was signed.",
    BannedBy.SELECTION: "The rewards of each of those groups are in the ledger; --replay repeats the test.",
}
"""Where the evidence of a ban is. A ban by the operator needs none."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The decision about one record. `fate`: what became of it then, as far as that is known."""

    index: int
    record: bytes
    rule: Rule
    detail: str
    reward: float | None
    fate: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The text to print. `agrees`: False if a replay differs from the ledger. `kept`: what can be regenerated of a
    lease, for a replay."""

    text: str
    agrees: bool = True
    kept: KeptLease | None = None


def why_in_ledger(path: Path, name: str, *, replay: bool = False) -> Answer:
    """Explain `name` from the learner's ledger at `path`. `replay`: of a peer, also repeat the sequential test; of a
    lease, return what can be regenerated.

    Raises UsageError if nothing or several things have this name, or if it cannot be replayed; LedgerError if the
    ledger cannot be read.
    """
    with read_ledger(path) as ledger:
        meant = meant_in(ledger, name, path)
        if isinstance(meant, str):
            lines = list(_of_peer(ledger, meant))
            again = replay_of(ledger, meant) if replay else Replayed(lines=(), agrees=True)
            return Answer(text="\n".join([*lines, *again.lines]), agrees=again.agrees)
        kept = ledger.trust.kept_lease(meant.lease) if replay else None
        if replay and kept is None:
            raise UsageError(
                f"--replay: no evidence of lease {meant.lease.hex()[:8]} is kept to regenerate. It is kept for the "
                f"newest {MAX_EVIDENCE} leases of each peer that failed an audit. Name a peer to repeat its test."
            )
        return Answer(text="\n".join(_of_lease(ledger, meant)), kept=kept)


def why_in_receipts(receipts: ReceiptQueries, name: str, node: PeerId | None, called: str = "") -> str:
    """Explain a lease, a record, or the node itself, from the receipts of `node`; None if their owner is not known.

    called: the node's display name. Raises UsageError, ReceiptsError.
    """
    prefix, index = split(name)
    is_called = bool(called) and words.plain_name(name, NAMES) == words.plain_name(called, NAMES)
    if not is_called:
        require_long(prefix)
    found = receipts.decisions(prefix.lower(), MATCHES_SHOWN + 1) if is_hex(prefix) else []
    by_lease = any(one.lease.hex().startswith(prefix.lower()) for one in found)
    if index is not None and not by_lease:
        found = []
    ids = sorted({(one.lease if by_lease else one.record).hex() for one in found})
    itself = [node] if node is not None and (is_called or node.endswith(name)) else []
    require_one(name, [*itself, *ids], receipts.path, IN_RECEIPTS)
    if node is not None and itself:
        return "\n".join(_of_node(receipts, node))
    first = min(found, key=lambda one: one.rule is not Rule.ADMITTED)
    again = [] if by_lease else [(one.rule, one.lease) for one in found if one is not first]
    counted = _counting(first.tokens, " for this node")
    decisions = [
        Decision(index=one.index, record=one.record, rule=one.rule, detail=one.detail, reward=one.reward)
        for one in (found if by_lease else [first])
    ]
    return "\n".join(
        [
            f"Lease {first.lease.hex()}, judged {words.moment(first.issued_ms)}; {counted}.",
            *_fates_text(decisions if index is None else _of_place(decisions, index)),
            *_came_again(again),
        ]
    )


def _of_node(receipts: ReceiptQueries, node: PeerId) -> Iterator[str]:
    """Yield how the learner has judged the node so far, and its reputation."""
    sums = receipts.sums()
    judged = sum(sums.verdicts.values())
    yield f"This node, {node}: {_judged(judged)}, {_counting(sums.tokens)}."
    if (known := receipts.reputation()) is None:
        yield "The learner has not stated its reputation yet."
    else:
        yield f"{in_a_line(known.note.reputation)} The learner stated this at {words.moment(known.note.issued_ms)}."
        if known.note.banned:
            yield f"It is banned: {words.plain_name(known.note.banned, 512)}."
        yield known_lately(known.note.reputation)
        yield from advice(known.note.reputation)
    yield from _by_rule(sums.verdicts)
    newest = receipts.rejections(REJECTIONS_SHOWN)
    yield from _rejections([(one.lease, one.rule.value, one.detail, one.issued_ms, one.records) for one in newest])


def _judged(records: int) -> str:
    return f"{records:,} of its records {words.were(records)} judged"


def _counting(tokens: int, for_whom: str = "") -> str:
    return f"{words.counted(tokens, 'token')} {'counts' if tokens == 1 else 'count'}{for_whom}"


def _by_rule(counts: Mapping[Rule, int]) -> Iterator[str]:
    """Yield what each rule rejected, and what to do about it."""
    for rule, count in counts.items():
        if rule is not Rule.ADMITTED and count:
            yield f"  {rule.value}: {words.counted(count, 'record')}; {MEANINGS[rule].words}. {MEANINGS[rule].advice}"


def _rejections(newest: Sequence[tuple[bytes, str, str, int, int]]) -> Iterator[str]:
    """Yield the latest rejections: the lease, the rule, what was measured, when, and of how many records."""
    if newest:
        yield "The latest rejections, by lease:"
    for lease, decided_by, detail, at_ms, count in newest:
        said = words.plain_name(detail, 512)
        yield f"  {words.moment(at_ms)}  {short(lease)}  {words.counted(count, 'record')}, {decided_by}: {said}"


def _of_peer(ledger: LedgerReader, peer: PeerId) -> Iterator[str]:
    (known,) = ledger.peers.all(ending=peer)
    called = words.plain_name(known.name) or "a peer without a name"
    by_itself = f"engine {words.plain_name(known.engine, NAMES)}, {words.plain_name(known.machine, NAMES)}"
    yield f"{called}, {peer}: {by_itself}, first seen {words.moment(known.first_seen_ms)}."
    if known.role == Role.LEARNER.value:
        yield "It is the learner: it judges what others generate, and has no records, audits or reputation of its own."
        return
    counts = ledger.work.verdicts_of(peer)
    judged, trained = sum(count for _, count, _ in counts), sum(number for *_, number in counts)
    yield f"{_judged(judged)}, {trained:,} trained on."
    if (audits := audits_by_peer(ledger, known.first_seen_ms).get(peer)) is None:
        yield "No audit of it is finished yet."
    elif audits.banned:
        yield ban_in_words("It", audits, judged=judged, trained=trained)
        if audits.banned_by in EVIDENCE:
            yield f"An honest peer is banned once in a million lives. {EVIDENCE[audits.banned_by]}"
    else:
        groups, tokens = words.counted(audits.audits, "group"), words.counted(audits.tokens, "token")
        looked = f"{groups} audited, {tokens}, {audits.failed:,} failed"
        against = "There is no evidence against it."
        if words.rarity(audits.odds) != words.NOTHING:
            against = f"An honest peer would look like this {words.once_in(audits.odds)}."
        standing = {"newcomer": "a newcomer", "suspect": "a suspect"}.get(audits.standing.value, audits.standing.value)
        yield f"It is {standing}: {looked}, the largest gap {words.figure(audits.worst)} nats. {against}"
    if (selection := selection_of(ledger, peer)) is not None:
        for outcome, tally in sorted(selection.found.items(), key=lambda one: one[0].value):
            yield SELECTION_OUTCOMES[outcome].format(
                drawn=words.counted(tally["drawn"], "group"), better=tally["better"], gained=tally["gained"]
            )
    found = reputations(ledger, ledger.training.last_moment_ms(), {} if audits is None else {peer: audits.banned})[peer]
    yield in_a_line(found)
    yield known_lately(found)
    yield from advice(found)
    for decision in ledger.trust.decisions(peer)[:DECISIONS_SHOWN]:
        because = f": {words.plain_name(decision.reason, 512)}" if decision.reason else ""
        yield f"{words.moment(decision.at_ms)}  the operator's {decision.what}{because}"
    yield from _by_rule({rule: count for rule, count, _ in counts})
    rejected = ledger.work.rejections_of(peer, REJECTIONS_SHOWN)
    yield from _rejections([(one.lease, one.rule, one.detail, one.received_ms, one.records) for one in rejected])


def _of_lease(ledger: LedgerReader, meant: MeantLease) -> Iterator[str]:
    lease = ledger.work.lease(meant.lease)
    begun = (
        f", begun with version {lease.started_version}"
        if lease.started_version
        else ", for which no start was reported"
    )
    task = words.plain_name(ledger.training.task_known_as(lease.task), NAMES)
    asked = f"{words.counted(lease.rollouts, 'completion')} of prompt {lease.prompt} of {task}"
    yield (f"Lease {lease.lease.hex()} of {short(lease.peer)}: {asked}, issued {words.moment(lease.issued_ms)}{begun}.")
    match lease.status:
        case "open":
            yield f"It is open; its deadline is {words.moment(lease.deadline_ms)}."
        case "delivered":
            yield f"It was delivered and judged {((lease.closed_ms or 0) - lease.issued_ms) / 1000:.1f} s after that."
        case "expired":
            yield "It was not delivered by its deadline. If that happens often, lower [engine] batch_rollouts."
        case "returned" if ledger.work.is_recalled(meant.lease):
            yield "It was recalled: no batch could use it any more, or the learner was away. This is no peer's fault."
        case "returned":
            yield "Its peer returned it."
        case _:
            yield "It was withdrawn: its peer had left, or no longer knew it."
    if (audit := ledger.trust.audit(meant.lease)) is not None:
        found = "passed" if audit.passed else f"failed: {audit.detail}"
        largest = f"The largest gap was {words.figure(audit.worst)} nats."
        yield f"Its audit of {words.moment(audit.at_ms)}, of {words.counted(audit.tokens, 'token')}, {found}. {largest}"
        yield from counted_of(ledger, audit)
    for test in ledger.trust.selections(lease=meant.lease):
        yield (
            f"The learner regenerated its prompt {words.moment(test.at_ms)} to test for selective delivery: "
            f"the mean reward of the {test.outcome.value} completions is {_mean(test.theirs)}, of other seeds "
            f"{_mean(test.ours)}."
        )
    decisions = [
        Decision(
            index=row.idx, record=row.record, rule=row.rule, detail=row.detail, reward=row.reward,
            fate=_fate(row, is_audited=audit is not None),
        )
        for row in ledger.work.fates(meant.lease, meant.record)
    ]  # fmt: skip
    yield from _fates_text(decisions if meant.index is None else _of_place(decisions, meant.index))
    if meant.record is not None:
        yield from _came_again(ledger.work.came_again(meant.record, meant.lease))


def _mean(values: Sequence[CompletionValue]) -> str:
    rewards = [one.reward for one in values]
    return words.figure(fmean(rewards) if rewards else None)


def _fate(row: RecordFate, *, is_audited: bool) -> str:
    if row.rule is not Rule.ADMITTED:
        return ""
    if row.step is not None:
        return f"trained on by step {row.step}, at a lag of {row.lag}"
    if row.dropped == SUSPICION_REASON and not is_audited:
        return "not trained on: while it waited for training, an audit found evidence against its peer (doubt)"
    if row.dropped == SUSPICION_REASON:
        return "not trained on: it passed its audit, but all audits together are evidence against its peer (doubt)"
    return f"not trained on: its group was dropped ({row.dropped})" if row.dropped else "not trained on yet"


def _fates_text(decisions: Sequence[Decision]) -> Iterator[str]:
    """Yield the records, those with the same fate together, then once for each rule what it means and what to do."""
    alike: dict[tuple[Rule, str, str], list[Decision]] = {}
    for one in decisions:
        alike.setdefault((one.rule, one.detail, one.fate), []).append(one)
    for (rule, detail, fate), several in alike.items():
        noun = "record" if len(several) == 1 else "records"
        told = f": {words.plain_name(detail, 512)}" if detail else ""
        yield f"{len(several)} {noun} {rule.value}{told}{f'; {fate}' if fate else ''}"
        for one in several:
            reward = "" if one.reward is None else f", reward {words.figure(one.reward)}"
            yield f"  {one.index}  {one.record.hex()[:16]}{reward}"
    for rule in dict.fromkeys(one.rule for one in decisions):
        if rule is not Rule.ADMITTED:
            meaning = MEANINGS[rule]
            blame = "counts against honesty" if meaning.blames else "does not count against honesty"
            yield f"{rule.value}: not counted because {meaning.words}; this {blame}. {meaning.advice}"


def _came_again(others: Sequence[tuple[Rule, bytes]]) -> Iterator[str]:
    """Yield under which other leases a record was delivered, and what was decided there."""
    by_rule: dict[Rule, list[bytes]] = {}
    for rule, lease in others:
        by_rule.setdefault(rule, []).append(lease)
    told = []
    for rule, leases in by_rule.items():
        shown = ", ".join(short(lease) for lease in leases[:LEASES_SHOWN])
        more = len(leases) - LEASES_SHOWN
        told.append(f"{rule.value} under {shown}{f' and {more:,} more' if more > 0 else ''}")
    if others:
        yield f"The same record also came under {words.counted(len(others), 'other lease')}: {'; '.join(told)}."


def _of_place(decisions: Sequence[Decision], index: int) -> list[Decision]:
    """Return the decisions on the record at `index`. Raises UsageError if there are none."""
    if found := [one for one in decisions if one.index == index]:
        return found
    there = ", ".join(str(one) for one in sorted({one.index for one in decisions})) or "none was judged"
    raise UsageError(f"There is no record {index} in that lease; the records in it are: {there}.")
