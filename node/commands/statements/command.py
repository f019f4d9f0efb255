"""Run `volery receipts list`, `export`, `verify`, `volery reputation` and `volery prove`, and return what they print.

Invariants:

- A file is written whole or not at all. Before it is said to prove anything, it is checked by the rules of `verify`.
- A file is read line by line, whatever its size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from learner.artifacts.regular_file import open_file
from learner.artifacts.text_files import without_mark
from node.commands.statements.format import MAX_LINE_BYTES, Shape, require_out, write_lines
from node.commands.statements.sources import NotProven, as_receipt, head_of, open_receipts, peer_named, reputation_lines
from node.commands.statements.text import proofs_text, receipts_json, receipts_text, verdict_json, verdict_text
from node.commands.statements.verify import Expected, check_statement
from node.config.invite_text import open_invite
from node.reports.text.tables import FILE_WIDTH
from node.runtime.atomic_files import write_whole, writing
from node.runtime.errors import RunError, UsageError
from node.runtime.events import Clock
from node.runtime.formatting import counted
from node.runtime.stdout import is_screen, screen_width
from node.state.locate import find_place
from protocol.core.errors import PeerError
from protocol.core.identity import PEER_ID_CHARS, public_key_of
from protocol.core.ids import PublicKey

RECORD_HEX = 64
"""Hex digits of a record's id."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The text to print, and the exit code."""

    text: str
    code: int = 0


def list_receipts(target: Path | None, *, last: int, peer: str, records: bool, as_json: bool) -> str:
    """Return the latest receipts of a node or a learner as text, newest first."""
    place = find_place(target)
    who = peer_named(place, peer)
    authority = head_of(place)[1]
    with open_receipts(place) as kept:
        receipts = [as_receipt(raw, authority, place) for raw in kept.newest(last, who)]
        rows = [(receipt, kept.trained_of(receipt)) for receipt in receipts]
    return receipts_json(rows) if as_json else receipts_text(rows, records=records, width=_width())


def export_receipts(target: Path | None, out: Path, *, peer: str, proofs: bool) -> str:
    """Write a statement of all receipts, or of one peer's, to `out`; return a sentence."""
    require_out(out, Shape.RECEIPTS)
    place = find_place(target)
    who = peer_named(place, peer)
    head, _ = head_of(place)
    with open_receipts(place) as kept:
        count = _write(out, write_lines(head, kept.lines(who, proofs=proofs)))
    if count == 2:
        return f"Wrote {out}. It states nothing, because there are no receipts yet."
    return f"Wrote {out}: {counted(count - 2, 'line')}. Anybody can check it: volery receipts verify {out}"


def export_reputations(target: Path | None, out: Path, *, peer: str) -> str:
    """Write the signed reputation of each peer of a learner, or of one, to `out`; return a sentence."""
    require_out(out, Shape.REPUTATIONS)
    place = find_place(target)
    if not place.is_learner:
        raise UsageError(
            f"{place.state} belongs to a rollout node, and only a learner states reputations. Name a learner's "
            "swarm.toml or state."
        )
    who = peer_named(place, peer)
    head, authority = head_of(place)
    lines = reputation_lines(place, authority, now_ms=Clock.now_ms(), peer=who)
    _write(out, write_lines(head, lines))
    return f"Wrote {out}: {counted(len(lines), 'peer')}. Anybody can check it: volery reputation verify {out}"


def verify_file(file: Path, *, operator: str, invite: str, as_json: bool) -> Answer:
    """Check a statement. The exit code is 1 if anything in it is wrong."""
    if operator and invite:
        raise UsageError("Give --operator or --invite, not both: an invite names the operator.")
    expected = Expected(
        operator=_operator(operator) if operator else None,
        authority=open_invite(invite, now_ms=0).authority if invite else None,
    )
    statement = check_statement(lines_of(file), expected)
    text = verdict_json(statement) if as_json else verdict_text(statement, str(file), width=_width())
    return Answer(text=text, code=0 if statement.holds else 1)


def prove_record(target: Path | None, record: str, out: Path | None, *, as_json: bool = False) -> str:
    """Return the proof in words that a record trained a version, and write the proof to `out` if that is named."""
    prefix = record.lower()
    if not prefix or len(prefix) > RECORD_HEX or prefix.strip("0123456789abcdef"):
        raise UsageError(
            f"{record!r} is neither a record's id nor the beginning of one: an id has up to {RECORD_HEX} hex digits. "
            "`volery receipts list --records` shows them."
        )
    if out is not None:
        require_out(out, Shape.PROOF)
    place = find_place(target)
    head, authority = head_of(place)
    try:
        with open_receipts(place) as kept:
            written = list(write_lines(head, kept.proof_of(prefix)))
    except NotProven as reason:
        raise RunError(f"{place.database}: {reason}") from None
    statement = check_statement(written, Expected(authority=authority))
    if not statement.holds:
        flaw = statement.flaws[0]
        raise RunError(f"{place.database} does not prove it (line {flaw.line}, {flaw.field}: {flaw.what}).")
    size = sum(map(len, written))
    if out is not None:
        _write(out, iter(written))
    if as_json:
        return verdict_json(statement)
    if out is None:
        return proofs_text(statement) + f"To write the proof to a file ({size:,} bytes), add --out FILE.\n"
    return (
        proofs_text(statement) + f"Wrote {out} ({size:,} bytes). Anybody can check it: volery receipts verify {out}\n"
    )


def lines_of(file: Path) -> Iterator[bytes]:
    """Yield lines with their ends, and the beginning of the first one that is too long. Raises RunError."""
    try:
        with open_file(file) as opened:
            is_first = True
            while raw := opened.readline(MAX_LINE_BYTES + 1):
                yield without_mark(raw) if is_first else raw
                is_first = False
                if len(raw) > MAX_LINE_BYTES:
                    return
    except OSError as error:
        raise RunError(f"{file} cannot be read: {error.strerror}. Name a file that volery exported.") from None


def _width() -> int:
    return screen_width() if is_screen() else FILE_WIDTH


def _operator(text: str) -> PublicKey:
    """Return an operator's key, given as its peer id or as 64 hex digits. Raises UsageError."""
    try:
        if len(text) == PEER_ID_CHARS:
            return public_key_of(text)
        if len(text) == 64:
            return PublicKey(bytes.fromhex(text))
    except (PeerError, ValueError):
        pass
    raise UsageError(
        f"--operator {text!r}: a key is a peer id (52 characters, 12D3KooW...) or 64 hex digits. `volery join "
        "--dry-run` shows it. Or give the invite with --invite."
    )


def _write(out: Path, lines: Iterator[bytes]) -> int:
    count = 0

    def fill(path: Path) -> None:
        nonlocal count
        with path.open("wb") as file:
            for line in lines:
                file.write(line)
                count += 1

    with writing(out, "--out"):
        write_whole(out, fill)
    return count
