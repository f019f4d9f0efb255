"""Why something was decided: of a record, a lease (which is a group), or a peer, what the books hold.

What always holds: what is told is what was decided, by which rule, what was measured against what is allowed, and what
to do about it, in the words that the signed verdict has; nothing is judged anew. What a name means is told by
`node.reports.explain.name_lookup`; one that fits several things is refused, with all of them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from learner.ledger.sqlite.column_values import choice_from, worth_from
from learner.ledger.sqlite.database import has_table, snapshot
from learner.ledger.trust import MAX_EVIDENCE
from learner.trust.selection_test import DeliveryOutcome
from learner.trust.standing import DOUBT_REASON
from node.reports.explain.audit_replay import KeptLease, Replayed, counted_of, kept_of, replay_of
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
from node.reports.model.audits import BannedBy, ban_in_words
from node.reports.model.report import Role
from node.reports.model.verdict_meanings import MEANINGS
from node.reports.readers.audits import audits_by_peer, choosing_of
from node.reports.readers.ledger_report import last_moment_ms, reputations
from node.reports.text.reputation_text import advice, in_a_line, known_lately
from node.runtime import formatting as words
from node.runtime.errors import UsageError
from node.state.receipt_queries import ReceiptQueries
from protocol.core.ids import LeaseId, PeerId, short
from protocol.work import Rule

REFUSALS_SHOWN = 8
LEASES_SHOWN = 8

CHOSEN = {
    DeliveryOutcome.WITHHELD: (
        "Of what it did not deliver, {drawn:,} groups were drawn by the learner, others of the same prompts beside "
        "them: {better:,} were worth less."
    ),
    DeliveryOutcome.DELIVERED: (
        "Of what it delivered, {drawn:,} groups were looked at, others of the same prompts beside them: {better:,} "
        "were worth more, {gained:,} had gained more by their version."
    ),
}

EVIDENCE = {
    BannedBy.AUDITS: "The newest of what failed is in the ledger, as it was signed.",
    BannedBy.CHOOSING: "What each of those groups was worth is in the ledger; --replay hears them again.",
}
"""Of a ban: where that is on which it rests. The operator's rests on the operator."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided of one record; `fate` is what became of it then, as far as that is known."""

    index: int
    record: bytes
    rule: Rule
    detail: str
    reward: float | None
    fate: str = ""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What to print; `agrees` is False where a replay came to something else than the ledger says; `kept`: what is to
    be drawn again, of a lease that is to be replayed."""

    text: str
    agrees: bool = True
    kept: KeptLease | None = None


def why_in_ledger(path: Path, name: str, *, replay: bool = False) -> Answer:
    """What the learner's ledger at `path` says of `name`. `replay`: of a peer, with the sequential test once more; of a
    lease, what is to be drawn again.

    Raises UsageError when nothing is called so, or several things are, or what is called so cannot be replayed;
    LedgerError when it cannot be read.
    """
    with snapshot(path) as db:
        meant = meant_in(db, name)
        if isinstance(meant, str):
            lines = list(_of_peer(db, meant))
            again = replay_of(db, meant) if replay else Replayed(lines=(), agrees=True)
            return Answer(text="\n".join([*lines, *again.lines]), agrees=again.agrees)
        lease = meant.lease
        kept = kept_of(db, LeaseId(lease)) if replay else None
        if replay and kept is None:
            raise UsageError(
                f"--replay: nothing is kept of lease {lease.hex()[:8]} to draw again. That is so of the newest "
                f"{MAX_EVIDENCE} leases of each peer that failed an audit; or name a peer, to hear its audits again."
            )
        return Answer(text="\n".join(_of_lease(db, meant)), kept=kept)


def why_in_receipts(receipts: ReceiptQueries, name: str, node: PeerId | None) -> str:
    """What the own receipts of `node` say of a lease, a record, or itself; None: whose they are is not known.

    Raises UsageError, ReceiptsError.
    """
    prefix, index = split(name)
    require_long(prefix)
    found = receipts.decisions(prefix.lower(), MATCHES_SHOWN + 1) if is_hex(prefix) else []
    by_lease = any(one.lease.hex().startswith(prefix.lower()) for one in found)
    if index is not None and not by_lease:
        found = []
    ids = sorted({(one.lease if by_lease else one.record).hex() for one in found})
    itself = [node] if node is not None and node.endswith(name) else []
    require_one(name, [*itself, *ids], IN_RECEIPTS)
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
            *_told(decisions if index is None else _of_place(decisions, index)),
            *_came_again(again),
        ]
    )


def _of_node(receipts: ReceiptQueries, node: PeerId) -> Iterator[str]:
    """How the learner judged it so far, and how it says that it stands."""
    sums = receipts.sums()
    judged = sum(sums.verdicts.values())
    yield f"This node, {node}: {_judged(judged)}, {_counting(sums.tokens)}."
    if (known := receipts.reputation()) is None:
        yield "The learner has not said yet how it stands."
    else:
        yield f"{in_a_line(known.note.reputation)} So the learner said at {words.moment(known.note.issued_ms)}."
        if known.note.banned:
            yield f"It is banned: {words.plain_name(known.note.banned, 512)}."
        yield known_lately(known.note.reputation)
        yield from advice(known.note.reputation)
    yield from _by_rule(sums.verdicts)
    newest = receipts.refusals(REFUSALS_SHOWN)
    yield from _refusals([(one.lease, one.rule.value, one.detail, one.issued_ms, one.records) for one in newest])


def _judged(records: int) -> str:
    return f"{records:,} of its records {words.were(records)} judged"


def _counting(tokens: int, for_whom: str = "") -> str:
    return f"{words.counted(tokens, 'token')} {'counts' if tokens == 1 else 'count'}{for_whom}"


def _by_rule(counts: Mapping[Rule, int]) -> Iterator[str]:
    """What each rule refused, and what to do about it."""
    for rule, count in counts.items():
        if rule is not Rule.ADMITTED and count:
            yield f"  {rule.value}: {words.counted(count, 'record')}; {MEANINGS[rule].words}. {MEANINGS[rule].advice}"


def _refusals(newest: Sequence[tuple[bytes, str, str, int, int]]) -> Iterator[str]:
    """Each a lease, the rule, what was measured, when, and of how many records."""
    if newest:
        yield "The latest refusals, by lease:"
    for lease, decided_by, detail, at_ms, count in newest:
        said = words.plain_name(detail, 512)
        yield f"  {words.moment(at_ms)}  {short(lease)}  {words.counted(count, 'record')}, {decided_by}: {said}"


def _of_peer(db: sqlite3.Connection, peer: PeerId) -> Iterator[str]:
    ((name, role, engine, machine, first_ms),) = db.execute(
        "SELECT name, role, engine, machine, first_seen_ms FROM peers WHERE peer = ?", (peer,)
    )
    called = words.plain_name(name) or "a peer without a name"
    by_itself = f"engine {words.plain_name(engine, NAMES)}, {words.plain_name(machine, NAMES)}"
    yield f"{called}, {peer}: {by_itself}, first here {words.moment(first_ms)}."
    if role == Role.LEARNER.value:
        yield "It is the learner: it judges what others generate, and has no records, audits or reputation of its own."
        return
    rules = db.execute(
        "SELECT rule, count(*), sum(step IS NOT NULL) FROM records WHERE peer = ? GROUP BY rule", (peer,)
    )
    counts = [(Rule(rule), count, trained) for rule, count, trained in rules]
    judged, trained = sum(count for _, count, _ in counts), sum(number for *_, number in counts)
    yield f"{_judged(judged)}, {trained:,} trained on."
    if (audits := audits_by_peer(db, first_ms).get(peer)) is None:
        yield "No audit of it is over yet."
    elif audits.banned:
        yield ban_in_words("It", audits, judged=judged, trained=trained)
        if audits.banned_by in EVIDENCE:
            yield f"An honest peer is banned once in a million lives. {EVIDENCE[audits.banned_by]}"
    else:
        groups, tokens = words.counted(audits.audits, "group"), words.counted(audits.tokens, "token")
        looked = f"{groups} audited, {tokens}, {audits.failed:,} failed"
        against = "Nothing speaks against it."
        if words.rarity(audits.odds) != words.NOTHING:
            against = f"An honest peer looks like this {words.once_in(audits.odds)}."
        standing = {"newcomer": "a newcomer", "suspect": "a suspect"}.get(audits.standing.value, audits.standing.value)
        yield f"It is {standing}: {looked}, the largest gap {words.figure(audits.worst)} nats. {against}"
    if (choosing := choosing_of(db, peer)) is not None:
        for choice, tally in sorted(choosing.found.items(), key=lambda one: one[0].value):
            yield CHOSEN[choice].format(drawn=tally["drawn"], better=tally["better"], gained=tally["gained"])
    found = reputations(db, last_moment_ms(db), {} if audits is None else {peer: audits})[peer]
    yield in_a_line(found)
    yield known_lately(found)
    yield from advice(found)
    yield from _decisions(db, peer)
    yield from _by_rule({rule: count for rule, count, _ in counts})
    newest = db.execute(
        "SELECT lease, rule, detail, max(received_ms), count(*) FROM records WHERE peer = ? AND rule <> 'admitted'"
        " GROUP BY lease, rule, detail ORDER BY max(received_ms) DESC, lease LIMIT ?",
        (peer, REFUSALS_SHOWN),
    ).fetchall()
    yield from _refusals(newest)


def _decisions(db: sqlite3.Connection, peer: PeerId) -> Iterator[str]:
    """What the operator decided of it."""
    if not has_table(db, "decisions"):
        return
    rows = db.execute("SELECT at_ms, what, reason FROM decisions WHERE peer = ? ORDER BY id DESC LIMIT 8", (peer,))
    for at_ms, what, reason in rows:
        because = f": {words.plain_name(reason, 512)}" if reason else ""
        yield f"{words.moment(at_ms)}  the operator's {what}{because}"


def _of_lease(db: sqlite3.Connection, meant: MeantLease) -> Iterator[str]:
    lease = meant.lease
    ((peer, task, prompt, rollouts, issued_ms, deadline_ms, status, closed_ms, started),) = db.execute(
        "SELECT peer, task, prompt, rollouts, issued_ms, deadline_ms, status, closed_ms, started_version FROM leases"
        " WHERE lease = ?",
        (lease,),
    )
    begun = f", begun with version {started}" if started else ", of which nobody said that it was begun"
    asked = f"{words.counted(rollouts, 'completion')} of prompt {prompt} of {words.plain_name(task, NAMES)}"
    yield f"Lease {lease.hex()} of {short(peer)}: {asked}, issued {words.moment(issued_ms)}{begun}."
    match status:
        case "open":
            yield f"It is open; its deadline is {words.moment(deadline_ms)}."
        case "delivered":
            yield f"It was delivered and judged {(closed_ms - issued_ms) / 1000:.1f} s after that."
        case "expired":
            yield "It was not delivered by its deadline. If that happens often, lower [engine] batch_rollouts."
        case "returned" if _is_recalled(db, lease):
            yield "It was recalled: no batch could hold it any more, or the learner was away. That is nobody's fault."
        case "returned":
            yield "Its peer gave it back."
        case _:
            yield "It was withdrawn: its peer had gone, or had forgotten it."
    audit = [*_audit_of(db, lease)]
    yield from audit
    yield from _choice_of(db, lease)
    root = "(SELECT root FROM continuations c WHERE c.lease = r.lease)" if has_table(db, "continuations") else "NULL"
    rows = db.execute(
        "SELECT r.idx, r.record, r.rule, r.detail, r.reward, r.step, r.trained_lag, d.reason FROM records r"
        f" LEFT JOIN dropped d ON d.lease = coalesce({root}, r.lease)"
        " WHERE r.lease = ?1 AND (?2 IS NULL OR r.record = ?2) ORDER BY r.idx",
        (lease, meant.record),
    )
    decisions = [
        Decision(
            index=index, record=record, rule=Rule(rule), detail=detail, reward=reward,
            fate=_fate(Rule(rule), step, lag, reason, is_audited=bool(audit)),
        )
        for index, record, rule, detail, reward, step, lag, reason in rows
    ]  # fmt: skip
    yield from _told(decisions if meant.index is None else _of_place(decisions, meant.index))
    if meant.record is not None:
        sql = "SELECT rule, lease FROM records WHERE record = ? AND lease <> ? ORDER BY rowid"
        yield from _came_again([(Rule(rule), other) for rule, other in db.execute(sql, (meant.record, lease))])


def _is_recalled(db: sqlite3.Connection, lease: bytes) -> bool:
    return has_table(db, "recalled") and bool(db.execute("SELECT 1 FROM recalled WHERE lease = ?", (lease,)).fetchall())


def _choice_of(db: sqlite3.Connection, lease: bytes) -> Iterator[str]:
    """What it was worth, if it was drawn since its peer may have chosen."""
    if not has_table(db, "choices"):
        return
    rows = db.execute("SELECT at_ms, choice, theirs, ours FROM choices WHERE lease = ?", (lease,))
    for at_ms, name, theirs, ours in rows:
        choice = choice_from("choices.choice", name)
        yield (
            f"The learner drew its prompt {words.moment(at_ms)}, since a peer may choose what it delivers: what was "
            f"{choice.value} is worth {_mean('choices.theirs', theirs)} on average, what other seeds give "
            f"{_mean('choices.ours', ours)}."
        )


def _mean(column: str, text: str) -> str:
    rewards = [one.reward for one in worth_from(column, text)]
    return words.figure(fmean(rewards) if rewards else None)


def _audit_of(db: sqlite3.Connection, lease: bytes) -> Iterator[str]:
    if not has_table(db, "audits"):
        return
    for at_ms, tokens, worst, passed, detail in db.execute(
        "SELECT at_ms, tokens, worst, passed, detail FROM audits WHERE lease = ?", (lease,)
    ):
        found = "passed" if passed else f"failed: {detail}"
        largest = f"The largest gap was {words.figure(worst)} nats."
        yield f"Its audit of {words.moment(at_ms)}, of {words.counted(tokens, 'token')}, {found}. {largest}"
        yield from counted_of(db, LeaseId(lease))


def _fate(rule: Rule, step: int | None, lag: int | None, reason: str | None, *, is_audited: bool) -> str:
    if rule is not Rule.ADMITTED:
        return ""
    if step is not None:
        return f"trained on by step {step}, at a lag of {lag}"
    if reason == DOUBT_REASON and not is_audited:
        return "not trained on: it lay in the buffer when an audit spoke against its peer (doubt)"
    if reason == DOUBT_REASON:
        return "not trained on: it passed its audit, but all audits of its peer together speak against that (doubt)"
    return f"not trained on: its group was dropped ({reason})" if reason else "not trained on yet"


def _told(decisions: Sequence[Decision]) -> Iterator[str]:
    """Each record, those of one fate together, then what the rules mean and what to do, each once."""
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
            blame = "counts against honesty" if meaning.blames else "is held against nobody"
            yield f"{rule.value}: not counted because {meaning.words}; this {blame}. {meaning.advice}"


def _came_again(others: Sequence[tuple[Rule, bytes]]) -> Iterator[str]:
    """Under which other leases a record was delivered, and what was decided of it there."""
    by_rule: dict[Rule, list[bytes]] = {}
    for rule, lease in others:
        by_rule.setdefault(rule, []).append(lease)
    told = []
    for rule, leases in by_rule.items():
        shown = ", ".join(short(lease) for lease in leases[:LEASES_SHOWN])
        more = len(leases) - LEASES_SHOWN
        told.append(f"{rule.value} under {shown}{f' and {more:,} more' if more > 0 else ''}")
    if others:
        yield f"The same record came under {words.counted(len(others), 'other lease')} as well: {'; '.join(told)}."


def _of_place(decisions: Sequence[Decision], index: int) -> list[Decision]:
    """Those of the record at `index`. Raises UsageError where there is none."""
    if found := [one for one in decisions if one.index == index]:
        return found
    there = ", ".join(str(one) for one in sorted({one.index for one in decisions})) or "none was judged"
    raise UsageError(f"There is no record {index} in that lease; those there are: {there}.")
