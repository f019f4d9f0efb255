"""Read the ledger of a learner, or the receipts of a node, for `volery report` and `volery why`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from learner.ledger.queries.trust import KeptLease
from learner.ledger.sqlite.database import LedgerError
from node import reports
from node.reports import OwnReport, SwarmReport, draw_reward
from node.reports.explain.name_lookup import is_hex, split
from node.reports.explain.why import Answer, why_in_ledger, why_in_receipts
from node.reports.readers.place_report import read_report
from node.runtime.atomic_files import PAGE, PICTURE, require_place, writing
from node.runtime.errors import RunError, UsageError, as_run_error
from node.runtime.stdout import complain, is_screen, screen_width
from node.state.about import display_name
from node.state.keys import load_key
from node.state.learner_state import genesis_at
from node.state.locate import StateLocation, find_place
from node.state.receipt_queries import ReceiptQueries, ReceiptsError
from node.state.stored_versions import complete_versions
from protocol.core.ids import PeerId

R = TypeVar("R", SwarmReport, OwnReport, SwarmReport | OwnReport)


def show_report(
    target: Path | None,
    *,
    as_json: bool,
    as_csv: bool,
    by: str | None = None,
    picture: Path | None = None,
    html: Path | None = None,
    everyone: bool = False,
) -> str:
    """Return the report of `target` in one form, and write it as a picture or a page where a file is named.

    by: kind of the accounts that CSV lists instead of peers. everyone: show a row for every peer in a terminal as well.
    Raises UsageError, RunError.
    """
    if picture is not None:
        require_place(picture, "--picture", ending=PICTURE)
    if html is not None:
        require_place(html, "--html", ending=PAGE)
    report = read_report(find_place(target), with_history=html is not None)
    if by is not None and isinstance(report, OwnReport):
        raise UsageError(f"--by {by}: only a learner's ledger has costs by {by}. Name its swarm.toml.")
    if picture is not None:
        if isinstance(report, OwnReport):
            raise UsageError("--picture: only a learner's run has a picture. Name its swarm.toml.")
        _write(draw_reward, report, picture, "--picture")
    if html is not None:
        _write(reports.write_html, report, html, "--html")
    if as_json:
        return reports.as_json(report)
    if by is not None and isinstance(report, SwarmReport):
        return reports.accounts_as_csv(report, by)
    if as_csv:
        return reports.as_csv(report)
    if not is_screen():
        return reports.as_text(report, everyone=everyone)
    return reports.as_terminal(report, width=screen_width(), everyone=everyone)


def keep_page(target: Path | None, html: Path, every_s: float) -> None:
    """Write the page of `target` to `html`, and again every `every_s` seconds if it has changed, until the run ends.

    Raises UsageError; RunError if the first page cannot be written. Later trouble is told, and tried again.
    """
    import trio

    from node.reports.html.kept_page import KeptPage

    require_place(html, "--html", ending=PAGE)
    trio.run(KeptPage(place=find_place(target), path=html, every_s=every_s, tell=complain).run)


def _write(draw: Callable[[R, Path], None], report: R, path: Path, option: str) -> None:
    with writing(path, option):
        draw(report, path)
    complain(f"Wrote {path}")


def show_why(name: str, target: Path | None, *, replay: bool = False) -> Answer:
    """Explain why `name`, a record, a lease or a peer, was judged as it was. Raises UsageError, RunError."""
    place = find_place(target)
    if replay and not place.is_learner:
        raise UsageError(
            f"--replay: {place.state} belongs to a rollout node, and only the learner has audits. Ask the operator."
        )
    with as_run_error(LedgerError, ReceiptsError):
        if place.is_learner:
            told = why_in_ledger(place.state / "ledger.sqlite", name, replay=replay)
            return told if told.kept is None else _regenerated(told, told.kept, place)
        with closing(ReceiptQueries(place.state / "receipts.sqlite")) as receipts:
            return Answer(text=why_in_receipts(receipts, name, _own_peer(place, name), display_name(place.state)))


def _own_peer(place: StateLocation, name: str) -> PeerId | None:
    """Return the node whose receipts these are. None: its key cannot be read, and `name` may be a lease, which needs
    none.

    Raises UsageError, RunError.
    """
    try:
        return load_key(place.key).peer_id
    except (UsageError, RunError):
        if is_hex(split(name)[0]):
            return None
        raise


def _regenerated(told: Answer, kept: KeptLease, place: StateLocation) -> Answer:
    from node.learner_role.trust.lease_regeneration import regenerate_lease

    store = place.state / "store"
    held = {one.hash: (one, store / "versions" / one.hash.hex()) for one in complete_versions(store)}
    authority = genesis_at(place.state / "genesis")[1]
    again = regenerate_lease(kept, authority, held)
    return Answer(text="\n".join([told.text, *again.lines]), agrees=again.agrees)
