"""The commands that look and print: status, report, identity, invite, tasks.

They may be used while a learner or a node runs: ledgers and receipts are opened to read only. A target is a swarm.toml,
a learner's state directory, or a node's state directory; without one, what lies in the usual places.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from learner.artifacts.regular_file import read_file
from learner.artifacts.text_files import NotText, parse_json, text_of
from learner.ledger.sqlite.database import LedgerError
from node import reports
from node.config.loader import read_swarm_config
from node.config.preflight import require_addresses
from node.config.swarm_config import SwarmConfig
from node.network.invites import is_invite, open_invite
from node.reports import OwnReport, SwarmReport, draw_reward, own_report, swarm_report
from node.reports.explain.audit_replay import KeptLease
from node.reports.explain.name_lookup import is_hex, split
from node.reports.explain.why import Answer, why_in_ledger, why_in_receipts
from node.reports.model.costs import NO_TERMS, CostTerms, Reference
from node.reports.model.objective_figures import spells
from node.reports.text import formatting as words
from node.runtime.atomic_files import PAGE, PICTURE, cannot_write, require_place
from node.runtime.errors import RunError, UsageError
from node.runtime.events import Clock
from node.runtime.loop_delay import LoopFigures
from node.runtime.stdout import complain, is_screen, screen_width
from node.state.identities import ABOUT_FILE
from node.state.keys import load_key
from node.state.learner_state import INVITE_FILE, genesis_at
from node.state.operator_orders import PeerOrders
from node.state.owner_orders import Orders
from node.state.receipts import Receipts, ReceiptsError
from node.state.rollout_state import data_directory, swarm_directory
from node.state.status_file import standing_of
from node.tasks.api.options import usage
from node.tasks.registry import list_kinds
from protocol.accounting.energy import JOULES_PER_KWH
from protocol.core.errors import LocalProtocolError, PeerError
from protocol.core.ids import PeerId
from protocol.core.invite import Invite, InviteError, read_invite, write_invite
from protocol.versions.manifest import SignedManifest, open_manifest

DEFAULT_CONFIG = Path("swarm.toml")
HOUR_MS = 3_600_000

MAX_MANIFEST_FILE_BYTES = 64 << 20
"""Of a manifest in a store: as many as the largest that is taken (`protocol/core/limits.py`)."""

NAME_ONE = "Name a swarm.toml, or a node's state directory."


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a node last said of itself, as it lies in its state directory."""

    name: str = ""
    engine: str = ""
    machine: str = ""
    per_kwh: float | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """A state directory, what lives there, and the window S and what costs are held against if its swarm.toml was
    named."""

    state: Path
    is_learner: bool
    staleness: int | None = None
    terms: CostTerms = NO_TERMS

    @property
    def books(self) -> Path:
        """Where receipts are kept."""
        return self.state / ("ledger.sqlite" if self.is_learner else "receipts.sqlite")

    @property
    def key(self) -> Path:
        return self.state / ("learner.key" if self.is_learner else "node.key")


def find_place(target: Path | None) -> Place:
    """The place that `target` names; without one ./swarm.toml, or the only node on this machine. An invite names the
    only node on this machine that has joined its swarm. Raises UsageError.
    """
    if target is None:
        return _usual_place()
    if is_invite(str(target)):
        return _place_of(open_invite(str(target), now_ms=0))
    if target.is_dir():
        if (target / "swarm.toml").exists():
            return find_place(target / "swarm.toml")
        for candidate, is_learner in ((target, True), (target / "state", True), (target, False)):
            place = Place(state=candidate, is_learner=is_learner)
            if place.key.exists():
                return place
        for lost, beside in (("node.key", "receipts.sqlite"), ("learner.key", "genesis")):
            if (target / beside).exists():
                raise UsageError(f"{target / lost} is missing. Restore it from a copy, or name another directory.")
        raise UsageError(f"{target} holds neither a learner nor a node. {NAME_ONE}")
    if not target.exists():
        raise UsageError(f"{target}: no such file or directory. {NAME_ONE}")
    config = read_swarm_config(target)
    return Place(
        state=Path(config.swarm.state), is_learner=True, staleness=config.learn.staleness, terms=cost_terms(config)
    )


def cost_terms(config: SwarmConfig) -> CostTerms:
    """What an operator's report holds costs against."""
    cost, reference = config.cost, None
    if cost.reference_per_hour is not None and cost.reference_tokens_per_s is not None:
        reference = Reference(
            name=cost.reference, per_hour=cost.reference_per_hour, tokens_per_s=cost.reference_tokens_per_s
        )
    return CostTerms(currency=config.price.currency, per_kwh=cost.per_kwh, reference=reference)


def show_invite(config: Path, *, announce: Sequence[str], expires_h: float) -> str:
    """The invite that the learner wrote when it last started, with other addresses or an end if so asked.

    `announce` are addresses without the /p2p/ part, which is the learner's.
    """
    path = find_place(config).state / INVITE_FILE
    if not path.exists():
        raise UsageError(
            f"{path} does not exist yet: start the swarm once with `volery learn {config}`. Where [network] listen = "
            "[] nobody can join, and there is no invite."
        )
    text, invite = _kept_invite(path)
    if not announce and not expires_h:
        return text
    require_addresses([], list(announce), announced_by="--announce")
    learner = invite.addresses[0].rpartition("/p2p/")[2]
    addresses = [_of_learner(address, learner) for address in announce]
    try:
        return write_invite(
            msgspec.structs.replace(
                invite,
                addresses=addresses or invite.addresses,
                expires_ms=Clock.now_ms() + round(expires_h * HOUR_MS) if expires_h else 0,
            )
        )
    except LocalProtocolError as error:
        raise UsageError(
            f"--announce: {len(addresses)} addresses do not fit one invite ({error}). Name fewer."
        ) from None


def _kept_invite(path: Path) -> tuple[str, Invite]:
    """The invite in a learner's state, which wrote nothing else there. Raises RunError."""
    try:
        text = text_of(read_file(path)).strip()
        return text, read_invite(text, now_ms=0)
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    except NotText as error:
        why = str(error)
    except InviteError as error:
        why = f"is damaged ({error})"
    raise RunError(f"{path} {why}. Move it away; the next start of the learner writes it again.") from None


def _of_learner(address: str, learner: str) -> str:
    """The address with the learner's name, which it may have already. Raises UsageError where it is another's."""
    where, _, peer = address.partition("/p2p/")
    if peer not in ("", learner):
        raise UsageError(f"--announce {address}: {peer} is not this learner, which is {learner}. Leave /p2p/ away.")
    return f"{where}/p2p/{learner}"


def identities(state: Path | None) -> list[str]:
    """One line per key: peer id, role, directory."""
    places = [find_place(state)] if state is not None else list(known_places())
    if not places:
        return ["There is no key on this machine yet: `volery learn` and `volery join` make one when they first start."]
    return [
        f"{load_key(place.key).peer_id}  {'learner' if place.is_learner else 'rollout'}  {place.state}"
        for place in places
    ]


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
    """The report of `target`, in the form asked for; drawn as well, and written as a page, where a file is named. `by`:
    CSV of accounts of this kind, instead of peers. `everyone`: has a row in a terminal as well."""
    if picture is not None:
        require_place(picture, "--picture", ending=PICTURE)
    if html is not None:
        require_place(html, "--html", ending=PAGE)
    report = read_report(find_place(target), with_history=html is not None)
    if by is not None and isinstance(report, OwnReport):
        raise UsageError(f"--by {by}: only a learner's ledger tells costs by {by}; name its swarm.toml.")
    if picture is not None:
        _draw(report, picture)
        complain(f"Wrote {picture}")
    if html is not None:
        _write_page(report, html)
        complain(f"Wrote {html}")
    if as_json:
        return reports.as_json(report)
    if by is not None and isinstance(report, SwarmReport):
        return reports.accounts_as_csv(report, by)
    if as_csv:
        return reports.as_csv(report)
    if not is_screen():
        return reports.as_text(report, everyone=everyone)
    return reports.as_terminal(report, width=screen_width(), everyone=everyone)


def _draw(report: SwarmReport | OwnReport, picture: Path) -> None:
    if isinstance(report, OwnReport):
        raise UsageError("--picture: there is a picture of a learner's run only; name its swarm.toml.")
    try:
        draw_reward(report, picture)
    except OSError as error:
        raise cannot_write(picture, "--picture", error) from None


def _write_page(report: SwarmReport | OwnReport, path: Path) -> None:
    try:
        reports.write_html(report, path)
    except OSError as error:
        raise cannot_write(path, "--html", error) from None


def read_report(place: Place, *, with_history: bool = False) -> SwarmReport | OwnReport:
    """What the ledger or the receipts at `place` say, for a page with what happened when. Raises RunError."""
    try:
        if place.is_learner:
            ledger = place.state / "ledger.sqlite"
            return swarm_report(ledger, staleness=place.staleness, terms=place.terms, with_history=with_history)
        receipts = Receipts(place.state / "receipts.sqlite", read_only=True)
        try:
            about = _about(place.state)
            return own_report(
                receipts,
                peer=load_key(place.key).peer_id,
                name=about.get("name", ""),
                engine=about.get("engine", ""),
                machine=about.get("machine", ""),
                per_kwh=about.get("per_kwh"),
                with_history=with_history,
            )
        finally:
            receipts.close()
    except (LedgerError, ReceiptsError) as error:
        raise RunError(str(error)) from error


def show_why(name: str, target: Path | None, *, replay: bool = False) -> Answer:
    """Why `name`, a record, a lease or a peer, was judged as it was. Raises UsageError, RunError."""
    place = find_place(target)
    if replay and not place.is_learner:
        raise UsageError(
            f"--replay: {place.state} is a volunteer's node, and audits are the learner's. Ask the operator."
        )
    try:
        if place.is_learner:
            told = why_in_ledger(place.state / "ledger.sqlite", name, replay=replay)
            return told if told.kept is None else _redrawn(told, told.kept, place)
        receipts = Receipts(place.state / "receipts.sqlite", read_only=True)
        try:
            return Answer(text=why_in_receipts(receipts, name, _own_peer(place, name)))
        finally:
            receipts.close()
    except (LedgerError, ReceiptsError) as error:
        raise RunError(str(error)) from error


def _own_peer(place: Place, name: str) -> PeerId | None:
    """The node whose books these are; None where its key cannot be read and `name` may be a lease's, which needs none.

    Raises UsageError, RunError.
    """
    try:
        return load_key(place.key).peer_id
    except (UsageError, RunError):
        if is_hex(split(name)[0]):
            return None
        raise


def _redrawn(told: Answer, kept: KeptLease, place: Place) -> Answer:
    from node.learner_role.trust.audit_replay import redrawn

    store = place.state / "store"
    held = {one.hash: (one, store / "versions" / one.hash.hex()) for one in complete_versions(store)}
    authority = genesis_at(place.state / "genesis")[1]
    again = redrawn(kept, authority, held)
    return Answer(text="\n".join([told.text, *again.lines]), agrees=again.agrees)


def _about(state: Path) -> dict[str, Any]:
    path = state / ABOUT_FILE
    try:
        found: dict[str, Any] = msgspec.to_builtins(msgspec.convert(parse_json(read_file(path)), About))
        return found
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} cannot be read ({error}). Move it away: it only holds what this node calls itself, and the next "
            "start writes it again."
        ) from None


def show_status(target: Path | None, *, as_json: bool) -> str:
    """A few lines, or a JSON object, on how things stand at `target`."""
    place = find_place(target)
    report = read_report(place)
    facts: dict[str, object] = {"state": str(place.state), "peer": load_key(place.key).peer_id}
    facts |= _swarm_status(report, place) if isinstance(report, SwarmReport) else _own_status(report, place)
    if as_json:
        return json.dumps(facts, indent=2)
    limits, loop = facts.pop("limits", None), facts.pop("loop_delay", None)
    lines = [f"{key.replace('_', ' '):22} {_figure(value)}" for key, value in facts.items() if value is not None]
    if isinstance(loop, dict):
        lines += [f"{'loop delay':22} {_loop_words(LoopFigures(**loop))}"]
    if isinstance(limits, dict):
        lines += ["limits in force:", *(f"  {key:24} {value}" for key, value in limits.items())]
    return "\n".join(lines)


def _figure(value: object) -> str:
    """For people; the JSON form is exact."""
    match value:
        case float():
            return words.figure(value)
        case int():
            return words.count(value)
        case _:
            return str(value)


def _loop_words(figures: LoopFigures) -> str:
    """How long the event loop makes peers and timers wait, and who held it for longest."""
    worst = f"; the worst was {figures.culprit}" if figures.culprit else ""
    return (
        f"{1000 * figures.p99_s:.0f} ms at 99 of 100 moments of the last minute, {1000 * figures.longest_s:.0f} ms at "
        f"most; {1000 * figures.worst_s:.0f} ms since the start{worst}"
    )


def _swarm_status(report: SwarmReport, place: Place) -> dict[str, object]:
    scores, standing = report.surviving_evaluations, standing_of(place.state)
    return {
        "role": "learner",
        "doing": standing.doing if standing else "not running",
        "notice": (standing.notice if standing else "") or None,
        "training_steps": report.steps[-1].step if report.steps else 0,
        "newest_version": str(report.versions[-1].version) if report.versions else None,
        "rollout_peers_seen": len(report.rollout_peers),
        "peers_banned": len(report.banned),
        "peers_quarantined": report.num_quarantined,
        "orders_waiting": len(PeerOrders(place.state).waiting()),
        "rollouts_admitted": report.admitted,
        "rollouts_rejected": report.rejected,
        "greedy_accuracy": scores[-1].greedy if scores else None,
        "sampled_accuracy": scores[-1].sampled if scores else None,
        **{f"pass@{k}": value for k, value in (scores[-1].pass_at.items() if scores else ()) if k > 1},
        "learner_utilisation": report.utilisation,
        "kwh": None if report.joules is None else report.joules / JOULES_PER_KWH,
        "loop_delay": asdict(standing.loop) if standing and standing.loop else None,
        "alarms": ", ".join(spell.alarm for spell in spells(report.alarms) if spell.ended is None) or None,
        "nodes_unable": report.unable.text or None,
        "leases_without_records": None if report.fruitless is None else str(report.fruitless),
    }


def _own_status(report: OwnReport, place: Place) -> dict[str, object]:
    newest = newest_complete(place.state / "store")
    standing, paused_by = standing_of(place.state), Orders(place.state).paused_by
    absent = f"not running, and paused by {paused_by}" if paused_by else "not running"
    return {
        "role": "rollout",
        "doing": standing.doing if standing else absent,
        "newest_version": str(newest.version) if newest else None,
        "rollouts_admitted": report.peer.admitted,
        "rollouts_rejected": report.peer.rejected,
        "tokens_admitted": report.peer.tokens,
        "kwh": None if report.peer.joules is None else report.peer.joules / JOULES_PER_KWH,
        "loop_delay": asdict(standing.loop) if standing and standing.loop else None,
        "limits": standing.limits if standing else None,
    }


def complete_versions(store: Path) -> Iterator[SignedManifest]:
    """Complete versions in a store that may be in use, oldest first."""
    genesis = store / "genesis"
    if not genesis.exists():
        return
    authority = genesis_at(genesis)[1]
    found = []
    for path in (store / "manifests").iterdir():
        if (store / "versions" / path.name).is_dir():
            try:
                found.append(open_manifest(read_file(path, MAX_MANIFEST_FILE_BYTES), authority))
            except (PeerError, OSError):
                continue
    yield from sorted(found, key=lambda signed: signed.version)


def newest_complete(store: Path) -> SignedManifest | None:
    """The newest complete version in a store, None when there is none."""
    return next(reversed(list(complete_versions(store))), None)


def list_tasks() -> str:
    """Every task with its form and options."""
    kinds, errors = list_kinds()
    lines = []
    for kind in kinds:
        lines.append(f"{usage(kind)}\n    {kind.summary}")
        lines += [f"    {option.key:12} {option.help} (default {option.default})" for option in kind.options]
    lines += [f"not usable: {error}" for error in errors]
    return "\n".join(lines)


def _place_of(invite: Invite) -> Place:
    """The only node on this machine that has joined the invite's swarm. Raises UsageError."""
    places = [place for place in known_places() if place.state.parent == swarm_directory(invite.authority.swarm)]
    if not places:
        name = words.plain_name(invite.name)
        raise UsageError(
            f"That is an invite to {name!r}, and no node in the usual places of this machine has joined it. {NAME_ONE} "
            "To join: volery join INVITE."
        )
    return _only(places)


def _usual_place() -> Place:
    if DEFAULT_CONFIG.exists():
        return find_place(DEFAULT_CONFIG)
    places = list(known_places())
    if not places:
        raise UsageError(
            "There is no swarm.toml here and no node on this machine. Name one: a swarm.toml or a state directory."
        )
    return _only(places)


def _only(places: Sequence[Place]) -> Place:
    """Raises UsageError where there are several."""
    if len(places) == 1:
        return places[0]
    listed = "\n  ".join(str(place.state) for place in places)
    raise UsageError(f"There are {len(places)} nodes on this machine; name one of:\n  {listed}")


def known_places() -> Iterator[Place]:
    """The rollout nodes in the usual places of this machine."""
    for key in sorted(data_directory().glob("*/*/node.key")):
        yield Place(state=key.parent, is_learner=False)
