"""Run `volery join`: a rollout node, to its end."""

from __future__ import annotations

import shlex
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from node.config.common import PriceSection
from node.config.invite_text import open_invite
from node.config.loader import read_node_config, replaced, require_hours
from node.config.node_config import NodeConfig, TeacherSection
from node.config.preflight import require_addresses, require_clock
from node.network.transport import machine_name
from node.notices.destination import destination_of
from node.notices.node_notices import NodeNotices
from node.notices.sender import notifying
from node.reports.model.report import Role
from node.rollout_role.app import RolloutOutcome, run_rollout
from node.rollout_role.dry_run import show_join
from node.rollout_role.owner_control import NodeWorker
from node.rollout_role.worker import RolloutCounts
from node.runtime import formatting as words
from node.runtime.errors import NodeError, about_keys_of
from node.runtime.events import Clock, EventLog
from node.runtime.stdout import say_folded
from node.state.owner_orders import OwnerRequests, owner_signals
from node.state.rollout_state import RolloutStateDir
from node.ui.endings import done_of_node
from node.ui.live_view import ViewState
from node.ui.terminal import NO_LOG, LogChoice, open_terminal, run_session
from node.ui.view_updates import follow
from node.web.address import read_listen
from node.web.page import ServePage, open_page, page_server, serve_nothing

STOPPED = (
    "Stopped. What the learner admitted stays counted, and the receipts are on this machine. To continue, start the "
    "same command again."
)
"""The last line of a node that its owner stopped."""


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """Options of the command line, which override the file. None or "" if an option is not given."""

    name: str = ""
    price: float | None = None
    upload_mbit: float | None = None
    download_mbit: float | None = None
    quota_gb: float | None = None
    hours: str | None = None
    no_listen: bool = False
    teacher: Path | None = None


async def join(
    invite: str,
    overrides: Overrides,
    *,
    config: Path | None,
    state: Path | None,
    wait_s: float,
    plain: bool,
    dry_run: bool = False,
    as_json: bool = False,
    log: LogChoice = NO_LOG,
) -> int:
    """Run `volery join`. With `dry_run`, only print what joining would mean."""
    require_clock(Clock.now_ms())
    word = open_invite(invite, now_ms=Clock.now_ms())
    settings = adjust(read_node_config(config), overrides)
    with nullcontext() if config is None else about_keys_of(config):
        require_addresses(settings.network.listen, settings.network.announce)
        to = destination_of(settings.notify)
        read_listen(settings.web.listen)
    if dry_run:
        told = await show_join(word, settings, state=state, wait_s=wait_s, as_json=as_json)
        say_folded(told, as_json=as_json)
        return 0
    events, teaches = EventLog(), bool(settings.teacher.directory)
    notices = NodeNotices(
        source=f"{settings.name or machine_name()} in {word.name or 'a swarm'}", kinds=settings.notify.events
    )
    view = ViewState(role=Role.ROLLOUT, title=word.name)
    follow(view, events)
    with owner_signals() as signals, open_terminal(view, plain=plain, log=log, events=events) as terminal:
        node: NodeWorker | None = None
        root = Path()
        serve: ServePage = serve_nothing

        def ready(home: RolloutStateDir, role: NodeWorker) -> None:
            nonlocal node, root
            node, root = role, home.root
            terminal.orders = OwnerRequests(root)
            terminal.tell_report(f"volery report {shlex.quote(str(root))}")
            terminal.say(joined_text(word.name, home))
            page = open_page(settings.web, kind="rollout", title=word.name, state=home.root, events=events)
            if page.text:
                terminal.say(page.text)
            serve(page)

        async def leave() -> None:
            if node is not None:
                await node.leave()

        async def run() -> RolloutOutcome:
            nonlocal serve
            async with notifying(to, notices, events) as notify, page_server() as serve:
                outcome = await run_rollout(
                    word, settings, events, state=state, wait_s=wait_s, on_ready=ready, signals=signals
                )
                done = work_of(outcome.counts, view.admitted_before, outcome.state, teaches=teaches)
                notify("ended", f"{outcome.reason} {done}")
                return outcome

        outcome: RolloutOutcome | NodeError | None
        try:
            outcome = await run_session(terminal, events, run, leave)
        except NodeError as error:  # such as a ban
            outcome = error
    done = "" if node is None else work_of(node.counts, view.admitted_before, root, teaches=teaches)
    if outcome is None:
        return terminal.say_stopped("" if node is None else done_of_node(view), done, STOPPED)
    if node is not None:
        terminal.say(done_of_node(view))
    if isinstance(outcome, NodeError):
        terminal.say(done)
        raise outcome
    terminal.say(f"{outcome.reason} {done}")
    return 0


def adjust(config: NodeConfig, given: Overrides) -> NodeConfig:
    """Return the configuration with the command line's options in it. Raises UsageError that names the option."""
    changes: dict[str, Any] = {}
    if given.name:
        changes["name"] = given.name
    if given.price is not None:
        changes["price"] = PriceSection(per_hour=given.price, currency=config.price.currency)
    if given.quota_gb is not None:
        changes["store"] = replaced(config.store, quota_gb=given.quota_gb)
    if given.hours is not None:
        changes["engine"] = replaced(config.engine, hours=given.hours)
        require_hours(changes["engine"], "--hours")
    if given.teacher is not None:
        changes["teacher"] = TeacherSection(directory=str(given.teacher.absolute()))
    caps = {"upload_mbit": given.upload_mbit, "download_mbit": given.download_mbit}
    network = replaced(config.network, **{key: mbit for key, mbit in caps.items() if mbit is not None})
    changes["network"] = msgspec.structs.replace(network, listen=[], announce=[]) if given.no_listen else network
    return msgspec.structs.replace(config, **changes)


def joined_text(swarm: str, home: RolloutStateDir) -> str:
    """Return which swarm a node joined, where its state is, and whether others run beside it."""
    joined = f"Joined {swarm or 'the swarm'}. State: {home.root}"
    if not home.others:
        return joined
    runs = "runs" if len(home.others) == 1 else "run"
    others = f"{', '.join(home.others)} {runs} already on this machine"
    return f"{joined}\n{others}; this is a further node, {home.root.name}."


def work_of(counts: RolloutCounts, before: int, state: Path, *, teaches: bool = False) -> str:
    """Return what a node did since its start, what was admitted in all, and the command for its report.

    before: what was admitted before this start.
    """
    what = "scored group" if teaches else "rollout"
    return (
        f"This node since its start: {words.counted(counts.admitted, what)} admitted, {words.count(counts.rejected)} "
        f"rejected; admitted in all: {words.count(before + counts.admitted)}. "
        f"Its report: volery report {shlex.quote(str(state))}"
    )
