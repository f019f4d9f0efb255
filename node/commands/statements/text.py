"""Format what `volery receipts` and `volery prove` print: pure functions from values to text or JSON.

Invariants:

- Names that strangers chose are shown without control characters.
- Every error is on its own line, with the line and the field of the file.
- If a file is not valid, the last line repeats that.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

from node.commands.statements.verify import PeerSum, Proven, Statement
from node.reports.machine_formats import named, plain
from node.reports.text.tables import FILE_WIDTH, fitted, is_one
from node.runtime.formatting import date, plain_name
from protocol.accounting.reputation import COUNTS, DAY_MS
from protocol.accounting.reputation_note import SHARES, ReputationNote
from protocol.core.identity import peer_id_of
from protocol.core.ids import PeerId, PolicyVersion, RecordId, short
from protocol.work import Receipt

HEADINGS = ("receipts", "admitted", "rejected", "tokens", "relayed\nbytes", "trained\non", "first", "last")
LISTED = ("issued", "lease", "peer", "learner's\nversion", "admitted", "rejected", "tokens", "trained\nversion")
"""Columns of a receipt. "learner's version" is the one at the judgement; `volery why LEASE` shows those of records."""
RECORDS = ("record", "lease", "index", "rule", "reward", "trained", "why rejected")
NAME_CHARS = 48

REPUTED = (
    "score", "band", "availa-\nbility", "timeli-\nness", "honesty", "sound-\nness", "service", "days\nseen",
)  # fmt: skip

NAMED = 8
"""Peers whose whole ids are written below a table with short ids. A volunteer's file has one peer."""

PROVEN_SHOWN = 5
"""Proven records that are shown. A proof of one record is read; those of a whole run are not."""


def verdict_text(statement: Statement, file: str, *, width: int = FILE_WIDTH) -> str:
    """Return the verdict and what is wrong, then the tables, of at most `width` columns, and what they rest on."""
    lines = []
    if statement.operator is not None and statement.holds:
        lines += [f"{file} is valid.", ""]
    if statement.flaws:
        more = f", and {statement.more_flaws} more" if statement.more_flaws else ""
        lines.append(f"{file} is NOT valid: {len(statement.flaws)} error(s){more}.")
        for flaw in statement.flaws:
            place = f"line {flaw.line}" if flaw.line else "the file"
            lines.append(f"  {place}, {flaw.field}: {plain_name(flaw.what, 400)}")
        if statement.peers:
            lines += ["", "Its valid part adds up to this:"]
    if statement.peers:
        has_proofs = any(total.proven for total in statement.peers.values())
        rows = {peer: _row(total, has_proofs=has_proofs) for peer, total in statement.peers.items()}
        lines += of_peers(HEADINGS, rows, width)
    if statement.reputations:
        lines += [""] if lines else []
        lines += _reputed(list(statement.reputations.values()), width)
        banned = [note for note in statement.reputations.values() if note.banned]
        lines += [f"{note.peer} was banned: {plain_name(note.banned, 400)}" for note in banned]
    if statement.operator is not None:
        lines += ["", *_foundation(statement)]
    shown = statement.proven[:PROVEN_SHOWN]
    lines += ["", *map(_one_text, shown)] if shown else []
    if (hidden := sum(one.proven for one in statement.peers.values()) - len(shown)) > 0:
        lines.append(f"... and {hidden:,} more records that are proved to have trained a version.")
    if statement.uncredited:
        lines.append(f"{statement.uncredited} relay receipt(s) without a credit note are not counted.")
    if statement.flaws:
        lines += ["", f"{file} is NOT valid: the errors are listed above, line by line."]
    return "\n".join(lines) + "\n"


def of_peers(headings: Sequence[str], rows: Mapping[PeerId, Sequence[str]], width: int) -> list[str]:
    """Return a row for each peer, by its whole id if that fits, else by its end. `headings` are the other columns."""
    titles, whole = ["peer", *headings], [[peer, *cells] for peer, cells in rows.items()]
    if is_one(titles, whole, width):
        return fitted(titles, whole, width)
    lines = fitted(titles, [[short(peer), *cells] for peer, cells in rows.items()], width)
    if len(rows) > NAMED:
        return [*lines, "", f"The whole ids of these {len(rows):,} peers are in the JSON form (--json)."]
    return [*lines, "", *(f"{short(peer)} is {peer}" for peer in rows)]


def _foundation(statement: Statement) -> list[str]:
    assert statement.operator is not None
    assert statement.swarm is not None
    operator = peer_id_of(statement.operator)
    lines = [f"Swarm {statement.swarm.hex()[:16]} ({plain_name(statement.name, NAME_CHARS)}), operator {operator}."]
    if statement.is_expected:
        lines.append("That is the operator you named.")
    elif statement.is_expected is None:
        lines.append(
            "No expected operator was given, so the author of this file may also have made that key. Compare it with "
            "the operator's, or name it with --operator or --invite."
        )
    if statement.holds:
        lines.append(
            "Every signature is valid, every signer was certified at the date it gives, and nothing is counted twice."
        )
    return lines


def verdict_json(statement: Statement) -> str:
    """Return the same as JSON for programs."""
    told = {
        "holds": statement.holds,
        **named(statement, "swarm name"),
        "operator": None if statement.operator is None else peer_id_of(statement.operator),
        "peers": [{"peer": peer, **plain(total)} for peer, total in statement.peers.items()],
        "proven": [
            {
                **named(one, "record peer lease index"),
                "trained": one.version,
                **named(one, "published place records"),
            }
            for one in statement.proven
        ],
        "reputations": [_reputation(note) for note in statement.reputations.values()],
        "uncredited_relay_receipts": statement.uncredited,
        **named(statement, "flaws more_flaws"),
    }
    return json.dumps(plain(told), indent=2) + "\n"


def proofs_text(statement: Statement) -> str:
    """Return what a checked statement proves about one record."""
    told = "".join(f"{_one_text(one)}\n" for one in statement.proven)
    return told + "The learner signed that, and the operator had certified the learner.\n"


def receipts_text(
    rows: Sequence[tuple[Receipt, Mapping[RecordId, PolicyVersion]]], *, records: bool, width: int = FILE_WIDTH
) -> str:
    """Return receipts in tables of at most `width` columns, or their records, one in a line of any length.

    The order is that of `rows`.
    """
    if not rows:
        return "There are no receipts yet.\n"
    if records:
        lines = fitted(RECORDS, [row for one, trained in rows for row in _record_rows(one, trained)], sys.maxsize)
        return "\n".join(lines) + "\n"
    table = [LISTED, *(_receipt_row(one, trained) for one, trained in rows)]
    if len({one.peer for one, _ in rows}) == 1 and not is_one(table[0], table[1:], width):
        place = LISTED.index("peer")  # a node knows who it is
        table = [(*row[:place], *row[place + 1 :]) for row in table]
    return "\n".join(fitted(table[0], table[1:], width)) + "\n"


def receipts_json(rows: Sequence[tuple[Receipt, Mapping[RecordId, PolicyVersion]]]) -> str:
    """Return the receipts with their records as JSON for programs."""
    told = [
        {
            **named(one, "issued_ms lease peer version tokens"),
            "records": [
                {
                    **named(verdict, "record index rule reward detail"),
                    "trained": trained.get(RecordId(verdict.record)),
                }
                for verdict in one.verdicts
            ],
        }
        for one, trained in rows
    ]
    return json.dumps(plain(told), indent=2) + "\n"


def _receipt_row(one: Receipt, trained: Mapping[RecordId, PolicyVersion]) -> tuple[str, ...]:
    admitted = sum(verdict.admitted for verdict in one.verdicts)
    versions = sorted(set(trained.values()))
    return (
        date(one.issued_ms),
        one.lease.hex()[:8],
        one.peer[-6:],
        str(one.version),
        str(admitted),
        str(len(one.verdicts) - admitted),
        f"{one.tokens:,}",
        ", ".join(map(str, versions)) if versions else "-",
    )


def _record_rows(one: Receipt, trained: Mapping[RecordId, PolicyVersion]) -> list[tuple[str, ...]]:
    return [
        (
            verdict.record.hex(),
            one.lease.hex()[:8],
            str(verdict.index),
            verdict.rule.value,
            "-" if verdict.reward is None else f"{verdict.reward:.4g}",
            str(trained[RecordId(verdict.record)]) if verdict.record in trained else "-",
            plain_name(verdict.detail, 80) or "-",
        )
        for verdict in one.verdicts
    ]


def _row(total: PeerSum, *, has_proofs: bool) -> tuple[str, ...]:
    """Return the cells of a peer's row. Only proofs show what was trained on; without any the cell is "-"."""
    counts = (total.receipts, total.admitted, total.refused, total.tokens, total.relayed_bytes)
    trained = f"{total.proven:,}" if has_proofs else "-"
    dates = ("-" if one is None else date(one) for one in (total.first_ms, total.last_ms))
    return (*(f"{value:,}" for value in counts), trained, *dates)


def _reputed(notes: Sequence[ReputationNote], width: int) -> list[str]:
    """Return the reputation of each peer. The day is below the table if it is the same for all."""
    days = {PeerId(note.peer): date(note.day * DAY_MS)[:10] for note in notes}
    rows = {PeerId(note.peer): _reputed_row(note) for note in notes}
    if len(set(days.values())) > 1:
        return of_peers(("as of", *REPUTED), {peer: (days[peer], *row) for peer, row in rows.items()}, width)
    return [*of_peers(REPUTED, rows, width), f"As of {days[PeerId(notes[0].peer)]}."]


def _reputed_row(note: ReputationNote) -> tuple[str, ...]:
    shares = (f"{getattr(note, name) / 1000:.3f}" for name in SHARES[1:])
    return (f"{note.score / 1000:.3f}", note.band.value, *shares, str(len(note.days)))


def _reputation(note: ReputationNote) -> dict[str, object]:
    return {
        "peer": note.peer,
        "scale": note.scale,
        "day": note.day,
        "band": note.band.value,
        "banned": note.banned,
        "strikes": [strike.value for strike in note.reputation.strikes],
        **{name: getattr(note, name) / 1000 for name in SHARES},
        "issued_ms": note.issued_ms,
        "days": [{name: getattr(one, name) for name in ("day", *COUNTS)} for one in note.days],
    }


def _one_text(one: Proven) -> str:
    published = "" if one.version == one.published else f", published as {one.published}"
    return (
        f"Record {one.record.hex()} of {one.peer} (lease {one.lease.hex()}, index {one.index}) trained version "
        f"{one.version}{published}: number {one.place + 1} of the {one.records} records that it was trained on."
    )
