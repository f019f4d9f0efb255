"""`volery join`: run a rollout node to its end."""

from __future__ import annotations

import shlex
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import msgspec

from node.config.common import PriceSection
from node.config.invite_text import open_invite
from node.config.loader import read_node_config, replaced, require_hours
from node.config.node_config import NodeConfig
from node.config.preflight import require_addresses, require_clock
from node.reports.model.report import Role
from node.rollout_role.app import RolloutOutcome, run_rollout
from node.rollout_role.dry_run import show_join
from node.rollout_role.worker import RolloutCounts, RolloutWorker
from node.runtime import formatting as words
from node.runtime.errors import about_keys_of
from node.runtime.events import Clock, EventLog
from node.runtime.loop_watch import spare_collections
from node.runtime.shutdown import Stopped
from node.runtime.stdout import say
from node.state.owner_orders import owner_signals
from node.state.rollout_state import RolloutStateDir
from node.ui.live_view import ViewState
from node.ui.terminal import go_on, open_terminal, run_shown
from node.ui.view_updates import follow


async def join(
    invite: str,
    *,
    config: Path | None,
    state: Path | None,
    name: str,
    price: float | None,
    wait_s: float,
    upload_mbit: float | None = None,
    download_mbit: float | None = None,
    quota_gb: float | None = None,
    hours: str | None = None,
    no_listen: bool,
    plain: bool,
    dry_run: bool = False,
) -> int:
    """`volery join`; with `dry_run` only what that would mean is printed."""
    require_clock(Clock.now_ms())
    word = open_invite(invite, now_ms=Clock.now_ms())
    settings = adjusted(
        read_node_config(config),
        name=name,
        price=price,
        upload_mbit=upload_mbit,
        download_mbit=download_mbit,
        quota_gb=quota_gb,
        hours=hours,
        no_listen=no_listen,
    )
    with nullcontext() if config is None else about_keys_of(config):
        require_addresses(settings.network.listen, settings.network.announce)
    if dry_run:
        say(await show_join(word, settings, state=state, wait_s=wait_s))
        return 0
    events = EventLog()
    view = ViewState(role=Role.ROLLOUT, title=word.name)
    follow(view, events)
    with owner_signals() as signals, open_terminal(view, plain=plain) as terminal:
        node: RolloutWorker | None = None
        root = Path()

        def ready(home: RolloutStateDir, role: RolloutWorker) -> None:
            nonlocal node, root
            node, root = role, home.root
            terminal.say(f"Joined {word.name or 'the swarm'}. State: {home.root}")

        async def leave() -> None:
            if node is not None:
                await node.leave()

        spare_collections()
        outcome: RolloutOutcome | None = None
        try:
            with suppress(Stopped):
                outcome = await run_shown(
                    terminal,
                    lambda: run_rollout(
                        word, settings, events, state=state, wait_s=wait_s, on_ready=ready, signals=signals
                    ),
                    leave=leave,
                )
        finally:
            events.close()
    if outcome is None:
        return terminal.say_stopped("" if node is None else work_of(node.counts, root), go_on("the same command"))
    terminal.say(f"{outcome.reason} {work_of(outcome.counts, outcome.state)}")
    return 0


def adjusted(
    config: NodeConfig,
    *,
    name: str,
    price: float | None,
    upload_mbit: float | None,
    download_mbit: float | None,
    quota_gb: float | None,
    hours: str | None,
    no_listen: bool,
) -> NodeConfig:
    """The configuration with what the command line says on top. Raises UsageError naming the option."""
    changes: dict[str, Any] = {}
    if name:
        changes["name"] = name
    if price is not None:
        changes["price"] = PriceSection(per_hour=price, currency=config.price.currency)
    if quota_gb is not None:
        changes["store"] = replaced(config.store, quota_gb=quota_gb)
    if hours is not None:
        changes["engine"] = replaced(config.engine, hours=hours)
        require_hours(changes["engine"], "--hours")
    caps = {"upload_mbit": upload_mbit, "download_mbit": download_mbit}
    network = replaced(config.network, **{key: mbit for key, mbit in caps.items() if mbit is not None})
    changes["network"] = msgspec.structs.replace(network, listen=[], announce=[]) if no_listen else network
    return msgspec.structs.replace(config, **changes)


def work_of(counts: RolloutCounts, state: Path) -> str:
    """What a node did since it started, and where more is told."""
    return (
        f"This node: {words.counted(counts.admitted, 'rollout')} admitted, {words.count(counts.refused)} refused. "
        f"Its report: volery report {shlex.quote(str(state))}"
    )
